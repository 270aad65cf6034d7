"""A model of several sites goes through everything: headlab_extended is the program with an
encoder, a decoder and the cross-attention between them in it (tests/translator.cpp)."""

import json
import pathlib
import re
import subprocess

import h5py
import headlab_log
import numpy as np
import pytest
from conftest import ROOT, program

SITES = ["cross", "decoder_self", "encoder_self"]
CONFIG = """
name: backwards
data: {kind: backwards, symbols: 8, context: 8, eval_examples: 64}
model:
  kind: translator
  encoder: {layers: 1, d_model: 24, heads: 3, dropout: 0.1}
  decoder: {layers: 1, d_model: 24, heads: 3, dropout: 0.1, cross: {kind: mha}}
train: {steps: 40, batch: 16, lr: 5.0e-3, warmup: 5, eval_every: 10, eval_batches: 1,
        checkpoint: {every: 20, keep_last: 3}}
log: {every: 5, stats_every: 5, stats: all, attention: {every: 20, probes: 3}}
"""


def translator(*arguments, code=0):
    path = pathlib.Path(program()).parent / "headlab_extended"
    if not path.is_file():
        pytest.fail(f"{path} is not built")
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def found(*arguments):
    return json.loads(translator(*arguments, "--json"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    (folder / "backwards.yaml").write_text(CONFIG)
    translator("run", folder / "backwards.yaml", "--out", folder)
    return next(folder.glob("backwards/*"))


def test_it_learns_and_its_log_has_every_site(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["val/loss"] for row in rows if "val/loss" in row]
    assert losses[-1] < losses[0] - 0.02
    with h5py.File(run / "log.h5") as log:
        assert sorted(log["heads"]) == sorted(log["attention"]) == SITES
        for site in SITES:
            assert log[f"heads/{site}/entropy"].shape == (9, 1, 3)
            assert np.isfinite(log[f"heads/{site}/entropy"][:]).all()
        # A query of the cross-attention stands in another text than its keys.
        assert np.isnan(log["heads/cross/prev_token"][:]).all()
        assert np.isfinite(log["heads/encoder_self/prev_token"][:]).all()


def test_statistics_of_several_sites_are_asked_for_by_their_site(run):
    with headlab_log.open_run(run) as opened:
        assert opened.group("heads/cross").sizes["head"] == 3
        with pytest.raises(headlab_log.LogError, match="has heads at 3 sites; name one of them: "
                           "heads/cross, heads/decoder_self, heads/encoder_self"):
            headlab_log.compare([opened], "heads")


def test_rows_of_padding_are_neither_logged_nor_counted(run):
    with h5py.File(run / "log.h5") as log:
        for site in SITES:
            group = log[f"attention/{site}"]
            lengths, weights = group["query_length"][:], group["weights"][:]
            assert sorted(set(lengths)) != [8]
            none = weights == 65535
            for probe, length in enumerate(lengths):
                assert not none[:, probe, :, :, :length, :length].any()
                assert none[:, probe, :, :, length:, :].all()
                assert none[:, probe, :, :, :, length:].all()
                sums = weights[:, probe, :, :, :length, :length].sum(-1) / 65534
                assert np.allclose(sums, 1, atol=1e-3)
        # A fresh encoder weighs all keys alike: a row of n keys has an entropy of ln n, and as
        # many rows as there are keys count.
        assert (log["heads/encoder_self/entropy"][0] < np.log(8) - 0.1).all()
        assert np.allclose(log["heads/encoder_self/entropy_normalized"][0], 1, atol=1e-3)


def test_every_head_of_every_site_is_ablated_as_pruning_takes_it_away(run, tmp_path):
    ablated = found("ablate", run, "--batches", 1, "--out", tmp_path / "a.h5")
    heads = [f"{site}/0:{head}" for site in SITES for head in range(3)]
    assert ablated["removed"] == heads
    for n in 1, 3, 8:  # a head of each site
        head = heads[n]
        pruned = found("prune", run, "--heads", head, "--batches", 1, "--bench-batch", 1)
        for change in ("loss_delta", "l2", "kl", "accuracy_delta"):
            assert ablated[change][n] == pytest.approx(pruned[change], rel=1e-4, abs=1e-7), head
    with h5py.File(tmp_path / "a.h5") as file:
        assert sorted(file["ablation"]) == SITES
        for n, site in enumerate(SITES):
            assert file[f"ablation/{site}/loss_delta"][0, 0] == pytest.approx(
                ablated["loss_delta"][3 * n:3 * n + 3])


def test_a_head_of_the_cross_attention_is_pruned_sliced_and_stays_away(run, tmp_path):
    out = tmp_path / "sliced"
    report = found("prune", run, "--heads", "cross/0:1", "--slice", "--out", out)
    assert report["removed"] == ["cross/0:1"] and report["masked_sliced_difference"] < 1e-5
    assert found("eval", out)["loss"] == pytest.approx(report["loss"], abs=1e-6)
    analysis = found("analyze", out, "--batches", 1, "--stats", "entropy")
    assert list(analysis["sites"]) == ["encoder_self", "decoder_self", "cross"]
    assert analysis["sites"]["cross"]["statistics"]["head_mask"] == [[1, 0, 1]]
    assert analysis["sites"]["cross"]["statistics"]["entropy"][0][1] is None
    with h5py.File(out / "pruning.h5") as file:
        assert file["pruning/cross/removed"][1].tolist() == [[0, 1, 0]]
        assert file["pruning/encoder_self/removed"][1].tolist() == [[0, 0, 0]]
    with h5py.File(out / "analysis.h5") as file:
        assert sorted(file["analysis"]) == sorted(file["roles"]) == SITES


def test_heads_are_ranked_over_all_sites(run):
    report = found("prune", run, "--count", 4, "--by", "importance", "--norm", "global",
                   "--bench-batch", 1)
    values = {}
    for site, one in found("analyze", run, "--importance", "--split", "train")["sites"].items():
        for head, value in enumerate(one["statistics"]["importance_global"][0]):
            values[f"{site}/0:{head}"] = value
    assert np.linalg.norm(list(values.values())) == pytest.approx(1)
    assert sorted(report["removed"]) == sorted(sorted(values, key=values.get)[:4])


def test_a_word_that_names_no_site_or_a_wrong_one_says_which_there_are(run):
    assert "of which site? encoder_self/0:1, for one" in translator(
        "prune", run, "--heads", "0:1", code=2)
    assert "there is no site 'crss'; the model has encoder_self, decoder_self, cross" in (
        translator("prune", run, "--heads", "crss/0:1", code=2))


def test_it_resumes_to_the_same_weights(run):
    weights = run / "ckpt/step-00000040/model.safetensors"
    before, written = weights.read_bytes(), weights.stat().st_mtime_ns
    translator("run", "--resume", run / "ckpt/step-00000020",
               run / "config.yaml", "--out", run.parent.parent)
    assert weights.read_bytes() == before and weights.stat().st_mtime_ns > written


def test_it_is_converted_at_every_site_and_back_from_gates(run, tmp_path):
    report = found("convert", run, "--to", "collaborative", "--out", tmp_path / "shared")
    assert {row["site"] for row in report["layers"]} == set(SITES)
    assert report["logits_error"] < 1e-5
    assert found("eval", tmp_path / "shared")["loss"] == pytest.approx(report["loss_after"])
    gated = tmp_path / "gated"
    report = found("convert", run, "--to", "gated", "--tune", 2, "--out", gated)
    assert len(report["gates"]["kept"]) == 9
    removed = found("prune", gated, "--by", "gates", "--count", 2, "--bench-batch", 1)["removed"]
    assert len(removed) == 2 and all("/0:" in head for head in removed)


def test_only_models_and_data_know_of_a_decoder_or_of_one_site():
    named = re.compile(r'\bDecoder\b|"self"|(?<!proc)/self\b')
    known = [f"{path.relative_to(ROOT)}:{n}"
             for path in (ROOT / "experiments").rglob("*")
             if path.suffix in (".h", ".cpp") and path.parts[len(ROOT.parts) + 1]
             not in ("models", "data")
             for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if named.search(line)]
    assert known == []


def test_the_reader_has_every_site(run):
    with headlab_log.open_run(run) as log:
        assert sorted(log.sites) == SITES
        for site in SITES:
            assert f"heads/{site}" in log
            assert log.heads(site).entropy.dims == ("step", "layer", "head")
            assert log.map(site=site).dims == ("query", "key")
        with pytest.raises(headlab_log.LogError, match="heads/cross"):
            log.heads()
