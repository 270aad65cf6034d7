"""The array script that a sweep writes, on a Slurm of one node that is made here: a task is stopped,
requeued and goes on, to the weights of a run that never was stopped. Run by `scripts/test --slow`; by day
tests/test_sweep.py runs a task as Slurm starts it."""

import json
import pathlib

from conftest import headlab
from slurm_testing import slurm, wait_for  # noqa: F401
from sweep_testing import bench, slurm_script, statuses  # noqa: F401

def test_a_task_is_stopped_requeued_and_goes_on_to_the_same_weights(bench, slurm):  # noqa: F811
    kinds = (bench / "kinds.yaml").read_text().replace("[1, 2, 3]", "[1]")
    (bench / "kinds.yaml").write_text(kinds)
    script = slurm_script(bench, "train.steps=4000", "train.checkpoint.every=1000")
    points = [line.split("\t") for line in
              (script.parent / "points.tsv").read_text().splitlines()]
    assert len(points) == 3
    job = slurm("sbatch", "--parsable", script)
    assert job.isdecimal()
    first = pathlib.Path(points[0][0])
    wait_for(lambda: (first / "metrics.jsonl").is_file()
             and (first / "metrics.jsonl").stat().st_size > 0)
    slurm("scancel", "--batch", "--signal=USR1", f"{job}_0")  # as the script asks before the limit

    def is_requeued():
        assert statuses(bench, "runs")[first]["status"] != "finished", "it was over too soon"
        return "PENDING" in slurm("squeue", "-h", "-j", f"{job}_0", "-o", "%T")

    wait_for(is_requeued)
    assert json.loads((first / "status.json").read_text())["status"] == "stopped"
    slurm("scontrol", "update", f"JobId={job}_0", "StartTime=now")  # else two minutes later
    wait_for(lambda: slurm("squeue", "-h", "-j", job) == "")
    assert [one["status"] for one in statuses(bench, "runs").values()] == ["finished"] * 3
    said = next((script.parent / "slurm").glob(f"{job}_0.out")).read_text()
    assert "goes on from step " in said

    run, config = points[0]
    whole = json.loads(headlab("run", config, "--out", bench / "whole", "--json"))["run"]
    last = "ckpt/last/model.safetensors"
    assert (pathlib.Path(run) / last).read_bytes() == (pathlib.Path(whole) / last).read_bytes()
