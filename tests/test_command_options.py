"""What single options of ablate, analyze, convert, eval, forward and prune do."""

import json
import os
import re
import subprocess

import h5py
import headlab_log as hl
import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import ROOT, headlab, program, train


def found(*arguments):
    return json.loads(headlab(*arguments, "--json"))


def test_ablate_says_no_p_of_fewer_than_ten_examples(small_run, tmp_path):
    def ablated(batch, *options):
        return found("ablate", small_run, "--batches", 1, "--batch", batch, "--out", tmp_path / "a.h5",
                     *options)

    few = ablated(4, "--pairs", "--all-but-one")
    for table in few, few["pairs"], few["all_but_one"]:
        assert set(table["p_value"]) == set(table["p_holm"]) == {None}
        assert set(table["p_examples"]) == {4}
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.isnan(file["ablation/self/p_holm"][:]).all()
        assert (file["ablation/self/p_examples"][:] == 4).all()
        assert file["ablation/self/p_examples"].dtype == "int64"
    text = headlab("ablate", small_run, "--batches", 1, "--batch", 4, "--out", tmp_path / "a.h5")
    assert all("*" not in line and line.split()[-2:] == ["-", "4"] for line in heads_of(text))


def test_ablate_corrects_p_for_all_heads_of_a_table(small_run, tmp_path):
    once = ("ablate", small_run, "--batches", 1, "--batch", 30, "--out", tmp_path / "a.h5")
    every, some = found(*once), found(*once, "--heads", "0:1,2")
    for table, count in (every, 6), (some, 2):
        assert min(table["p_holm"]) == pytest.approx(min(1, count * min(table["p_value"])))
        assert set(table["p_examples"]) == {30}
    assert "p < 0.05" in every["p_legend"] and "Holm" in every["p_legend"]
    text = headlab(*once)
    for line, p in zip(heads_of(text), every["p_holm"]):
        assert ("  *  " in line) == (p < 0.05)
    with h5py.File(tmp_path / "a.h5") as file:
        p = file["ablation/self/p_holm"]
        assert p.attrs["comment"].startswith(every["p_legend"])
        assert p.attrs["significant_below"] == 0.05 and p.attrs["rows_of_table"] == 6
        assert p.attrs["examples"] == 30 and p.attrs["examples"].dtype == "int64"


def heads_of(table):
    """Lines of a table that begin with a head."""
    return re.findall(r"^ *\d+:\d+ .*$", table, flags=re.M)


def rows(table):
    """{head: cells} of the lines of a table that begin with a head."""
    found = re.findall(r"^ *(\d+:\d+) +(.*)$", table, flags=re.M)
    return {head: re.findall(r"[-+]?\d[\d.e+-]*", rest) for head, rest in found}


