"""A comparison as labelled arrays and as a figure: the numbers are those of its compare.json."""

import json
import math
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import pyplot as plt

from comparison_testing import folder_of, written, written_arm
from conftest import ROOT, log_command

import headlab_log as hl
from headlab_log import plots


@pytest.fixture
def folder(compared):
    return folder_of(compared[0])


@pytest.fixture
def task(folder):
    return hl.open_comparison(folder).task()


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def same(array, values):
    """Whether numbers are those of JSON, where None is not there."""
    return np.array_equal(np.ravel(np.asarray(array, dtype=float)),
                          np.array([math.nan if value is None else value for value in values], dtype=float),
                          equal_nan=True)


# --- arrays ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["compared", "docs/kinds.json"])
def test_arrays_hold_the_numbers_of_the_file(folder, source):
    """Of a comparison of the program, and of the large one that is kept for docs/kinds.md."""
    file = folder / "compare.json" if source == "compared" else ROOT / source
    kept, found = json.loads(file.read_text()), hl.open_comparison(file)
    assert found.tasks == tuple(task["name"] for task in kept["tasks"]) == tuple(found)
    assert (found.baseline, found.seeds) == (kept["baseline"], kept["seeds"])
    for said in kept["tasks"]:
        task = found[said["name"]]
        assert list(task.arms["arm"].values) == [arm["name"] for arm in said["arms"]]
        for arm in said["arms"]:
            name = arm["name"]
            assert same(task.arms.parameters.sel(arm=name), [arm.get("parameters")])
            assert same(task.arms.rate.sel(arm=name), [arm.get("rate", {}).get("chosen")])
            for metric, of in arm.get("metrics", {}).items():
                label, difference = metric.replace("/", "_"), of["difference"] or {}
                assert same(task.metrics[label].sel(arm=name), of["values"])
                one = task.differences.sel(arm=name, metric=label)
                assert same(one.difference, [difference.get("mean")])
                assert same([one.low, one.high], difference.get("interval") or [None, None])
                assert same([one.p, one.p_holm], [difference.get("p"), difference.get("p_holm")])
                assert same(one.of_seed, difference.get("values", [None] * len(found.seeds)))
                assert bool(one.reported) == difference.get("reported", False)
            for point in arm.get("curve", []):
                at = task.curves.sel(arm=name, step=point["step"])
                assert same([at.val_loss, at.low, at.high, at.flops],
                            [point["val/loss"], *(point["interval"] or [None] * 2), point["flops"]])
            for tried in arm.get("rate", {}).get("tried", []):
                assert same(task.tried.sel(arm=name, rate=tried["rate"]), [tried["val/loss"]])


def test_arrays_have_labels_and_units(task):
    assert task.losses.dims == ("arm", "seed") and list(task.losses.seed.values) == [1, 2, 3]
    assert task.losses.attrs["units"] == "nat" and task.arms.wall_s.attrs["units"] == "s"
    assert task.curves.val_loss.dims == ("arm", "step") and task.curves.val_loss.attrs["units"] == "nat"
    assert task.differences.difference.dims == ("metric", "arm")
    assert list(task.differences["metric"].values) == ["val_loss", "val_accuracy"]  # the loss first
    assert (task.losses.mean("seed") - task.losses.sel(arm="mha").mean("seed")).sel(arm="wider").item() == (
        pytest.approx(task.differences.difference.sel(metric="val_loss", arm="wider").item()))
    assert task.measured_on["examples"] == 64 and task.arms.heads_entropy.sel(arm="mha") > 0


def test_an_arm_without_statistics_is_nan_with_its_reason(task):
    assert list(task.reasons) == ["linformer"] and "cannot be causal" in task.reasons["linformer"]
    assert np.isnan(task.losses.sel(arm="linformer")).all()
    assert np.isnan(task.curves.val_loss.sel(arm="linformer")).all()
    assert not task.differences.reported.sel(arm="linformer").any()
    assert task.arms.state.sel(arm="linformer") == "impossible"
    with pytest.raises(hl.LogError, match="linformer has no runs: .*cannot be causal"):
        task.run("linformer")


def test_the_runs_of_an_arm_are_opened_when_they_are_asked_for(task):
    with task.run("wider", seed=2) as run:
        assert run.seed == 2 and run.config["model"]["head_dim"] == 16
        assert run.evaluations.val_loss[-1].item() == pytest.approx(task.losses.sel(arm="wider", seed=2).item())
    runs = task.runs("mha")
    assert [run.seed for run in runs] == [1, 2, 3]
    assert [run.path for run in runs] == [run.path for run in task.runs("again")]  # trained once
    for run in runs:
        run.close()
    with pytest.raises(hl.LogError, match="mha has no run of seed 9; there are 1, 2, 3"):
        task.run("mha", 9)
    with pytest.raises(hl.LogError, match="no arm is called 'mhaa'; there are: mha, wider"):
        task.run("mhaa")


