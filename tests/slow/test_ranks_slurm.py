"""A run of two tasks on a Slurm of one node, by the script of docs/ranks.md; and what sweeps ask of Slurm for GPUs. Run by
`scripts/test --slow`."""

import json
import re
import subprocess
import time

from conftest import ROOT, program
from ranks_testing import SETTINGS, alone, metrics, numbers, run_of, weights
from slurm_testing import slurm, wait_for  # noqa: F401
from sweep_testing import bench, slurm_script  # noqa: F401

MORE = (*SETTINGS, "train.accumulate=2", "train.steps=400", "train.checkpoint.every=20", "log.every=1")


def submitted(slurm, folder):  # noqa: F811
    """The job of the page's script, with this program and these settings."""
    page = (ROOT / "docs/ranks.md").read_text(encoding="utf-8")
    script = re.search(r"^```bash\n(#!/bin/bash.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    of_page = "scripts/headlab run configs/char_mha.yaml train.accumulate=2"
    assert of_page in script
    words = " ".join(map(str, [program(), "run", ROOT / "configs/char_mha.yaml", *MORE]))
    (folder / "job").write_text(script.replace(of_page, words))
    job = slurm("sbatch", "--parsable", f"--chdir={folder}", f"--output={folder}/said", folder / "job")
    assert job.isdecimal()
    return job


def wait_for_step(folder, step):
    wait_for(lambda: any(line["step"] >= step for line in metrics(folder / "runs", missing=True)))


def state(slurm, job):  # noqa: F811
    return slurm("squeue", "-h", "-j", job, "-o", "%T")


def goes_on(slurm, job):  # noqa: F811
    """Once it is queued again, at once and not after two minutes."""
    wait_for(lambda: state(slurm, job) == "PENDING")
    time.sleep(2)  # slurmd takes no job twice in a second: "Job credential revoked"
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for(lambda: state(slurm, job) == "")


def check_bits(tmp_path):
    alone(tmp_path / "one", *MORE)
    assert weights(tmp_path / "runs") == weights(tmp_path / "one")
    assert numbers(tmp_path / "runs") == numbers(tmp_path / "one")


def test_two_tasks_are_told_of_the_limit_and_go_on_to_the_bits_of_one(tmp_path, slurm):  # noqa: F811
    job = submitted(slurm, tmp_path)
    wait_for_step(tmp_path, 25)
    slurm("scancel", "--signal=USR1", job)  # the step's tasks, as the script asks before the limit
    wait_for(lambda: json.loads((run_of(tmp_path / "runs") / "status.json").read_text())["status"] != "running")
    assert json.loads((run_of(tmp_path / "runs") / "status.json").read_text())["status"] == "stopped"
    goes_on(slurm, job)
    said = (tmp_path / "said").read_text()
    assert said.count("on 2 processes") == 2, said
    check_bits(tmp_path)


def test_a_task_that_is_killed_has_the_job_queued_again(tmp_path, slurm):  # noqa: F811
    job = submitted(slurm, tmp_path)
    wait_for_step(tmp_path, 25)
    found = subprocess.run(["pgrep", "-f", f"{program()} run {ROOT}/configs/char_mha.yaml .*train.steps=400"],
                           capture_output=True, text=True).stdout.split()
    assert len(found) >= 2
    subprocess.run(["kill", "-KILL", found[-1]], check=True)
    goes_on(slurm, job)
    check_bits(tmp_path)


def test_slurm_takes_the_lines_for_gpus_and_cores(bench, slurm):  # noqa: F811
    script = slurm_script(bench, "--gpus-per-task", "1", "--cpus-per-task", "2")
    asked = script.read_text()
    assert "--cpus-per-task=2 --gpus-per-task=1" in asked

    def tested(*words):
        return subprocess.run(["sbatch", "--test-only", *words, script], capture_output=True, text=True)

    done = tested()
    assert (done.returncode, "to start at" in done.stderr) == (0, True), done.stderr
    refused = tested("--gpus-per-task=3")  # the node has two, so Slurm has read the lines
    assert refused.returncode != 0, refused.stderr
