"""A run that is killed and goes on leaves what one that never was would have left, to the bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import h5py
import pytest

from conftest import ROOT, TINY, program

sys.path.insert(0, str(ROOT / "scripts/studies"))
from same_end import CLOCK, datasets, differences  # noqa: E402

STEPS, EVERY = 240, 20  # of a training, between checkpoints
SETTINGS = (f"train.steps={STEPS}", "train.batch=4", "train.threads=1", "train.eval_every=30",
            "train.eval_batches=1", f"train.checkpoint.every={EVERY}", "data.context=16",
            "model.layers=2", "model.d_model=24", "model.dropout=0.1", "log.every=5",
            "log.stats_every=25", "log.stats=[all]", "log.attention.every=35",
            "log.attention.probes=2", *(one for one in TINY if one.startswith("data.path=")))
KINDS = {  # others: slow/test_soak_round.py; every kind, within one process: test_training.cpp
    "mha": ("model.heads=3",),
    "gated": ("model.heads=4", "model.attention={kind: gated, target: {heads: 5}}",
              "train.label_smoothing=0.1"),
}


def start(out, settings):
    return subprocess.Popen(
        [program(), "run", str(ROOT / "configs/char_mha.yaml"), *SETTINGS, *settings,
         "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(out, settings):
    """The run directory, once the training has come to its end."""
    process = start(out, settings)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    return only_run(out)


def only_run(out):
    path, = out.glob("char_mha/*")
    return path


def saved_step(out):
    """Of the last checkpoint; 0: there is none."""
    for last in out.glob("char_mha/*/ckpt/last"):
        return int(os.readlink(last).removeprefix("step-"))
    return 0


def kill(out, settings, how):
    """Trains until two more checkpoints were saved, and is killed at work on the next."""
    before = saved_step(out)
    process = start(out, settings)
    while saved_step(out) < before + 2 * EVERY:
        assert process.poll() is None, "the training ended before it was killed"
        time.sleep(.002)
    process.send_signal(how)
    process.communicate()
    assert process.returncode != 0


def test_a_run_of_another_seed_ends_otherwise(halves, tmp_path):
    other = differences(halves[0], finish(tmp_path / "other", (*KINDS["mha"], "seed=2")))
    assert {"ckpt/last/model.safetensors", "ckpt/last/optimizer.safetensors", "metrics.jsonl",
            "log.h5: heads/self/entropy"} <= set(other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_twice_equals_one_that_never_was(kind, halves, tmp_path):
    settings = KINDS[kind]
    whole = halves[0] if kind == "mha" else finish(tmp_path / "whole", settings)
    kill(tmp_path / "parts", settings, signal.SIGKILL)
    kill(tmp_path / "parts", settings, signal.SIGTERM)
    parts = finish(tmp_path / "parts", settings)

    with h5py.File(parts / "log.h5") as file:
        first, second = file["resumes/step"][:].tolist()
        assert 0 < first < second < STEPS
    assert differences(whole, parts) == []
    one = datasets(whole / "log.h5")
    groups = {name.split("/")[0] for name in one}
    assert groups == {"attention", "eval", "heads", "scalars", "vocab"}
    assert {name.split("/")[-1] for name in one} & CLOCK == {"wall_time", "tokens_per_s"}
    assert one["scalars/step"][1] == (STEPS / 5 + 1,)


@pytest.mark.parametrize("step", [STEPS, STEPS - 20])
def test_numbers_of_a_last_checkpoint_outlive_a_kill_before_the_status_says_them(halves, tmp_path, step):
    """Behind the checkpoint of its last update nothing is left to train, and nothing to measure anew."""
    shutil.copytree(halves[0].parent, tmp_path / "char_mha", symlinks=True)
    run = only_run(tmp_path)
    status = json.loads((run / "status.json").read_text())
    assert status["metrics"]["val/loss"] > 0 and status["metrics"]["train/loss"] > 0
    as_killed = {**status, "status": "running", "step": step, "metrics": {}}
    (run / "status.json").write_text(json.dumps(as_killed))
    assert finish(tmp_path, KINDS["mha"]) == run
    again = json.loads((run / "status.json").read_text())
    assert again["status"] == "finished" and again["step"] == STEPS
    assert again["metrics"] == status["metrics"]


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A run that was never stopped, and the folder of one that was killed on its way."""
    out = tmp_path_factory.mktemp("lost")
    whole = finish(out / "whole", KINDS["mha"])
    kill(out / "part", KINDS["mha"], signal.SIGKILL)
    return whole, out / "part"


def cut(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[-2:]))


LOSSES = {"cut": (cut, ["metrics.jsonl"]), "emptied": (lambda path: path.write_text(""), ["metrics.jsonl"]),
          "removed": (os.remove, ["metrics.jsonl"]), "without a log": (os.remove, ["log.h5"]),
          "without both": (os.remove, ["metrics.jsonl", "log.h5"])}


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_a_file_has_lost_are_told_and_made_again_from_the_other(halves, tmp_path, loss):
    whole, part = halves
    shutil.copytree(part, tmp_path / "part", symlinks=True)
    run, step = only_run(tmp_path / "part"), saved_step(tmp_path / "part")
    act, names = LOSSES[loss]
    for name in names:
        act(run / name)
    process = start(tmp_path / "part", KINDS["mha"])
    said = process.communicate()[1]
    assert process.returncode == 0, said
    assert f"lost {'every row' if 'without' in loss else ''}" in said.replace("have", "has")
    assert f"up to step {step}" in said

    def rows(run):
        read = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: {name: value for name, value in row.items() if name not in CLOCK}
                for row in read}

    def scalars(run):
        with h5py.File(run / "log.h5") as file:
            return {name: data[()].tolist() for name, data in file["scalars"].items()
                    if name not in CLOCK | {"aux_loss"}}

    if loss == "without both":
        assert min(rows(run)) > step and scalars(run)["step"][0] > step
        return
    for at, row in rows(whole).items():
        if at % 5 == 0:  # a row of the log, too
            assert {**row, **rows(run)[at]} == pytest.approx(row, rel=1e-6)
    found = scalars(run)
    for name, values in scalars(whole).items():
        assert found[name] == pytest.approx(values, rel=1e-6, nan_ok=True)
    assert (run / "ckpt/last/model.safetensors").read_bytes() == (
        whole / "ckpt/last/model.safetensors").read_bytes()


def test_another_number_of_threads_is_told_and_kept(halves, tmp_path):
    shutil.copytree(halves[1], tmp_path / "part", symlinks=True)
    process = start(tmp_path / "part", (*KINDS["mha"], "train.threads=2"))
    said = process.communicate()[1]
    assert process.returncode == 0, said
    assert "since it began: it ran with 1 CPU threads and goes on with 2:" in said
    manifest = json.loads((only_run(tmp_path / "part") / "manifest.json").read_text())
    assert (manifest["threads"], manifest["previous"][-1]["threads"]) == (2, 1)