def test_runs_are_found_beside_a_comparison_that_was_moved(compared, tmp_path):
    shutil.copytree(compared[0] / "runs", tmp_path / "moved", symlinks=True)
    task = hl.open_comparison(folder_of(tmp_path, "moved")).task()
    with task.run("mha", 1) as run:
        assert run.path.is_relative_to(tmp_path / "moved") and run.seed == 1


def test_a_run_that_is_gone_is_named_with_the_remedy(tmp_path):
    task = hl.open_comparison(written(tmp_path / "c", [written_arm("mha", 2.0)])).task()
    with pytest.raises(hl.LogError, match="small/mha-s1: the run is no longer there; .*trains it again"):
        task.run("mha")


def test_numbers_that_later_versions_add_are_there_under_their_names(tmp_path):
    mha, moh = written_arm("mha", 2.0), written_arm("moh", 1.9, -0.1, True)
    moh["metrics"]["val/loss"]["difference"]["tellable"] = 0.05
    moh["solved"] = {"share": 0.8, "test": "fisher"}
    task = hl.open_comparison(written(tmp_path / "c", [mha, moh])).task()
    assert same(task.differences.tellable.sel(metric="val_loss"), [None, 0.05])
    assert same(task.arms.solved_share, [None, 0.8])
    assert list(task.arms.solved_test.values) == ["", "fisher"]


def test_losses_after_shares_of_the_steps_are_labelled_and_whether_the_order_has_settled_is_there(tmp_path):
    mha, moh = written_arm("mha", 2.0), written_arm("moh", 1.9, -0.1)
    mha["lengths"] = [{"length": 0.5, "val/loss": [2.3, 2.4, 2.5], "runs": []},
                      {"length": 1, "val/loss": [1.99, 2.0, 2.01]}]
    moh["lengths"] = [{"length": 1, "val/loss": [1.89, 1.9, 1.91]}]
    settled = {"text": "The order of the arms has not settled: why.", "settled": False, "tau": 0.5, "interval": [0, 1]}
    folder = written(tmp_path / "c", [mha, moh], settled=settled)
    task = hl.open_comparison(folder).task()
    assert task.lengths.dims == ("arm", "length", "seed") and task.lengths.attrs["units"] == "nat"
    assert task.lengths.name == "val_loss" and list(task.lengths["length"].values) == [0.5, 1]
    assert same(task.lengths.sel(arm="mha"), [2.3, 2.4, 2.5, 1.99, 2.0, 2.01])
    assert same(task.lengths.sel(arm="moh"), [None, None, None, 1.89, 1.9, 1.91])
    assert same(task.lengths.sel(length=1), task.losses.values.ravel())
    assert task.settled == settled
    written(folder, [written_arm("mha", 2.0)], settled=None)
    older = hl.open_comparison(folder).task()
    assert older.settled == {} and older.lengths.shape == (1, 0, 3)


def test_references_are_those_of_the_comparison_or_of_the_manifest_of_a_run(tmp_path):
    references = {"chance": {"loss": 4.174, "accuracy": 0.015, "comment": "a guess"},
                  "bigram": {"loss": 2.48, "comment": "counts"}, "units": {"loss": "nat"},
                  "measured_on": {"tokens": 9}}
    folder = written(tmp_path / "runs/comparisons/c", [written_arm("mha", 2.0)], references=references)
    found = hl.open_comparison(folder).task().references
    assert list(found["reference"].values) == ["chance", "bigram"]
    assert same(found.val_loss, [4.174, 2.48]) and same(found.val_accuracy, [0.015, None])
    assert [text.get_text() for text in plots.comparison(hl.open_comparison(folder).task()).axes[0].texts] == [
        "chance", "bigram"]
    written(folder, [written_arm("mha", 2.0)])
    assert hl.open_comparison(folder).task().references.sizes["reference"] == 0
    run = tmp_path / "runs/small/mha-s1"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"references": references}))
    (run / "config.yaml").touch()
    assert hl.open_comparison(folder).task().references.identical(found)


def test_what_an_older_comparison_lacks_is_not_there_and_no_error(tmp_path):
    arms = [{"name": "mha", "metrics": {"val/loss": {"values": [2.0, "NaN", 2.2]}}}, {"name": "moh", "curve": None}]
    task = hl.open_comparison(written(tmp_path / "c", arms)).task()
    assert same(task.losses.sel(arm="mha"), [2.0, None, 2.2])
    assert np.isnan(task.differences.difference).all() and not task.differences.reported.any()
    assert task.curves.sizes == {"arm": 2, "step": 0} and task.tried.sizes["rate"] == 0
    assert task.reasons == {"moh": "not known why"} and task.references.sizes["reference"] == 0


