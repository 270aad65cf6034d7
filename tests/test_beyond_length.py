"""scripts/studies/beyond_length.py trains, measures on longer windows and says what came of it; here in seconds."""

import sys

import pytest

from conftest import ROOT, in_this_python, program

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/studies")]
import beyond_length  # noqa: E402

SMALL = ("train.steps=4", "train.warmup=1", "train.batch=4", "train.eval_batches=1", "data.context=16", "model.d_model=32",
         "log.stats_every=0", "log.attention.probes=1")


def test_every_arm_has_its_config():
    assert [name for name, (config, _) in beyond_length.ARMS.items() if not (ROOT / f"configs/{config}.yaml").is_file()] == []


def test_the_table_shows_the_seeds_and_what_length_changes():
    text = beyond_length.table({"mha, rope": {64: [2.0, 2.2], 256: [3.0, 3.2]}}, [64, 256])
    assert text.splitlines()[0] == "| heads | 64 tokens | 256 tokens | last less first |"
    assert text.splitlines()[2] == "| mha, rope | 2.100 ± 0.141 | 3.100 ± 0.141 | +1.000 |"


def test_an_arm_is_trained_and_measured_once(tmp_path):
    settings = [word for setting in SMALL for word in ("--set", setting)]
    options = ["--program", program(), "--out", tmp_path, "--seeds", 1, "--contexts", "16,64", "--arms", "mha, rope", *settings]
    done = in_this_python(beyond_length.main, *options)
    assert done.returncode == 0, done.stderr
    assert "windows of 64" in done.stderr
    again = in_this_python(beyond_length.main, *options)
    assert again.stdout == done.stdout and "windows of" not in again.stderr


def test_an_arm_that_is_none_is_refused():
    done = in_this_python(beyond_length.main, "--arms", "mhaa")
    assert done.returncode == 2 and "no arm is called 'mhaa'" in done.stderr
