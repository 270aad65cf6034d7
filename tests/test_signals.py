"""A signal at any moment of `run`, from main's first line on, stops it resumably, with the code of its kind; and
what a system may withhold: descriptors, the terminal, CPU time, room in a file, threads."""

import json
import os
import pathlib
import pty
import random
import resource
import signal
import subprocess
import time

import pytest

from conftest import ROOT, TINY, program
from test_resume import KINDS, finish, only_run, start

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75, signal.SIGHUP: 129, signal.SIGXCPU: 75}
QUICK = (*KINDS["mha"], "train.steps=120")


def notes_signals(pid):
    """Whether main has begun: before, while the loader maps libraries, the default action stays. SIGUSR1 is the
    last that it takes."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1
    return False


@pytest.mark.parametrize("number", CODES)
def test_a_signal_in_mains_first_line_is_honoured(tmp_path, number):
    process = start(tmp_path, QUICK)
    while not notes_signals(process.pid):
        assert process.poll() is None
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == CODES[number], said
    for status in tmp_path.glob("char_mha/*/status.json"):
        assert json.loads(status.read_text())["step"] == 0


def test_signals_at_any_moment_lose_nothing(tmp_path):
    """Start, stop, and go on until the end: the same bits as a run that never stopped."""
    whole = finish(tmp_path / "whole", QUICK)
    draws, parts = random.Random(1), tmp_path / "parts"
    ends = []
    for _ in range(10):
        number = draws.choice(list(CODES))
        process = start(parts, QUICK)
        process.stderr.readline()
        time.sleep(draws.uniform(0, .2))
        process.send_signal(number)
        process.communicate()
        ends.append(process.returncode)
        assert process.returncode in (CODES[number], 0)
        if process.returncode == 0:
            break
    finish(parts, QUICK)
    print(f"{len(ends)} signals")
    for name in ("model", "optimizer"):
        last = f"ckpt/last/{name}.safetensors"
        assert (only_run(parts) / last).read_bytes() == (whole / last).read_bytes()


LONG = (program(), "run", str(ROOT / "configs/char_mha.yaml"), *TINY, "train.steps=1000000")


def status_of(out):
    return json.loads((only_run(out) / "status.json").read_text())


def wait_until_it_trains(out, process):
    while not any(path.stat().st_size for path in out.glob("char_mha/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(.002)


@pytest.mark.parametrize("ignored", (signal.SIGHUP, signal.SIGXCPU))
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(tmp_path, ignored):
    process = subprocess.Popen([*LONG, "--out", tmp_path], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN))
    wait_until_it_trains(tmp_path, process)
    process.send_signal(ignored)
    process.send_signal(signal.SIGUSR1)
    said = process.communicate()[1]
    assert process.returncode == 75, said
    assert status_of(tmp_path)["reason"] == f"signal {int(signal.SIGUSR1)}"


def test_a_run_whose_terminal_has_gone_is_saved(tmp_path):
    child, terminal = pty.fork()
    if child == 0:
        os.execv(LONG[0], [*LONG, "--out", str(tmp_path)])
    while not any(path.stat().st_size for path in tmp_path.glob("char_mha/*/metrics.jsonl")):
        os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
    stood = status_of(tmp_path)
    assert stood["status"] == "stopped" and stood["step"] > 0


def test_a_run_out_of_cpu_time_is_saved(tmp_path):
    """The kernel sends SIGXCPU each second from the limit on, to whichever thread computes."""
    done = subprocess.run([*LONG, "--out", tmp_path], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (2, 60)))
    assert done.returncode == 75, done.stderr
    assert status_of(tmp_path)["status"] == "stopped"


def test_a_file_beyond_its_limit_ends_with_4_and_the_reason(tmp_path):
    done = subprocess.run([*LONG, "train.checkpoint.every=5", "--out", tmp_path], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)))
    assert done.returncode == 4, done.stderr
    assert "File too large" in done.stderr
    assert status_of(tmp_path)["status"] == "failed"


@pytest.mark.parametrize("closed", ((1, 2), (0, 1, 2), (2,)))
def test_closed_descriptors_get_nothing_of_the_runs_files(tmp_path, closed):
    words = [program(), "run", str(ROOT / "configs/char_mha.yaml"), *TINY, "--out", tmp_path]
    done = subprocess.run(["bash", "-c", '"$@" ' + " ".join(f"{n}>&-" for n in closed), "-", *words])
    assert done.returncode == 0
    rows = [json.loads(line) for line in (only_run(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert all("step" in row for row in rows)
    assert status_of(tmp_path)["status"] == "finished"
    assert subprocess.run(words, capture_output=True).returncode == 0


def test_without_threads_there_is_a_line_of_ours(tmp_path):
    """Stacks of half the address space: there is room for one or two."""
    def no_room():
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 46, resource.RLIM_INFINITY))

    done = subprocess.run([*LONG, "--out", tmp_path], capture_output=True, text=True, preexec_fn=no_room,
                          env=os.environ | {"OMP_NUM_THREADS": "4"})
    assert done.returncode == 6, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("headlab: out of processes or memory") and "ulimit" in last
    assert "terminate" not in done.stderr