def test_a_path_without_a_comparison_is_named_with_the_remedy(compared, tmp_path):
    with pytest.raises(hl.LogError, match="nowhere: there is no such comparison"):
        hl.open_comparison(tmp_path / "nowhere")
    with pytest.raises(hl.LogError, match=r"no comparison \(no compare.json\); `headlab compare FILE` names its"):
        hl.open_comparison(tmp_path)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/compare.yaml").touch()
    with pytest.raises(hl.LogError, match="begun: this comparison has not ended .*goes on with it"):
        hl.open_comparison(tmp_path / "begun")
    assert hl.open_comparison(compared[0] / "runs").path == folder_of(compared[0])
    for name in "a", "b":
        written(tmp_path / name, [written_arm("mha", 2.0)])
    (tmp_path / "runs/comparisons").mkdir(parents=True)
    for name in "a", "b":
        (tmp_path / name).rename(tmp_path / "runs/comparisons" / name)
    with pytest.raises(hl.LogError, match="holds 2 comparisons; name one of them: .*comparisons/a, .*comparisons/b"):
        hl.open_comparison(tmp_path / "runs")


@pytest.mark.parametrize("damage, said", [
    (lambda kept: '{"tasks": [', "it is no JSON"),
    (lambda kept: "[" * 100_000, "it is no JSON"),
    (lambda kept: "[]", "it is no mapping"),
    (lambda kept: {**kept, "baseline": None}, "baseline is no text"),
    (lambda kept: {**kept, "seeds": [True]}, "seeds is no whole number"),
    (lambda kept: {**kept, "tasks": []}, "tasks: there is none"),
    (lambda kept: {**kept, "tasks": kept["tasks"] * 2}, "tasks: two have one name"),
    (lambda kept: {**kept, "tasks": [{"name": "t", "arms": [3]}]}, r"tasks\[0\]\.arms\[0\] is no mapping"),
    (lambda kept: {**kept, "tasks": [{"name": "t", "arms": [{"name": "a"}] * 2}]}, "two arms have the name a"),
])
def test_a_damaged_file_is_named_with_the_place_and_the_remedy(tmp_path, damage, said):
    file = written(tmp_path / "c", [written_arm("mha", 2.0)]) / "compare.json"
    broken = damage(json.loads(file.read_text()))
    file.write_text(broken if isinstance(broken, str) else json.dumps(broken))
    with pytest.raises(hl.LogError, match=f"compare.json: is damaged .*{said}.*makes it anew"):
        hl.open_comparison(tmp_path / "c")


@pytest.mark.parametrize("key, value, ask, said", [
    ("curve", [{"step": "8"}], lambda task: task.curves, "mha: curve: step is no whole number"),
    ("curve", [8], lambda task: task.curves, "mha: curve is no mapping"),
    ("runs", [{"seed": [1], "run": "x"}], lambda task: task.run("mha"), "mha: runs: seed is no whole number"),
    ("rate", {"tried": [{"rate": "x"}]}, lambda task: task.tried, "'x' is no number"),
    ("lengths", [{"length": "half"}], lambda task: task.lengths, "mha: lengths: length: 'half' is no number"),
    ("lengths", [{"length": 1, "val/loss": [1.0]}], lambda task: task.lengths, "mha: values: there are 1 of 3 seeds"),
    ("metrics", {"val/loss": 3}, lambda task: task.losses, "mha: metrics: val/loss is no mapping"),
])
def test_what_does_not_fit_is_named_when_it_is_asked_for(tmp_path, key, value, ask, said):
    task = hl.open_comparison(written(tmp_path / "c", [written_arm("mha", 2.0) | {key: value}])).task()
    with pytest.raises(hl.LogError, match=f"is damaged .*{said}"):
        ask(task)


@pytest.mark.parametrize("values, said", [([2.0, "two", 2.0], "'two' is no number"), ([2.0], "there are 1 of 3 seeds"),
                                          (2.0, "is no list")])
def test_values_that_are_no_numbers_of_the_seeds_are_damage(tmp_path, values, said):
    arm = written_arm("mha", 2.0)
    arm["metrics"]["val/loss"]["values"] = values
    with pytest.raises(hl.LogError, match=f"mha: values.*{said}"):
        hl.open_comparison(written(tmp_path / "c", [arm])).task().losses


# --- figures -----------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path):
    """25 arms: one has no statistics, each fifth is reported, and chance has a loss."""
    arms = [written_arm("mha", 2.0)]
    arms += [written_arm(f"kind_{n}", 2.0 + 0.01 * n, 0.01 * n, n % 5 == 0) for n in range(1, 24)]
    arms.append({"name": "linformer", "state": "impossible", "reason": "it cannot be causal"})
    folder = written(tmp_path / "many-0123abcd", arms, references={"chance": {"val/loss": 2.8}})
    return hl.open_comparison(folder)


