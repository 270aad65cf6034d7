"""The array script that a sweep writes, on a Slurm of one node that is made here: a task is stopped,
requeued and goes on, to the weights of a run that never was stopped. Run by `scripts/test --slow`; by day
tests/test_sweep.py runs a task as Slurm starts it."""

import json
import os
import pathlib
import socket
import subprocess
import time

import pytest

from conftest import headlab
from sweep_testing import bench, needed, slurm_script, statuses, wait_until  # noqa: F401

CONF = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
CommunicationParameters=NoInAddrAny
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A function that runs a command of Slurm; its daemons live as long as the test."""
    daemons = [needed("slurmctld", "slurmctld"), needed("slurmd", "slurmd")]
    needed("sbatch", "slurm-client")
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: slurmd starts for root only")
    folder = tmp_path / "slurm"
    for inner in ("state", "spool"):
        (folder / inner).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, user="root", ports=free_ports(2)))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    started = [subprocess.Popen([daemon, "-D", "-f", conf, *(("-N", host) if "slurmd" == name else ())],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for daemon, name in zip(daemons, ("slurmctld", "slurmd"))]

    def ask(*words):
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()

    try:
        wait_until(lambda: ask("sinfo", "-h", "-o", "%T") in {"idle", "mixed"}, started[1])
        yield ask
    finally:
        ask("scancel", "--user=root")
        for process in reversed(started):
            process.terminate()
            process.wait()


def wait_for(true):
    """Polls for a state that Slurm comes to by itself."""
    while not true():
        time.sleep(.05)


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
