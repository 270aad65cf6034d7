"""What headlab_log hands to other tools is what the log holds: BertViz, CircuitsVis, pandas, ..."""

import shutil
import subprocess

import h5py
import numpy as np
import pandas as pd
import pytest

from conftest import ROOT, log_command
from test_log_reading import expected_weights, writer

import headlab_log as hl

EXACT = 1e-5  # of weights that were packed into 16 bits


@pytest.fixture
def log(run):
    with h5py.File(run.path / "log.h5") as file:
        yield file


def weights_of(log, site="self"):
    data = log[f"attention/{site}/weights"]
    raw = data[:].astype(float)
    return np.where(raw == 65535, np.nan, raw / 65534)


@pytest.fixture
def pruned(small_run, tmp_path):
    """The small run without the heads of layer 0 and without head 1 of layer 1."""
    path = tmp_path / "pruned"
    shutil.copytree(small_run, path)
    with h5py.File(path / "log.h5", "r+") as log:
        for where in (0, slice(None)), (1, 1):
            log["heads/self/head_mask"][(slice(None), *where)] = 0
            log["attention/self/weights"][(slice(None), slice(None), *where)] = 65535
            for name in log["heads/self"]:
                if log["heads/self"][name].dtype.kind == "f":
                    log["heads/self"][name][(slice(None), *where)] = np.nan
    with hl.open_run(path) as run:
        yield run


@pytest.fixture(scope="module")
def two_sites(tmp_path_factory):
    """Maps of encoder and cross attention: padded, signed, of some layers and heads only."""
    path = tmp_path_factory.mktemp("sites")
    subprocess.run([writer(), str(path / "log.h5")], check=True)
    with hl.open_run(path) as run:
        yield run


def test_bertviz_gets_each_map_at_its_layer_and_head(run, log):
    given = hl.to_bertviz(run, step=10, probe=1)
    assert set(given) == {"attention", "tokens"} and len(given["attention"]) == 2
    for layer in range(2):
        assert given["attention"][layer].shape == (1, 3, 16, 16)
        np.testing.assert_allclose(
            given["attention"][layer][0], weights_of(log)[1, 1, layer], atol=EXACT)
    texts = [text.decode() for text in log["vocab/text"]]
    assert given["tokens"] == [hl.visible(texts[t]) for t in log["attention/self/key_token"][1]]


def test_a_slice_of_positions_cuts_queries_keys_and_tokens(run, log):
    given = hl.to_bertviz(run, positions=slice(2, 7))
    np.testing.assert_allclose(
        given["attention"][1][0], weights_of(log)[-1, 0, 1, :, 2:7, 2:7], atol=EXACT)
    assert given["tokens"] == [hl.visible(token) for token in run.tokens()[2:7]]


def test_pruned_heads_are_empty_maps_in_their_place(pruned):
    first, second = (np.asarray(layer)[0] for layer in hl.to_bertviz(pruned)["attention"])
    assert first.shape == (3, 16, 16) and not first.any()
    assert [bool(head.any()) for head in second] == [True, False, True]
    assert np.isfinite(second).all()


def test_padding_is_cut_off_and_layers_that_were_not_logged_are_not_offered(two_sites):
    given = hl.to_bertviz(two_sites, site="cross", probe=1)
    assert given["decoder_tokens"] == ["été", "été", "a"]
    assert given["encoder_tokens"] == ["été", "a", "a", "<pad>"]
    assert given["include_layers"] == [0, 2] and len(given["cross_attention"]) == 3
    maps = np.stack([np.asarray(layer)[0] for layer in given["cross_attention"]])
    assert maps.shape == (3, 4, 3, 4)
    np.testing.assert_allclose(
        maps[np.ix_([0, 2], [0, 1, 3])], expected_weights(-3)[-1, 1, :, :, :3, :4], rtol=1e-6)
    assert not maps[1].any() and not maps[:, 2].any()


def test_sites_of_an_encoder_decoder_have_the_names_of_bertviz(two_sites):
    given = hl.to_bertviz(two_sites, site=("encoder_self", "cross"), positions=5)
    assert set(given) == {"encoder_attention", "cross_attention", "encoder_tokens",
                          "decoder_tokens", "include_layers"}
    given = hl.to_bertviz(two_sites, site="encoder_self")  # of 5 queries and 6 keys
    assert len(given["decoder_tokens"]) == 5 and len(given["encoder_tokens"]) == 6


def test_circuitsvis_gets_the_heads_that_are_there_under_their_numbers(pruned):
    given = hl.to_circuitsvis(pruned, layer=None)
    assert given["attention_head_names"] == ["L1H0", "L1H2"]
    for index, head in enumerate((0, 2)):
        np.testing.assert_allclose(
            given["attention"][index], pruned.map(layer=1, head=head), atol=EXACT)
    assert given["mask_upper_tri"] and (given["min_value"], given["max_value"]) == (-1, 1)
    assert len(given["tokens"]) == 16
    with pytest.raises(hl.LogError, match="all heads of layer 0 are pruned"):
        hl.to_circuitsvis(pruned, layer=0)


def test_circuitsvis_is_told_of_signs_and_of_maps_that_look_ahead(two_sites):
    given = hl.to_circuitsvis(two_sites, layer=2, site="cross", positions=4)
    assert given["attention"].min() < -1 and not given["mask_upper_tri"]
    widest = abs(given["attention"]).max()
    assert (given["min_value"], given["max_value"]) == (-widest, widest)
    with pytest.raises(hl.LogError, match="different tokens"):
        hl.to_circuitsvis(two_sites, site="cross")


