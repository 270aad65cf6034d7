"""What tests of runs on several processes share."""

import hashlib
import json
import os
import re
import socket
import subprocess
import time

from conftest import ROOT, TINY, program

# No part of the environment of the one who runs the tests says which process this is.
CLEAN = {name: value for name, value in os.environ.items()
         if not re.match(r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_|TORCHELASTIC_|SLURM_)", name)}
SETTINGS = (*TINY, "train.batch=12", "model.dropout=0.1", "train.deterministic=true")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def free_port():
    return free_ports(1)[0]


class Group:
    """The processes of a run, started as a loop in a shell starts them. `within`: words before the command of a rank."""

    def __init__(self, size, out, *settings, config=ROOT / "configs/char_mha.yaml", timeout=20, variables=(), own=None,
                 within=None, address="127.0.0.1"):
        port = str(free_port())
        self.processes = []
        for rank in range(size):
            words = [*(within or {}).get(rank, ()), program(), "run", config, *settings, *(own or {}).get(rank, ()),
                     "--out", out, "--comm-timeout", str(timeout)]
            ours = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": port,
                    "OMP_NUM_THREADS": "1"}
            self.processes.append(subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE,
                                                   stderr=subprocess.PIPE, text=True,
                                                   env=CLEAN | ours | dict(variables)))

    def end(self):
        """The exit codes, and what each said."""
        self.said = [process.communicate(timeout=120) for process in self.processes]
        return [process.returncode for process in self.processes]

    def wait_for_step(self, out, step):
        while True:
            for line in metrics(out, missing=True):
                if line["step"] >= step:
                    return
            assert all(process.poll() is None for process in self.processes), self.end()
            time.sleep(.01)


def run_of(out):
    [run] = out.glob("*/*")
    return run


def metrics(out, missing=False):
    found = list(out.glob("*/*/metrics.jsonl"))
    if missing and not found:
        return []
    lines = found[0].read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def weights(out):
    return hashlib.sha256((run_of(out) / "ckpt/last/model.safetensors").read_bytes()).hexdigest()


def numbers(out):
    """Of every line, without what is time."""
    return [{name: value for name, value in line.items() if name not in ("wall_s", "tokens_per_s")}
            for line in metrics(out)]


def alone(out, *settings, config=ROOT / "configs/char_mha.yaml"):
    done = subprocess.run([program(), "run", config, *settings, "--out", out],
                          capture_output=True, text=True, env=CLEAN | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