def test_ablate_heads_are_the_only_ones(small_run, tmp_path):
    once = ("ablate", small_run, "--batches", 1, "--all-but-one", "--pairs", "--out",
            tmp_path / "a.h5")
    every, some = found(*once), found(*once, "--heads", "0:1,2", "1:0")
    assert some["removed"] == ["0:1", "0:2", "1:0"]
    for n, head in enumerate(some["removed"]):
        assert some["loss_delta"][n] == every["loss_delta"][every["removed"].index(head)]
    assert some["pairs"]["removed"] == [["0:1", "0:2"], ["0:1", "1:0"], ["0:2", "1:0"]]
    assert some["all_but_one"]["stays"] == some["removed"]
    with h5py.File(tmp_path / "a.h5") as file:
        there = np.isfinite(file["ablation/self/kl"][0])
    assert there.tolist() == [[False, True, True], [True, False, False]]
    headlab("prune", small_run, "--heads", "0:1", "--batches", 1, "--out", tmp_path / "pruned")
    done = subprocess.run([program(), "ablate", str(tmp_path / "pruned"), "--heads", "0:1"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "--heads 0:1: is gone already" in done.stderr


def test_ablate_sort_begins_with_the_largest_rise_and_explains_its_columns(small_run, tmp_path):
    once = ("ablate", small_run, "--batches", 1, "--out", tmp_path / "a.h5")
    deltas = found(*once)
    order = sorted(deltas["removed"], key=lambda head: -deltas["loss_delta"][
        deltas["removed"].index(head)])
    plain, by_effect = headlab(*once), headlab(*once, "--sort")
    assert list(rows(plain)) == deltas["removed"] != order
    assert list(rows(by_effect)) == order and rows(by_effect) == rows(plain)
    for n, head in enumerate(deltas["removed"]):  # as in prune: over all positions
        assert float(rows(plain)[head][2]) == pytest.approx(deltas["l2"][n], rel=1e-3)
    assert "l2  Frobenius norm of the change of the last hidden states, over all positions\n" in plain
    assert "loss  change of the loss [nat]\n" in plain
    assert "val: first batch, 1,024 tokens" in plain
    with h5py.File(tmp_path / "a.h5") as file:
        attributes = file["ablation/self/loss_delta"].attrs
        assert (attributes["tokens"], attributes["whole_split"]) == (1024, 0)


def test_analyze_sort_begins_with_the_most_important_head(small_run, tmp_path):
    once = ("analyze", small_run, "--batches", 1, "--out", tmp_path / "a.h5")
    importance = np.array(found(*once)["statistics"]["importance_global"])
    order = [f"{n // 3}:{n % 3}" for n in np.argsort(-importance.ravel(), kind="stable")]
    plain, by_effect = headlab(*once), headlab(*once, "--sort")
    assert list(rows(by_effect)) == order != list(rows(plain)) == sorted(order)
    assert list(rows(headlab(*once, "--importance", "--sort"))) == order
    assert "entropy  entropy of the attention row [nat]\n" in plain
    assert "prev  weight on the previous token\n" in plain
    for options, said in ((("--stats", "entropy"), "needs importance"),):
        done = subprocess.run([program(), *map(str, once), "--sort", *options],
                              capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr


def test_analyze_counts_examples(small_run, tmp_path):
    done = subprocess.run([program(), "analyze", str(small_run), "--batches", "1", "--batch", "8",
                           "--out", str(tmp_path / "a.h5")], capture_output=True, text=True)
    assert "example 8/8" in done.stderr and "step" not in done.stderr


def test_inspect_tells_counts_from_numbers_and_names_what_is_not_there(small_run):
    lines = headlab("inspect", small_run).splitlines()
    assert ": a log, schema headlab 1.0.0, finished, " in lines[0]
    assert "/heads/self: 5 records, the last of step 20, 2 layers, 3 heads" in lines
    assert "/attention/self: 3 records, the last of step 20, 2 probes, 2 layers, 3 heads, " \
        "16 queries, 16 keys" in lines
    assert "/vocab, 65 tokens" in lines
    assert "  no number of next_token" in lines  # a decoder sees none
    assert any(line.startswith("  0 of every head: ") and "cls_mass, sep_mass" in line
               for line in lines)  # characters have no such tokens
    with h5py.File(small_run / "log.h5") as file:
        tokens = int(file["eval/val_tokens"][-1])
        statistics = [name for name in file["heads/self"] if not file["heads/self"][name].is_scale]
    assert re.search(rf"^  val_tokens +{tokens} token$", "\n".join(lines), flags=re.M)
    for name in set(statistics) - {"next_token", "cls_mass", "sep_mass"}:
        assert sum(re.match(rf"  {name}  ", line) is not None for line in lines) == 1, name


def test_ablate_batch_is_the_examples_of_a_batch(small_run, tmp_path):
    found_ = found("ablate", small_run, "--batches", 1, "--batch", 3, "--out", tmp_path / "a.h5")
    assert found_["examples"] == 3


def test_ablate_and_convert_write_the_threads_that_they_ran_with(small_run, tmp_path):
    found("ablate", small_run, "--batches", 1, "--threads", 2, "--out", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert json.loads(file.attrs["manifest_json"])["threads"] == 2
    found("convert", small_run, "--to", "collaborative", "--batches", 1, "--threads", 2, "--out",
          tmp_path / "converted")
    assert json.loads((tmp_path / "converted/manifest.json").read_text())["threads"] == 2


def test_analyze_top_k_is_how_many_keys_count(small_run, tmp_path):
    def mass(k):
        return found("analyze", small_run, "--batches", 1, "--stats", "top_k_mass", "--top-k", k,
                     "--out", tmp_path / "a.h5")["statistics"]["top_k_mass"]

    assert np.all(np.array(mass(1)) < np.array(mass(4)))
    assert np.allclose(mass(16), 1, atol=1e-5)  # the context


def test_analyze_js_stride_leaves_rows_out(small_run, tmp_path):
    def js(stride):
        return found("analyze", small_run, "--batches", 1, "--stats", "js", "--js-stride", stride,
                     "--out", tmp_path / "a.h5")["statistics"]["js"]

    assert js(1) == js(1) != js(5)


def test_analyze_backend_chooses_the_path_and_not_the_numbers(small_run, tmp_path):
    def entropy(backend):
        return found("analyze", small_run, "--batches", 1, "--stats", "entropy", "--backend",
                     backend, "--out", tmp_path / "a.h5")["statistics"]["entropy"]

    assert np.allclose(entropy("eager"), entropy("auto"), atol=1e-5)


def test_convert_init_opens_the_gates_or_not(small_run, tmp_path):
    def losses(init):
        said = found("convert", small_run, "--to", "gated", "--init", init, "--batches", 1)
        return said["loss_before"], said["loss_after"]

    whole, gated = losses(2.5)
    assert gated == pytest.approx(whole, abs=1e-6)
    whole, gated = losses(0)
    assert abs(gated - whole) > 1e-6


def test_convert_batches_is_how_many_are_measured(small_run):
    one, two = (found("convert", small_run, "--kv-heads", 1, "--batches", n)["tokens"]
                for n in (1, 2))
    assert two == 2 * one


def test_eval_batch_does_not_change_what_is_measured(small_run):
    one, seven = (found("eval", small_run, "--batch", n) for n in (64, 7))
    assert one["tokens"] == seven["tokens"]
    assert one["loss"] == pytest.approx(seven["loss"], abs=1e-5)


@pytest.mark.parametrize("reduction", ["paper", "per_position", "batch"])
def test_prune_reduction_and_norm_choose_the_lowest_importance(small_run, tmp_path, reduction):
    importance = found("analyze", small_run, "--importance", "--split", "train", "--batches", 1, "--out",
                       tmp_path / "a.h5")["statistics"]
    values = np.array(importance[f"importance_{reduction}"])
    by_layer = np.linalg.norm(values, axis=1, keepdims=True)
    for norm, scale in ("global", 1), ("none", 1), ("layer", by_layer):
        layer, head = np.unravel_index(np.argmin(values / scale), values.shape)
        pruned = found("prune", small_run, "--count", 1, "--batches", 1, "--reduction", reduction,
                       "--norm", norm)
        assert pruned["removed"] == [f"{layer}:{head}"], norm


def test_prune_says_by_what_it_ranked(small_run, tmp_path):
    """Numbers of two orders do not pass for one; the default has not always been the same."""
    once = "prune", small_run, "--batches", 1, "--bench-batch", 1
    pruned = found(*once, "--count", 1, "--reduction", "batch", "--norm", "none", "--recompute",
                   "--out", tmp_path / "out")
    assert pruned["ranking"] == "--by importance --reduction batch --norm none --recompute"
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["pruned"]["ranking"] == pruned["ranking"]
    assert "\nranked: --by random --seed 3\n" in headlab(*once, "--count", 1, "--by", "random",
                                                         "--seed", 3)
    assert "ranking" not in found(*once, "--heads", "0:1")
    assert "ranked" not in headlab(*once, "--heads", "0:1")


def test_prune_seed_is_of_the_random_order(small_run):
    def removed(seed):
        return found("prune", small_run, "--by", "random", "--count", 3, "--batches", 1, "--seed",
                     seed)["removed"]

    assert removed(1) == removed(1)
    assert len({tuple(removed(seed)) for seed in range(4)}) > 1


def test_prune_names_the_split_that_it_measured_on(small_run, tmp_path):
    """What the run that it leaves says, and goes on from, is of the validation split alone."""
    left = []
    for split in "train", "val":
        out = tmp_path / split
        report = found("prune", small_run, "--heads", "0:1", "--batches", 2, "--split", split,
                       "--out", out)
        assert (report["split"], report["on_whole_split"]["split"]) == (split, "val")
        metrics = json.loads((out / "status.json").read_text(encoding="utf-8"))["metrics"]
        assert metrics["val/loss"] == report["on_whole_split"]["loss"] != report["loss"]
        assert not any(name.startswith("train/") for name in metrics)
        state = json.loads((out / "ckpt/last/state.json").read_text(encoding="utf-8"))
        left.append((metrics, state["trainer"]["best"]))
    assert left[0] == left[1]


def test_prune_bench_batch_is_the_examples_of_a_timed_pass(small_run):
    assert found("prune", small_run, "--count", 1, "--batches", 1, "--bench-batch", 3)["batch"] == 3


TALKING = ROOT / "tests/golden/talking/xt_pre_only_bias.safetensors"
TAKES_BACKEND = {"ablate": "RUN --out a.h5", "analyze": "RUN --out a.h5", "check": TALKING,
                 "convert": "RUN --to gated", "eval": "RUN",
                 "forward": "RUN in.safetensors --out out.safetensors",
                 "generate": "RUN --tokens 2 --no-cache", "layer": TALKING, "prune": "RUN --count 1"}


@pytest.fixture(scope="module")
def talking_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("talking"), "char_talking")


@pytest.mark.parametrize("command", TAKES_BACKEND)
def test_backend_is_refused_where_it_does_not_serve_the_heads(talking_run, tmp_path, command):
    """So it is not ignored; which passes take it is in tests/experiments/analysis/test_backends.cpp."""
    save_file({"in.ids": np.zeros((1, 5), np.int64)}, tmp_path / "in.safetensors")
    words = str(TAKES_BACKEND[command]).replace("RUN", str(talking_run)).split()

    def done(backend):
        return subprocess.run([program(), command, *words, "--backend", backend], cwd=tmp_path,
                              capture_output=True, text=True)

    refused = done("sdpa")
    assert refused.returncode == 2, refused.stderr
    assert "backends sdpa and flash: not for heads that are composed; auto or eager" in refused.stderr
    assert done("eager").returncode == done("auto").returncode == 0


def test_analyze_refuses_a_backend_for_maps_that_are_made():
    done = subprocess.run([program(), "analyze", ROOT / "tests/golden/maps/minilm.safetensors",
                           "--backend", "eager"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "analyze --backend: is for runs; maps are made already" in done.stderr


def test_every_command_that_takes_backend_is_tried():
    frozen = (ROOT / "tests/frozen/interface.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"^(\w+) --backend ", frozen, re.M)) == set(TAKES_BACKEND)


@pytest.mark.parametrize("command", [["ablate"], ["analyze"], ["convert", "--to", "collaborative"],
                                     ["forward", "x.safetensors", "--out", "y.safetensors"],
                                     ["prune", "--count", "1"]], ids=lambda words: words[0])
def test_device_is_where_it_runs(small_run, command):
    done = subprocess.run([program(), command[0], small_run, *command[1:], "--device", "cuda"],
                          capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 6
    assert "no CUDA device is available; use --device cpu" in done.stderr


def test_analyze_takes_maps_of_a_log_as_they_are_and_causal_says_what_they_are(tmp_path):
    with hl.open_run(train(tmp_path, "char_mha", "data.context=256", "train.steps=2",
                           "log.attention.every=2")) as run:
        maps = run.attention().weights.isel(step=-1).transpose("layer", "probe", "head", ...)
        weights = np.ascontiguousarray(maps.values, np.float32)
    assert abs(weights.sum(-1) - 1).max() > 1e-4  # 16 bits a weight
    save_file({"in.attention": weights}, tmp_path / "own.safetensors")
    taken = found("analyze", tmp_path / "own.safetensors")
    assert taken["causal"] is True and taken["causal_from"] == "weights"
    whole = found("analyze", tmp_path / "own.safetensors", "--causal", "no")
    same = found("analyze", tmp_path / "own.safetensors", "--causal", "yes")
    assert same["statistics"] == taken["statistics"] != whole["statistics"]
