"""A signal at any moment of `run`, from main's first line on, stops it resumably, with the code of its kind."""

import json
import pathlib
import random
import signal
import time

import pytest

from test_resume import KINDS, finish, only_run, start

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
QUICK = KINDS["mha"]


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
    for _ in range(40):
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
