"""What prune and ablate say is the effect of a cut alone: ranked on other data than it is judged on,
beside the uncut model tuned as long, refused where it cannot be had, a dash where it means nothing."""

import json
import subprocess

import h5py
import numpy as np
import pytest

from conftest import headlab, program, train

import headlab_log as hl


def found(*arguments):
    return json.loads(headlab(*arguments, "--json"))


def refused(*arguments):
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode != 0 and not done.stdout
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory):
    """A layer whose weights are over compressed rows, and one of plain attention."""
    return train(tmp_path_factory.mktemp("mixed"), "first_token_linformer", "data.eval_examples=12",
                 "data.symbols=8", 'model.attention_at={"1": {kind: mha}}')


def test_equal_weights_are_a_dash_where_weights_are_not_over_tokens(mixed_run, tmp_path):
    once = ["ablate", mixed_run, "--out", tmp_path / "a.h5", "--pairs", "--sort", "--mode"]
    uniform = found(*once, "uniform")
    assert uniform["removed"][3] == "1:0"
    for name in "l2", "kl", "loss_delta", "cosine", "p_value", "p_holm":
        assert uniform[name][:3] == [None] * 3, name
        assert None not in uniform[name][3:], name
    assert "not over tokens" in uniform["not_measured"]
    pairs = dict(zip(map(tuple, uniform["pairs"]["removed"]), uniform["pairs"]["l2"]))
    assert pairs["0:0", "1:0"] is None and pairs["1:0", "1:1"] > 0
    with h5py.File(tmp_path / "a.h5") as file:
        change = file["ablation/self/loss_delta"]
        assert np.isnan(change[0, 0]).all() and np.isfinite(change[0, 1]).all()
        assert "not over tokens" in change.attrs["comment"]
    table = headlab(*once, "uniform").split("both heads")[0].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in table if ":" in line.split(" (")[0]
            and line.strip()[:1].isdigit()}
    assert list(rows)[3:] == ["0:0", "0:1", "0:2"]  # what has no number goes last
    assert set(rows["0:0"]) == {"-"} and "-" not in rows["1:0"]
    assert "-: mode uniform is not measured for heads whose weights are not over tokens" in "\n".join(
        table)
    zero = found(*once, "zero")
    assert "not_measured" not in zero and None not in zero["l2"]


def test_heads_are_ranked_on_the_training_split_and_judged_on_validation(small_run, tmp_path):
    """So are those of every order that measures; of a text there is only itself."""
    once = ["prune", small_run, "--count", 3, "--batches", 2, "--batch", 4]
    for by in "importance", "activation", "ablation":
        judged = found(*once, "--by", by, "--split", "val")
        if by == "ablation":
            on_train = found(*once, "--by", by, "--split", "train")
            assert (on_train["removed"], on_train["ranked_on"]) == (judged["removed"], "train")
            assert on_train["loss"] != judged["loss"]
        assert judged["split"] == "val" and judged["ranked_on"] == "train"
        rank = found("ablate" if by == "ablation" else "analyze", small_run, "--split", "train",
                     "--batches", 2, "--batch", 4, "--out", tmp_path / f"{by}.h5")
        if by == "ablation":
            values = np.array(rank["loss_delta"])
        else:
            name = {"importance": "importance_global"}.get(by, by)
            values = np.array(rank["statistics"][name]).ravel()
        lowest = sorted(f"{n // 3}:{n % 3}" for n in np.argsort(values, kind="stable")[:3])
        assert judged["removed"] == lowest, by
    assert "; on split train, judged on val\n" in headlab(*once)
    text = found(*once, "--text", "To be, or not to be, that is the question")
    assert text["ranked_on"] == text["split"] == "whole"
    for by in ["--by", "random"], ["--recompute"]:
        assert ("ranked_on" in found(*once, *by)) == (by[0] == "--recompute")


def test_keeping_heads_is_refused_where_the_count_cannot_be_reached(small_run, tmp_path):
    for options, kept, said in (
            (["--count", 5], 1, "4 of 6 heads can go then, not 5; choose --count 4 or --fraction 0.666"),
            (["--fraction", 1], 2, "2 of 6 heads can go then, not 6"),
            (["--count", 1, "--rounds", 1], 3, "0 of 6 heads can go then, not 1")):
        out = tmp_path / "out"
        code, told = refused("prune", small_run, *options, "--keep-per-layer", kept, "--out", out)
        assert code == 2 and not out.exists()
        assert f"prune --keep-per-layer {kept}: {said}" in told
    assert found("prune", small_run, "--count", 4, "--keep-per-layer", 1, "--batches", 1)["kept"] == 2
    assert found("prune", small_run, "--fraction", 0.666, "--keep-per-layer", 1,
                 "--batches", 1)["kept"] == 2
    code, told = refused("prune", small_run, "--heads", "0:1", "--keep-per-layer", 1)
    assert code == 2 and "--keep-per-layer: are for --count or --fraction" in told
    # What is gone already may lie anywhere.
    headlab("prune", small_run, "--heads", "0:0,1,2", "--batches", 1, "--out", tmp_path / "bare")
    assert found("prune", tmp_path / "bare", "--count", 5, "--keep-per-layer", 1, "--batches",
                 1)["kept"] == 1
    assert "5 of 6 heads can go then" in refused("prune", tmp_path / "bare", "--count", 6,
                                                  "--keep-per-layer", 1)[1]


def test_tuning_of_the_uncut_model_is_shown_beside_the_cut_one(small_run, tmp_path):
    once = ["prune", small_run, "--batches", 2, "--batch", 4, "--rounds", 2, "--tune", 3]
    cut = found(*once, "--count", 2, "--out", tmp_path / "cut")
    none = found(*once, "--count", 0, "--out", tmp_path / "none")
    assert cut["uncut"]["updates"] == 6
    for n in range(3):  # what is not cut is tuned as the uncut model beside a cut one
        for name in "loss", "accuracy":
            assert cut["rounds"][n]["uncut"][name] == pytest.approx(none["rounds"][n][name], rel=1e-5)
            assert none["rounds"][n]["uncut"] == cut["rounds"][n]["uncut"]
    assert cut["uncut"]["loss"] == cut["rounds"][2]["uncut"]["loss"] != cut["loss"]
    assert cut["rounds"][0]["uncut"]["loss"] == cut["rounds"][0]["loss"]
    text = headlab(*once, "--count", 2, "--out", tmp_path / "again")
    assert (f"uncut, after as many updates of tuning (6): loss {cut['uncut']['loss']:.4f}, cut "
            f"{cut['loss']:.4f} nat; accuracy") in text
    with hl.open_run(tmp_path / "cut") as run:
        np.testing.assert_allclose(run.pruning.uncut_loss,
                                   [r["uncut"]["loss"] for r in cut["rounds"]], rtol=1e-6)
        assert run.pruning.uncut_loss.attrs["units"] == "nat"
        assert run.manifest["pruned"]["uncut"] == cut["uncut"]
        assert int(run.status["step"]) == 26
    untuned = found("prune", small_run, "--count", 2, "--batches", 1)
    assert "uncut" not in untuned and "uncut" not in untuned["rounds"][0]
