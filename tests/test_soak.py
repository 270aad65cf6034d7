"""scripts/studies/soak.py until it has killed once: what was killed ends as what was left alone. A whole round, of every
case, with signals and full disks: tests/slow/test_soak_round.py."""

import json
import subprocess
import sys

from conftest import ROOT, program


def soak(*words):
    script = [sys.executable, ROOT / "tests/warm_program.py", ROOT / "scripts/studies/soak.py", "--program", program(),
              "--json"]
    done = subprocess.run([*script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["failures"] == []
    print(result["counts"])
    return result, done.stderr


def test_kills_alone_end_with_their_number():
    result, _ = soak("--kills", "1", "--seed", "3")
    assert set(result["counts"]) == {"SIGKILL", "finished", "runs that ended alike"}
    assert result["full_disks"] is False
