"""One round of scripts/studies/soak.py: a model of every host, of eight kinds of heads, is killed, stopped and left
without disk until it has finished, and ends as one that was left alone."""

import json
import os
import subprocess
import sys

from conftest import ROOT, program


def soak(*words):
    script = [sys.executable, str(ROOT / "scripts/studies/soak.py"), "--program", program(), "--json"]
    done = subprocess.run([*script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["failures"] == []
    print(result["counts"])
    return result, done.stderr


def test_a_round_of_kills_signals_and_full_disks_loses_nothing():
    result, said = soak("--minutes", "0", "--seed", "3")
    assert result["counts"]["runs that ended alike"] == 9
    assert {"SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1"} <= set(result["counts"])
    assert result["full_disks"] or os.geteuid() != 0 or "root" in said


def test_kills_alone_end_with_their_number():
    result, _ = soak("--kills", "1", "--seed", "3")
    assert set(result["counts"]) == {"SIGKILL", "finished", "runs that ended alike"}
    assert result["full_disks"] is False
