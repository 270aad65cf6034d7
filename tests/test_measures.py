"""A loss says what it was measured on, and no two measures share a column, a curve or a record."""

import json
import shutil
import warnings

import h5py
import numpy as np
import pytest
from matplotlib import pyplot as plt

import headlab_log as hl
from conftest import headlab, train
from headlab_log import measures, plots, report, watch
from report_testing import text

FIRST = "first batch, 1,024 tokens"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that evaluates a batch at steps 5, 10 and 15, and the whole split at step 20."""
    return train(tmp_path_factory.mktemp("measures"), "char_mha", "train.eval_every=5")


@pytest.fixture(scope="module")
def whole(trained):
    """What `eval` says of it, over the whole split."""
    return json.loads(headlab("eval", trained, "--json"))


@pytest.fixture(scope="module")
def half(trained, tmp_path_factory):
    """A run without half the heads, and what `prune` said of it."""
    out = tmp_path_factory.mktemp("half") / "run"
    said = headlab("prune", trained, "--count", 3, "--by", "random", "--batches", 2, "--out", out,
                   "--json")
    return out, json.loads(said)


def told(path):
    return json.loads((path / "status.json").read_text(encoding="utf-8"))["metrics"]


def best(path):
    return json.loads((path / "ckpt/last/state.json").read_text(encoding="utf-8"))["trainer"]["best"]


def older(path, to):
    """A copy of a run whose log does not know of examples and whole splits."""
    shutil.copytree(path, to)
    with h5py.File(to / "log.h5", "r+") as file:
        del file["eval/val_examples"], file["eval/val_whole_split"]
    return to


def test_a_log_says_what_each_evaluation_was_over(trained, whole):
    all_of_it = f"whole split, {whole['tokens']:,} tokens"
    with hl.open_run(trained) as run:
        assert run.evaluations.measured.values.tolist() == [FIRST] * 3 + [all_of_it]
        assert run.evaluations.val_examples.values.tolist() == [64] * 3 + [whole["examples"]]
        parts = measures.by_measure(run.evaluations)
        assert [(words, rows.step.values.tolist()) for words, rows in parts] == [
            (FIRST, [5, 10, 15]), (all_of_it, [20])]


def test_logs_of_floatsversions_tell_by_their_tokens(trained, whole, tmp_path):
    with hl.open_run(older(trained, tmp_path / "old")) as run:
        assert measures.whole_split(run.evaluations).tolist() == [0, 0, 0, 1]
        # Of one measure alone nobody knows which.
        one = run.evaluations.isel(step=[0, 1])
        assert np.isnan(measures.whole_split(one)).all()
        assert measures.measured(one, run.config.get("train", {}).get("eval_batches")) == ["1,024 tokens"] * 2


def test_counts_are_integers_and_those_of_floatslogs_read_alike(trained, tmp_path):
    names = "val_tokens", "val_examples", "val_whole_split"
    shutil.copytree(trained, tmp_path / "old")
    with h5py.File(tmp_path / "old/log.h5", "r+") as file:
        group = file["eval"]
        for name in names:
            assert group[name].dtype == "int64"
            values, attributes = group[name][:].astype("f4"), dict(group[name].attrs)
            del group[name]
            floats = group.create_dataset(name, data=values, maxshape=(None,), chunks=(16,))
            for key in "units", "long_name", "comment":
                floats.attrs[key] = attributes[key]
            floats.attrs["_FillValue"] = np.float32(np.nan)
            floats.dims[0].attach_scale(group["step"])
    with hl.open_run(trained) as now, hl.open_run(tmp_path / "old") as old:
        for name in names:
            assert now.evaluations[name].dtype == "int64"
            assert old.evaluations[name].values.tolist() == now.evaluations[name].values.tolist()
        assert old.evaluations.measured.values.tolist() == now.evaluations.measured.values.tolist()


def test_the_last_loss_stands_apart_in_pictures(trained):
    with hl.open_run(trained) as run:
        axes = plots.losses(run).axes[0]
        assert [line.get_label() for line in axes.lines] == [
            "training batch", "validation, first batch", "validation, whole split"]
        assert [len(line.get_xdata()) for line in axes.lines[1:]] == [3, 1]
        plt.close("all")
        lines = watch.lines_of(run, 100)
        assert "(step 20, whole split)" in lines[2]
        assert any("#: of the whole split" in line for line in lines)


def test_tensorboard_has_a_curve_for_each_measure(trained, tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    with hl.open_run(trained) as run:
        events = accumulator(str(hl.to_tensorboard(run, tmp_path).parent))
    events.Reload()
    assert [event.step for event in events.Scalars("val/loss")] == [5, 10, 15]
    assert [event.step for event in events.Scalars("val_whole_split/loss")] == [20]


def test_a_test_part_is_one_point_of_its_own(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    path = train(tmp_path, "char_mha", "train.eval_every=5", "data.test=0.02")
    said = json.loads((path / "status.json").read_text())["metrics"]
    with hl.open_run(path) as run:
        found = run.evaluations.test_loss.values
        assert np.isnan(found).tolist() == [True, True, True, False]
        assert np.isnan(run.evaluations.test_examples.values).tolist() == [True, True, True, False]
        events = accumulator(str(hl.to_tensorboard(run, tmp_path / "events").parent))
    assert found[-1] == pytest.approx(said["test/loss"])
    events.Reload()
    point, = events.Scalars("test/loss")
    assert (point.step, point.value) == (20, pytest.approx(said["test/loss"]))
    assert not [tag for tag in events.Tags()["scalars"] if "test_" in tag]


def test_compare_warns_where_losses_do_not_compare(trained, tmp_path):
    shorter = train(tmp_path, "char_mha", "train.eval_every=5", "train.steps=15")
    with pytest.warns(hl.LogWarning, match="step 15 do not compare.*: first batch.*: whole split"):
        both = hl.compare([trained, shorter], "eval")
    assert both.measured.sel(step=5).values.tolist() == [FIRST] * 2
    assert both.val_loss.isel(step=-1).notnull().values.tolist() == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hl.compare([trained, trained], "eval")


def test_a_pruned_run_keeps_its_loss_over_the_whole_split(trained, whole, half, tmp_path):
    out, report = half
    first, all_of_it = told(out), json.loads(headlab("eval", out, "--json"))
    assert (report["split"], report["examples"], report["whole_split"]) == ("val", 128, False)
    assert report["loss"] != pytest.approx(all_of_it["loss"], abs=1e-6)
    for name in "loss", "tokens", "examples":
        assert first[f"val/{name}"] == pytest.approx(all_of_it[name], rel=1e-6)
        assert report["on_whole_split"][name] == first[f"val/{name}"]
    assert first["val/whole_split"] == 1
    assert report["on_whole_split"]["loss_before"] == pytest.approx(whole["loss"], rel=1e-6)
    # The best is what training on would compare with: the run's eval_batches.
    again = json.loads(headlab("prune", out, "--count", 3, "--batches", 1, "--json"))
    assert best(out) == pytest.approx(again["loss"], rel=1e-6)
    with h5py.File(out / "pruning.h5") as file:
        loss = file["pruning/loss"]
        assert (loss.attrs["examples"], loss.attrs["whole_split"]) == (128, 0)
        assert "first 2 batches, 2,048 tokens" in loss.attrs["comment"]
    said = headlab("prune", trained, "--count", 3, "--batches", 2, "--out", tmp_path / "other")
    assert "val: first 2 batches, 2,048 tokens\n" in said
    assert f"over the whole split val, {whole['tokens']:,} tokens: loss {whole['loss']:.4f} -> " in said


def test_a_converted_run_keeps_its_loss_over_the_whole_split(trained, whole, tmp_path):
    out = tmp_path / "shared"
    report = json.loads(headlab("convert", trained, "--to", "collaborative", "--batches", 2,
                                "--out", out, "--json"))
    assert (report["examples"], report["whole_split"]) == (128, False)
    assert told(out)["val/loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert told(out)["val/examples"] == whole["examples"]
    assert report["on_whole_split"]["loss"] == told(out)["val/loss"]
    assert best(out) == pytest.approx(best_of_first_batch(trained), rel=1e-4)
    assert "whole split, " in headlab("convert", trained, "--to", "collaborative")


def best_of_first_batch(path):
    return json.loads(headlab("prune", path, "--count", 0, "--batches", 1, "--json"))["loss"]


def test_the_report_has_a_column_for_each_measure(page, trained, whole, half, tmp_path):
    half, _ = half
    (tmp_path / "two.html").write_text(report.build([trained, half]))
    page.show(tmp_path / "two.html")
    losses = page.run("""return [...document.querySelectorAll('#runs tbody tr')].map(row =>
        Object.fromEntries([...row.querySelectorAll('td')].map(
            cell => [cell.dataset.label, cell.textContent])))""")
    column = f"validation loss [nat], whole split, {whole['tokens']:,} tokens"
    assert losses[0][column] == f"{whole['loss']:.4f}"
    assert losses[1][column] == f"{told(half)['val/loss']:.4f}"
    said = json.loads((trained / "manifest.json").read_text())["references"]
    foot = page.run("""return [...document.querySelectorAll('#runs tfoot tr')].map(row =>
        [...row.querySelectorAll('td')].map(cell => [cell.dataset.label ?? cell.title, cell.textContent]))""")
    names = ["chance", "unigram", "bigram"]
    assert [row[0] for row in foot] == [
        [said[name]["comment"], f"{name}, accuracy {said[name]['accuracy']:.4f}"] for name in names]
    assert [dict(map(tuple, row))[column] for row in foot] == [
        f"{said[name]['loss']:.4f}" for name in names]
    first = f"validation loss [nat], {FIRST}"
    assert losses[0][first] and not losses[1][first]
    page.wait("return document.querySelector('#scalar-plot').data?.length == 3")
    drawn = page.run("return document.querySelector('#scalar-plot').data.map(t => [...t.x])")
    assert drawn[1:] == [[5, 10, 15], [20]]
    assert "A diamond stands apart" in text(page, "#scalar-note")
