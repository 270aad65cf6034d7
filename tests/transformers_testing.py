"""A Python that has torch and transformers, made by scripts/bench/environment."""

import functools
import json
import os
import subprocess

import pytest

from conftest import ROOT, program


@functools.cache
def bench_python():
    """The command that runs it; the test is skipped where it cannot be made."""
    command = [str(ROOT / "scripts/bench/environment")]
    there = "from importlib.util import find_spec; assert find_spec('transformers') and find_spec('tokenizers')"
    made = subprocess.run([*command, "-c", there], capture_output=True, text=True)
    if made.returncode != 0:
        why = (made.stderr.strip().splitlines() or ["it does not say why"])[-1]
        pytest.skip(f"no transformers: scripts/bench/environment cannot be made: {why}")
    os.environ["HF_HUB_OFFLINE"] = "1"
    return command


def asked(pairs, classes=()):
    """What transformers says of each pair of a run and a folder, by its name, and of classes."""
    done = subprocess.run([*bench_python(), ROOT / "tests/transformers_peer.py", program(),
                           json.dumps([list(map(str, pair)) for pair in pairs.values()]), *classes],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return said | {"models": dict(zip(pairs, said["models"], strict=True))}
