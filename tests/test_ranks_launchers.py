"""Runs that torchrun starts, and runs of processes on two hosts, which network namespaces stand for."""

import json
import os
import signal
import subprocess
import time

import pytest

from conftest import ROOT, program
from ranks_testing import CLEAN, SETTINGS, Group, alone, metrics, numbers, run_of, weights
from transformers_testing import bench_python


def torchrun(out, *settings, restarts=0, timeout=20):
    words = [*bench_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             "--max-restarts", restarts, "--monitor-interval", "0.1", "--no-python", program(), "run",
             ROOT / "configs/char_mha.yaml", *settings, "--out", out, "--comm-timeout", timeout]
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=CLEAN | {"OMP_NUM_THREADS": "1"})


def ranks_below(process):
    """Process ids of the ranks that torchrun has started, by their numbers."""
    found = {}
    for folder in os.listdir("/proc"):
        try:
            fields = open(f"/proc/{folder}/stat").read().rsplit(")", 1)[1].split() if folder.isdecimal() else None
            variables = open(f"/proc/{folder}/environ").read().split("\0") if fields else []
        except OSError:
            continue
        if fields and int(fields[1]) == process.pid:
            found |= {int(one[5:]): int(folder) for one in variables if one.startswith("RANK=")}
    return found


def test_torchrun_trains_to_the_bits_of_one_process(tmp_path):
    settings = (*SETTINGS, "train.accumulate=2")
    alone(tmp_path / "one", *settings)
    process = torchrun(tmp_path / "several", *settings)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert printed.count("finished at step 20") == 1
    assert weights(tmp_path / "several") == weights(tmp_path / "one")
    assert numbers(tmp_path / "several") == numbers(tmp_path / "one")


@pytest.mark.parametrize("killed", [0, 1])
def test_torchrun_restarts_to_the_same_bits(tmp_path, killed):
    settings = (*SETTINGS, "train.accumulate=2", "train.steps=200", "train.checkpoint.every=20", "log.every=1")
    alone(tmp_path / "one", *settings)
    several = tmp_path / "several"
    process = torchrun(several, *settings, restarts=2)
    while not any(line["step"] >= 25 for line in metrics(several, missing=True)):
        assert process.poll() is None, process.communicate()
        time.sleep(.01)
    os.kill(ranks_below(process)[killed], signal.SIGKILL)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "goes on from step " in said
    assert weights(several) == weights(tmp_path / "one")
    assert numbers(several) == numbers(tmp_path / "one")


def test_torchrun_starts_no_training_anew_that_has_diverged(tmp_path):
    process = torchrun(tmp_path, *SETTINGS, "train.accumulate=2", "train.lr=1e30", "train.warmup=0", "train.clip=0",
                       restarts=1)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 1  # of torchrun, whatever failed
    assert "started again after 'diverged'" in said
    assert json.loads((run_of(tmp_path) / "status.json").read_text())["status"] == "diverged"


@pytest.fixture
def hosts():
    """Words that start a program on one of two hosts, and the first one's address; their cable is a pair of veth."""
    name = f"hl{os.getpid()}"
    names, ends = [name + "a", name + "b"], ["va", "vb"]
    steps = [*(["ip", "netns", "add", one] for one in names),
             ["ip", "link", "add", "va", "netns", names[0], "type", "veth", "peer", "name", "vb", "netns", names[1]],
             *(["ip", "-n", one, "addr", "add", f"10.77.0.{n + 1}/24", "dev", ends[n]] for n, one in enumerate(names)),
             *(["ip", "-n", one, "link", "set", end, "up"]
               for one, own in zip(names, ends, strict=True) for end in (own, "lo"))]
    try:
        for step in steps:
            try:
                done = subprocess.run(step, capture_output=True, text=True)
            except FileNotFoundError:
                pytest.skip("NOT TESTED: processes on two hosts: no program ip (package iproute2)")
            if done.returncode != 0:
                pytest.skip(f"NOT TESTED: processes on two hosts: no network namespaces here: {done.stderr.strip()}")
        yield [["ip", "netns", "exec", one] for one in names], names
    finally:
        for one in names:
            subprocess.run(["ip", "netns", "del", one], capture_output=True)


def test_two_hosts_have_the_bits_of_one_and_survive_their_cable(tmp_path, hosts):
    within, names = hosts
    settings = (*SETTINGS, "train.accumulate=2", "train.steps=200", "train.checkpoint.every=20", "log.every=1")
    alone(tmp_path / "one", *settings)
    several = tmp_path / "several"
    on_two = {"within": dict(enumerate(within)), "address": "10.77.0.1"}
    group = Group(2, several, *settings, timeout=2, **on_two)
    group.wait_for_step(several, 25)
    subprocess.run(["ip", "-n", names[0], "link", "set", "va", "down"], check=True)
    assert group.end() == [75, 75], group.said
    status = json.loads((run_of(several) / "status.json").read_text())
    assert (status["status"], "lost rank 1" in status["reason"]) == ("stopped", True), status
    subprocess.run(["ip", "-n", names[0], "link", "set", "va", "up"], check=True)
    group = Group(2, several, *settings, **on_two)
    assert group.end() == [0, 0], group.said
    assert weights(several) == weights(tmp_path / "one")
    assert numbers(several) == numbers(tmp_path / "one")
