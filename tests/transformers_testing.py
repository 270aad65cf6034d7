"""A Python that has torch and transformers, made by scripts/bench/environment."""

import functools
import os
import subprocess

import pytest

from conftest import ROOT


@functools.cache
def bench_python():
    """The command that runs it; the test is skipped where it cannot be made."""
    command = [str(ROOT / "scripts/bench/environment")]
    made = subprocess.run([*command, "-c", "import transformers, tokenizers"], capture_output=True,
                          text=True)
    if made.returncode != 0:
        why = (made.stderr.strip().splitlines() or ["it does not say why"])[-1]
        pytest.skip(f"no transformers: scripts/bench/environment cannot be made: {why}")
    os.environ["HF_HUB_OFFLINE"] = "1"
    return command