def test_a_figure_of_25_arms_names_each_once_and_stars_the_reported(many):
    figure = plots.comparison(many.task())
    left, right = figure.axes
    names = [label.get_text() for label in right.get_yticklabels()]
    assert names == ["mha", *(f"kind_{n}" for n in range(1, 24)), "linformer"]  # the lowest loss on top
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in right.get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in zip(boxes, boxes[1:]))
    assert all(box.x0 > left.get_window_extent().x1 for box in boxes)  # beside the curves, not over them
    said = [text.get_text() for text in right.texts]
    assert said.count("*") == 4 and said.count("no statistics") == 1
    filled = [line for line in right.lines if line.get_marker() == "o" and line.get_mfc() != "white"]
    assert len(filled) == 4
    styles = [(line.get_color(), line.get_linestyle()) for line in left.lines[:24]]
    assert len(set(styles)) == 24
    assert [text.get_text() for text in left.texts] == ["chance"]
    assert len(left.collections) == 1  # the band of the baseline: 24 would hide each other


def test_the_figure_shows_the_numbers_of_the_comparison(task, tmp_path):
    left, _ = plots.comparison(task).axes
    curve = task.curves.val_loss.sel(arm="wider").values
    assert any(np.array_equal(line.get_ydata(), curve) for line in left.lines)
    assert len(left.collections) == 3  # bands of all arms that have statistics
    assert task.name == left.get_title()
    arms = [written_arm("mha", 2.0), written_arm("worse", 2.1, 0.1), written_arm("better", 1.9, -0.1, True)]
    _, right = plots.comparison(hl.open_comparison(written(tmp_path / "c", arms)).task()).axes
    points = {line.get_ydata()[0]: line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"}
    assert points == {0: -0.1, 2: 0.1}  # the lowest loss on top
    ends = [list(line.get_xdata()) for line in right.lines if line.get_marker() == "None" and line.get_lw() == 1.2]
    assert ends == [pytest.approx([-0.12, -0.08]), pytest.approx([0.08, 0.12])]


def test_of_a_task_that_is_solved_or_not_the_figure_shows_how_many_seeds_solved_it(tmp_path):
    arms = [written_arm("mha", 2.0), written_arm("moh", 1.9, -0.1), {"name": "none", "reason": "no place"}]
    arms[0]["solved"] = {"seeds": [False, True, False], "count": 1, "of": 3, "updates": [None, 16, None],
                         "fisher": None, "log_rank": None, "median": None}
    arms[1]["solved"] = {"seeds": [True] * 3, "count": 3, "of": 3, "updates": [8, 16, 8], "median": 8,
                         "fisher": {"p": 0.01, "p_holm": 0.02, "reported": True}, "log_rank": None}
    task = hl.open_comparison(written(tmp_path / "c", arms)).task()
    assert same(task.solved.solved, [0, 1, 0, 1, 1, 1, None, None, None])
    assert same(task.solved.updates, [None, 16, None, 8, 16, 8, None, None, None])
    assert same(task.arms.solved_fisher_p_holm, [None, 0.02, None])
    _, right = plots.comparison(task).axes
    assert right.get_title() == "seeds that solved it, of 3"
    points = {line.get_ydata()[0]: line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"}
    assert points == {0: 3, 1: 1}
    assert [text.get_text() for text in right.texts] == ["*", "no statistics"]


def test_figures_are_written_as_png_and_svg_and_the_same_ones_again(many, folder, tmp_path):
    for again in "one", "two":
        done = log_command("figure", many.path, "-o", tmp_path / again)
        assert done.returncode == 0, done.stderr
        png, svg = map(str, (tmp_path / again / "compare.png", tmp_path / again / "compare.svg"))
        assert done.stdout.splitlines() == [png, svg]
    assert (tmp_path / "one/compare.png").read_bytes().startswith(b"\x89PNG\r\n")
    drawing = (tmp_path / "one/compare.svg").read_text()
    assert drawing == (tmp_path / "two/compare.svg").read_text()
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert [path.name for path in folder.iterdir() if path.suffix in (".png", ".svg")] == []


def test_figures_stand_beside_the_comparison_where_no_folder_is_named_one_a_task(many):
    kept = json.loads(many.file.read_text())
    kept["tasks"].append({**kept["tasks"][0], "name": "a/b"})
    many.file.write_text(json.dumps(kept))
    assert log_command("figure", many.path).returncode == 0
    assert sorted(path.name for path in many.path.iterdir()) == [
        "compare.json", "compare_a_b.png", "compare_a_b.svg", "compare_small.png", "compare_small.svg"]


def test_figure_says_what_it_cannot_read(tmp_path):
    done = log_command("figure", tmp_path)
    assert done.returncode == 4 and done.stderr.startswith(f"figure: {tmp_path}: no comparison (no compare.json)")