def test_transformer_lens_finds_each_layer_under_its_name(run, log):
    given = hl.to_transformer_lens(run)
    assert list(given) == ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]
    np.testing.assert_allclose(
        given["blocks.1.attn.hook_pattern"], weights_of(log)[-1, :, 1], atol=EXACT)


def test_transformer_lens_gets_zeros_where_a_probe_is_padded(two_sites):
    name = "decoder.2.cross_attn.hook_pattern"
    every = np.asarray(hl.to_transformer_lens(two_sites, site="cross")[name])
    assert every.shape == (2, 4, 5, 6)
    there = expected_weights(-3)[-1, :, 1]
    np.testing.assert_allclose(every[:, [0, 1, 3]], np.nan_to_num(there), rtol=1e-6)
    one = np.asarray(hl.to_transformer_lens(two_sites, site="cross", probe=1)[name])
    np.testing.assert_array_equal(one, every[1, :, :3, :4])
    assert list(hl.to_transformer_lens(two_sites, site="cross")) == [
        "decoder.0.cross_attn.hook_pattern", name]


def test_what_is_not_logged_is_refused_with_what_there_is(run):
    for wrong, said in (({"step": 7}, "0, 10, 20"), ({"site": "cross"}, "cross"),
                        ({"probe": 9}, "0, 1"), ({"layers": [5]}, "0, 1")):
        with pytest.raises(hl.LogError, match=said):
            hl.to_bertviz(run, **wrong)


def test_tables_have_a_row_a_head_and_a_column_a_statistic(run, log):
    heads = hl.to_pandas(run, "heads/self")
    assert heads.index.names == ["step", "layer", "head"] and len(heads) == 5 * 2 * 3
    assert "head_mask" not in heads and "js" not in heads
    for name in heads:
        np.testing.assert_array_equal(
            heads[name].to_numpy().reshape(5, 2, 3), log[f"heads/self/{name}"][:])
    pairs = hl.to_pandas(run, "heads/self", ("step", "layer", "head", "head2"))
    assert pairs.js[20, 1, 0, 2] == log["heads/self/js"][4, 1, 0, 2]
    scalars = hl.to_pandas(run, "scalars")
    np.testing.assert_array_equal(scalars.train_loss, log["scalars/train_loss"][:])


def test_tables_leave_pruned_heads_out(pruned):
    rows = hl.to_pandas(pruned, "heads/self").index
    assert set(rows.droplevel("step")) == {(1, 0), (1, 2)}
    with pytest.raises(hl.LogError, match="heads/self"):
        hl.to_pandas(pruned, "attention/self")
    with pytest.raises(hl.LogError, match="head2"):
        hl.to_pandas(pruned, "heads/self", ("step", "head"))


def test_csv_files_hold_what_the_log_holds(run, log, tmp_path):
    paths = hl.to_csv(run, tmp_path / "csv")
    assert sorted(paths) == sorted((tmp_path / "csv").iterdir())
    names = {path.name for path in paths}
    assert {"scalars.csv", "eval.csv", "heads_self.csv", "analysis_self.csv", "roles_self.csv",
            "ablation_self.csv", "variables.csv",
            "heads_self_by_step_layer_head_head2.csv"} <= names
    heads = pd.read_csv(tmp_path / "csv/heads_self.csv", dtype={"entropy": np.float32})
    np.testing.assert_array_equal(
        heads.entropy.to_numpy().reshape(5, 2, 3), log["heads/self/entropy"][:])
    what = pd.read_csv(tmp_path / "csv/variables.csv").set_index(["table", "column"])
    for column in ("ablation_self", "loss_delta"), ("analysis_self", "importance"):
        assert what.loc[column, "measured"] == "val of tinyshakespeare.txt, first 64 examples"
    assert what.units["heads_self", "entropy"] == "nat"


def test_the_programs_of_scripts_start_what_they_are_named_after():
    scripts = ROOT / "scripts"
    for name in "report", "to_csv", "to_tensorboard", "watch":
        assert (scripts / name).readlink().name == "log"
    for line, name in ([scripts / "to_csv"], "to_csv"), ([scripts / "log", "tensorboard"], "to_tensorboard"):
        done = subprocess.run([*line, "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith(f"usage: {name} "), done.stderr
    for name in "report", "watch", "figure", "roofline", "csv", "tensorboard":
        first, *_ = log_command(name, "--help").stdout.splitlines()
        assert first.startswith("usage: ") and f"{name} " in first


def test_without_a_command_that_there_is_the_ones_there_are_are_listed():
    for wrong in [], ["xml"]:
        done = log_command(*wrong)
        assert done.returncode == 2
        assert all(name in done.stderr for name in ("watch", "report", "figure", "roofline", "csv", "tensorboard"))
    assert "writes what a run logged as CSV files" in log_command("--help").stdout


def test_to_csv_prints_what_it_wrote_and_names_what_it_cannot_read(run, tmp_path):
    done = log_command("csv", run.path, "-o", tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert str(tmp_path / "scalars.csv") in done.stdout.splitlines()
    done = log_command("csv", tmp_path / "nothing")
    assert done.returncode == 4 and done.stderr.startswith(f"to_csv: {tmp_path / 'nothing'}: ")
