"""headlab_log reads runs: maps, statistics, results, comparisons."""

import doctest
import importlib
import json
import pkgutil
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import xarray as xr

from conftest import headlab, program, train

import headlab_log as hl
from headlab_log.files import groups


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    """Two seeds of a kind that routes."""
    out = tmp_path_factory.mktemp("routed")
    return [train(out, "char_moh", f"seed={seed}", "model.heads=4") for seed in (1, 2)]


def modules():
    return [m.name for m in pkgutil.walk_packages(hl.__path__, "headlab_log.")
            if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_of_docstrings_run(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, globs={"hl": hl, "run": run, "np": np})
    assert failed == 0


def test_what_the_package_exports_has_an_example():
    without = [name for name in hl.__all__ if callable(getattr(hl, name))
               and not isinstance(getattr(hl, name), type)
               and ">>> " not in (getattr(hl, name).__doc__ or "")]
    assert without == ["labels"]  # which serves `compare`


def test_maps_are_those_of_the_file(run):
    with h5py.File(run.path / "log.h5") as file:
        group = file["attention/self"]
        raw = group["weights"][1, 1, 1, 2]
        texts = file["vocab/text"].asstr()[:]
        tokens = [texts[t] for t in group["key_token"][1]]
    np.testing.assert_allclose(run.map(10, probe=1, layer=1, head=2), raw / 65534, atol=1e-7)
    assert run.tokens(1) == tokens
    assert list(run.map(probe=1).key_text.values) == tokens
    assert run.map().equals(run.map(step=20))


def test_what_is_not_logged_is_named(run):
    with pytest.raises(hl.LogError, match=r"log\.h5: step 7 is not logged; there are 0, 10, 20"):
        run.map(step=7)
    with pytest.raises(hl.LogError, match="head 3 is not logged; there are 0, 1, 2"):
        run.map(head=3)
    with pytest.raises(hl.LogError, match="has no attention/cross; it has: .*attention/self"):
        run.map(site="cross")
    with pytest.raises(hl.LogError, match="has no heads/cross; it has: .*heads/self"):
        run.alive("cross")
    with pytest.raises(hl.LogError, match=r"log\.h5: step 3 is not logged; there are 0, 5, 10"):
        run.alive(step=3)


def test_what_a_run_has_is_asked_with_in_and_listed_by_iteration(run):
    with h5py.File(run.path / "log.h5") as log:
        logged = groups(log)
    assert {"scalars", "eval", "heads/self", "attention/self"} <= set(logged)
    assert sorted(run) == sorted([*logged, "ablation/self", "analysis/self", "roles/self"])
    assert all(name in run for name in run)
    assert all(name in run for name in ("heads", "ablation", "roles"))  # at whichever site
    assert not any(name in run for name in ("heads/cross", "head", "pruning", "scalars/step", ""))


@pytest.fixture
def bare(small_run, tmp_path):
    """A run that trained without statistics and maps, and that no command has looked at."""
    shutil.copytree(small_run, tmp_path / "bare")
    for name in "analysis.h5", "ablation.h5":
        (tmp_path / "bare" / name).unlink()
    with h5py.File(tmp_path / "bare/log.h5", "r+") as log:
        del log["heads"], log["attention"]
    with hl.open_run(tmp_path / "bare") as run:
        yield run


@pytest.mark.parametrize("ask, absent, remedy", [
    (lambda run: run.ablation(), "ablation", "`headlab ablate {run}` makes it"),
    (lambda run: run.analysis(), "analysis", "`headlab analyze {run}` makes it"),
    (lambda run: run.roles(), "roles", "`headlab analyze {run}` makes it"),
    (lambda run: run.pruning, "pruning", "`headlab prune {run} --out DIR` makes it in DIR"),
    (lambda run: run.heads(), "heads", ""),
    (lambda run: run.alive(), "heads", ""),
    (lambda run: run.attention(), "attention", "log.attention.every"),
    (lambda run: run.map(), "attention", "log.attention.every"),
    (lambda run: run.tokens(), "attention", "log.attention.every"),
    (lambda run: hl.to_bertviz(run), "attention", "log.attention.every"),
    (lambda run: run.group("ablation/self"), "ablation", "`headlab ablate {run}` makes it"),
    (lambda run: run.group("nonsense"), "nonsense", ""),
])
def test_what_a_run_has_not_is_told_with_what_it_has_and_what_makes_it(bare, ask, absent, remedy):
    with pytest.raises(hl.LogError) as told:
        ask(bare)
    said = str(told.value)
    there = ", ".join(bare)
    assert "scalars" in there and "eval" in there
    assert said.startswith(f"{bare.path} has no {absent}; it has: {there}")
    assert remedy.format(run=bare.path) in said


def test_what_was_measured_since_a_run_was_opened_is_there(small_run, bare):
    with pytest.raises(hl.LogError):
        bare.ablation()
    shutil.copy(small_run / "ablation.h5", bare.path)
    assert "ablation" in bare and bare.ablation().sizes["head"] == 3


def test_a_file_without_a_group_names_those_it_has(small_run):
    with pytest.raises(hl.LogError, match=r"ablation\.h5 has no scalars; it has: ablation/self"):
        hl.open_group(small_run / "ablation.h5", "scalars")


def test_no_step_and_minus_one_mean_the_last_step(run):
    assert int(run.map().step) == int(run.map(step=None).step) == int(run.map(step=-1).step) == 20
    assert int(run.alive(step=None).step) == 20
    last, given = (hl.to_bertviz(run, step=step)["attention"] for step in (20, None))
    np.testing.assert_array_equal(np.stack(last), np.stack(given))
    assert "step 20," in hl.bertviz_html(run, step=None).html


@pytest.fixture
def padded(tmp_path):
    """A log with an encoder and cross attention, a pruned head and padded probes."""
    writer = program().removesuffix("headlab") + "headlab_write_log"
    subprocess.run([writer, str(tmp_path / "log.h5")], check=True)
    with hl.open_run(tmp_path) as run:
        yield run


@pytest.mark.parametrize("file", ["log", "analysis", "ablation", "padded"])
def test_groups_are_read_as_xarray_reads_them(file, small_run, request):
    path = small_run / f"{file}.h5"
    if file == "padded":
        path = request.getfixturevalue("padded").path / "log.h5"
    with h5py.File(path) as opened:
        names = groups(opened)
    assert names
    for name in names:
        with xr.open_dataset(path, group=name, engine="h5netcdf") as expected:
            for variable in expected.variables.values():  # which pictures would show
                if variable.attrs.get("units") == "1":
                    del variable.attrs["units"]
            found = hl.open_group(path, name)
            xr.testing.assert_identical(found, expected)
            assert set(found.indexes) == set(expected.indexes)
            assert found.dtypes == expected.dtypes


def test_a_map_is_drawn_with_its_first_query_on_top_and_without_a_unit(run):
    from matplotlib import pyplot as plt

    for one in run.map(), run.map() * 2:
        axes = one.plot().axes
        bottom, top = axes.get_ylim()
        assert bottom > top and axes.get_ylabel() == "query position"
        assert not any("[1]" in text.get_text() for text in axes.figure.findobj(plt.Text))
        plt.close("all")
    assert run.map().sum("key").plot()  # which is no map, but a line
    heads = run.heads()
    assert "units" not in heads.prev_token.attrs and heads.entropy.attrs["units"] == "nat"
    assert "units" not in run.attention().weights.attrs


def test_padding_is_cropped_and_pruned_heads_are_known(padded):
    assert set(padded.sites) >= {"encoder_self", "cross"}
    one = padded.map(40, probe=1, layer=2, head=3, site="encoder_self")
    assert one.sizes == {"query": 3, "key": 4} and not one.isnull().any()
    assert padded.tokens(1, "encoder_self", "query") == ["été", "été", "a"]
    alive = padded.alive("encoder_self")
    assert not alive.sel(layer=1, head=1) and int(alive.sum()) == 11


def test_runs_are_compared_over_kinds_and_seeds(small_run, routed):
    both = hl.compare([small_run, *routed], "eval")
    assert both.val_loss.dims == ("run", "step")
    np.testing.assert_array_equal(both.kind, ["mha", "moh", "moh"])
    np.testing.assert_array_equal(both.run, ["char_mha s1337", "char_moh s1", "char_moh s2"])
    means = both.val_loss.isel(step=-1).groupby("name").mean()
    np.testing.assert_allclose(means.sel(name="char_moh"), both.val_loss[1:, -1].mean())
    heads = hl.compare([small_run, *routed], "heads/self")
    assert heads.identical(hl.compare([small_run, *routed], "heads"))  # its only site
    assert heads.sizes["head"] == 4
    assert heads.entropy.sel(run="char_mha s1337", head=3).isnull().all()
    assert heads.load_entropy.sel(run="char_mha s1337").isnull().all()
    assert not heads.load_entropy.sel(run="char_moh s1").isnull().any()


def test_one_run_is_compared_as_well_as_several(small_run, run):
    for one in small_run, str(small_run), run:
        assert hl.compare(one, "eval").sizes["run"] == 1


def test_equal_labels_are_told_apart_by_their_directories(small_run, tmp_path):
    other = tmp_path / "another-s1337"
    shutil.copytree(small_run, other)
    labels = hl.compare([small_run, other]).run.values
    assert labels[0] == f"char_mha s1337 {small_run.name}" and labels[0] != labels[1]


def test_one_config_in_two_folders_is_told_apart_by_the_paths(small_run, tmp_path):
    paths = [tmp_path / folder / small_run.name for folder in ("before", "after")]
    for path in paths:
        shutil.copytree(small_run, path)
    both = hl.compare(paths, "eval")
    assert list(both.run.values) == [f"char_mha s1337 {path}" for path in paths]


def test_runs_of_one_kind_by_different_code_are_told_with_a_warning(small_run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(small_run, other)
    same = hl.compare([small_run, other])
    assert len(set(same.code.values)) == 1 and len(same.code.values[0]) == 8
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["previous"] = [{"code": {"kinds": {"mha": "0"}}}]
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(hl.LogWarning, match="differ in the code of their heads"):
        assert len(set(hl.compare([small_run, other]).code.values)) == 2
    del manifest["code"], manifest["previous"]
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(hl.LogWarning, match="not known: other"):
        hl.compare([small_run, other])


def test_settings_that_differ_are_listed_by_their_override(small_run, routed):
    table = hl.differences([small_run, routed[0]])
    assert list(table.columns) == ["char_mha s1337", "char_moh s1"]
    assert list(table.loc["model.heads"]) == [3, 4]
    assert list(table.loc["model.attention.shared"]) == [None, 1]
    assert "train.steps" not in table.index


def test_comparing_names_the_run_that_lacks_the_group(small_run, routed):
    other = routed[0]
    with pytest.raises(hl.LogError, match=f"{other.name} has no analysis; it has: "):
        hl.compare([small_run, other], "analysis/self")


def test_results_beside_the_log_belong_to_the_run(run):
    assert run.analysis().entropy.dims == ("layer", "head")
    assert set(run.roles().data_vars) >= {"previous", "induction"}
    assert run.ablation().loss_delta.dims == ("mode", "layer", "head")
    assert "pruning" not in run and "heads/cross" not in run


def test_an_analysis_says_on_what_it_was_measured(run):
    measured = run.analysis()
    with h5py.File(run.path / "analysis.h5") as file:
        assert file.attrs["title"] == "analysis on val of char_mha"
    assert measured.importance.attrs["examples"] == measured.entropy.attrs["examples"] == 64
    assert measured.importance.attrs["whole_split"] == 0
    of_weights = measured.qk_rank_95, measured.induction_repeated
    assert not any("whole_split" in statistic.attrs for statistic in of_weights)


def test_maps_of_an_analysis_say_their_tokens(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    headlab("analyze", run, "--text", "To be", "--maps", 1)
    with hl.open_run(run) as opened:
        of = list(opened.results)[-1].removeprefix("analysis-")
        weights = opened.analysis(of=of).attention.sel(example=0, layer=1, head=2)
        assert weights.key_text.values.tolist() == weights.query_text.values.tolist() == list("To be")
        assert float(weights.sel(query=0, key=0)) == 1


def test_a_pruned_run_without_a_log_opens(small_run, tmp_path):
    headlab("prune", small_run, "--count", 2, "--slice", "--batches", 1, "--out", tmp_path / "p")
    with hl.open_run(tmp_path / "p") as run:
        with pytest.raises(hl.LogError) as told:
            run.heads()
        assert "pruned without --tune, so not trained" in str(told.value)
        assert f"`headlab analyze {run.path}` measures its heads" in str(told.value)
        assert str(told.value).endswith(f"what training logged is in {small_run}")
        headlab("analyze", run.path, "--batches", 1)
        assert run.analysis().entropy.isnull().sum() == 2
        (run.path / "analysis.h5").unlink()
        assert list(run) == ["pruning"] and run.sites == () and run.name == "p"
        assert int(run.pruning.kept[-1]) == 4
        for asked, ask in ("attention", run.map), ("scalars", lambda: run.scalars):
            with pytest.raises(hl.LogError) as told:
                ask()
            assert f"has no {asked}; it has: pruning; it has no log.h5" in str(told.value)
