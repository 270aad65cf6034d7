"""A Slurm of one node with two cores and two GPUs, as far as Slurm knows, which is made here."""

import os
import socket
import subprocess
import time

import pytest

from ranks_testing import free_ports
from sweep_testing import needed, wait_until

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
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


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
    for number in range(2):  # Slurm counts files
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-1]\n")
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
