"""A metric is named once: headlab_extended has a task with two of its own (tests/added_metric.cpp), and every
command, table and log has both, with unit and direction."""

import json
import math
import pathlib
import subprocess

import headlab_log
import h5py
import pytest
from conftest import program

CONFIG = """
name: pairs
data: {kind: pairs, symbols: 8, context: 8, eval_examples: 32}
model: {kind: decoder, layers: 1, d_model: 16, heads: 2}
train: {steps: 40, batch: 8, lr: 1.0e-2, warmup: 4, eval_every: 20, eval_batches: 1, threads: 1,
        checkpoint: {every: 20}}
log: {every: 10, stats_every: 20, attention: {every: 0}}
"""
SWEEP = "{base: pairs.yaml, grid: {seed: [1, 2]}}\n"
COMPARISON = """tasks: [pairs.yaml]
kinds: [mha, differential]
rates: [1.0e-2]
seeds: [1, 2]
"""


def extended(*arguments):
    path = pathlib.Path(program()).parent / "headlab_extended"
    if not path.is_file():
        pytest.fail(f"{path} is not built")
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metric")
    (folder / "pairs.yaml").write_text(CONFIG)
    (folder / "s.yaml").write_text(SWEEP)
    (folder / "c.yaml").write_text(COMPARISON)
    extended("run", folder / "pairs.yaml", "--out", folder / "runs")
    return folder


@pytest.fixture(scope="module")
def run(bench):
    return next((bench / "runs/pairs").iterdir())


def test_it_is_logged_with_its_unit_and_what_follows_from_the_loss_is_not(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if "val/loss" in row]
    assert len(evaluated) == 2
    for row in evaluated:
        assert 0 < row["val/trust"] < 1
        assert row["val/bits"] == pytest.approx(row["val/loss"] / math.log(2))
    assert evaluated[-1]["val/trust"] > evaluated[0]["val/trust"]
    status = json.loads((run / "status.json").read_text())["metrics"]
    assert status["val/trust"] == evaluated[-1]["val/trust"] and "val/bits" in status
    with h5py.File(run / "log.h5") as log:
        assert log["eval/val_trust"].attrs["units"] == "1" and "val_bits" not in log["eval"]
        assert log["eval/val_trust"].attrs["comment"] == "mean of p over the scored targets"
    with headlab_log.open_run(run) as opened:
        assert opened.evaluations.val_trust.attrs["long_name"] == "validation trust in what is right"


def test_evaluations_have_both_with_their_digits(run):
    found = json.loads(extended("eval", run, "--json"))
    assert found["bits"] == pytest.approx(found["loss"] / math.log(2))
    assert f"bits {found['bits']:.4f} bit, " in extended("eval", run)
    assert f"trust {found['trust']:.2f}; " in extended("eval", run)


def test_what_a_head_does_to_it_is_measured(run):
    found = json.loads(extended("ablate", run, "--json"))
    assert len(found["trust_delta"]) == 2 and all(abs(one) < 1 for one in found["trust_delta"])
    assert "trust" in extended("ablate", run)
    pruned = json.loads(extended("prune", run, "--heads", "0:1", "--json"))
    assert pruned["trust_delta"] == pytest.approx(found["trust_delta"][1], abs=1e-6)


def test_sweeps_and_comparisons_have_it(bench, run):
    swept = extended("sweep", bench / "s.yaml", "--out", bench / "runs")
    for name in ("val/loss", "val/trust", "val/bits"):
        assert name in swept
    compared = extended("compare", bench / "c.yaml", "--out", bench / "runs", "--json")
    task, = json.loads(compared)["tasks"]
    mha, other = task["arms"]
    assert len(mha["metrics"]["val/trust"]["values"]) == 2
    assert other["metrics"]["val/trust"]["difference"]["mean"] == pytest.approx(
        sum(other["metrics"]["val/trust"]["values"]) / 2 - sum(mha["metrics"]["val/trust"]["values"]) / 2)
