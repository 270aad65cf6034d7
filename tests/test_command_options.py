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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def every(small_run, folder):
    """What ablate says of every head, of 30 examples: in JSON, in its file and in words."""
    once = ("ablate", small_run, "--batches", 1, "--batch", 30, "--out", folder / "every.h5")
    text = headlab(*once)
    return found(*once, "--pairs", "--all-but-one"), folder / "every.h5", text


def test_ablate_says_no_p_of_fewer_than_ten_examples(small_run, tmp_path):
    """--batch is the examples of a batch."""
    once = ("ablate", small_run, "--batches", 1, "--batch", 4, "--threads", 2, "--out", tmp_path / "a.h5")
    few = found(*once, "--pairs", "--all-but-one")
    assert few["examples"] == 4
    for table in few, few["pairs"], few["all_but_one"]:
        assert set(table["p_value"]) == set(table["p_holm"]) == {None}
        assert set(table["p_examples"]) == {4}
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.isnan(file["ablation/self/p_holm"][:]).all()
        assert (file["ablation/self/p_examples"][:] == 4).all()
        assert file["ablation/self/p_examples"].dtype == "int64"
        assert json.loads(file.attrs["manifest_json"])["threads"] == 2
    text = headlab(*once, "--sort")
    assert all("*" not in line and line.split()[-2:] == ["-", "4"] for line in heads_of(text))
    order = sorted(few["removed"], key=lambda head: -few["loss_delta"][few["removed"].index(head)])
    assert list(rows(text)) == order != few["removed"]
    for head, cells in rows(text).items():
        assert float(cells[2]) == pytest.approx(few["l2"][few["removed"].index(head)], rel=1e-3)


def test_ablate_corrects_p_for_all_heads_of_a_table_and_explains_its_columns(every):
    said, path, text = every
    assert min(said["p_holm"]) == pytest.approx(min(1, 6 * min(said["p_value"])))
    assert set(said["p_examples"]) == {30}
    assert "p < 0.05" in said["p_legend"] and "Holm" in said["p_legend"]
    assert list(rows(text)) == said["removed"]
    for line, p in zip(heads_of(text), said["p_holm"]):
        assert ("  *  " in line) == (p < 0.05)
    for n, head in enumerate(said["removed"]):  # as in prune: over all positions
        assert float(rows(text)[head][2]) == pytest.approx(said["l2"][n], rel=1e-3)
    assert "l2  Frobenius norm of the change of the last hidden states, over all positions\n" in text
    assert "loss  change of the loss [nat]\n" in text
    assert "val: first batch, 480 tokens" in text
    with h5py.File(path) as file:
        p, change = (file[f"ablation/self/{name}"].attrs for name in ("p_holm", "loss_delta"))
        assert p["comment"].startswith(said["p_legend"])
        assert p["significant_below"] == 0.05 and p["rows_of_table"] == 6
        assert p["examples"] == 30 and p["examples"].dtype == "int64"
        assert (change["tokens"], change["whole_split"]) == (480, 0)


def heads_of(table):
    """Lines of a table that begin with a head."""
    return re.findall(r"^ *\d+:\d+ .*$", table, flags=re.M)


def rows(table):
    """{head: cells} of the lines of a table that begin with a head."""
    found = re.findall(r"^ *(\d+:\d+) +(.*)$", table, flags=re.M)
    return {head: re.findall(r"[-+]?\d[\d.e+-]*", rest) for head, rest in found}


def test_ablate_heads_are_the_only_ones(small_run, every, tmp_path):
    every = every[0]
    some = found("ablate", small_run, "--batches", 1, "--batch", 30, "--all-but-one", "--pairs", "--out",
                 tmp_path / "a.h5", "--heads", "0:1,2", "1:0")
    assert some["removed"] == ["0:1", "0:2", "1:0"]
    assert min(some["p_holm"]) == pytest.approx(min(1, 3 * min(some["p_value"])))
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


def test_analyze_sort_begins_with_the_most_important_head_and_counts_examples(small_run, tmp_path):
    once = ("analyze", small_run, "--batches", 1, "--batch", 8, "--out", tmp_path / "a.h5")
    importance = np.array(found(*once)["statistics"]["importance_global"])
    order = [f"{n // 3}:{n % 3}" for n in np.argsort(-importance.ravel(), kind="stable")]
    plain = headlab(*once)
    done = subprocess.run([program(), *map(str, once), "--sort"], capture_output=True, text=True)
    assert list(rows(done.stdout)) == order != list(rows(plain)) == sorted(order)
    assert "example 8/8" in done.stderr and "step" not in done.stderr
    assert list(rows(headlab(*once, "--importance", "--sort"))) == order
    assert "entropy  entropy of the attention row [nat]\n" in plain
    assert "prev  weight on the previous token\n" in plain
    done = subprocess.run([program(), *map(str, once), "--sort", "--stats", "entropy"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "needs importance" in done.stderr


def test_inspect_tells_counts_from_numbers_and_names_what_is_not_there(small_run):
    lines = headlab("inspect", small_run).splitlines()
    assert ": a log, schema headlab 1.0.0, finished, " in lines[0]
    assert "/heads/self: 5 records, the last of step 20, 2 layers, 3 heads" in lines
    assert "/attention/self: 3 records, the last of step 20, 2 probes, 2 layers, 3 heads, " \
        "16 queries, 16 keys" in lines
    assert "/vocab, 65 tokens" in lines
    assert "  no number of next_token" in lines  # a decoder sees none
    zero, = [line for line in lines if line.startswith("  0 of every head: ")]
    assert "cls_mass, sep_mass" in zero  # characters have no such tokens
    with h5py.File(small_run / "log.h5") as file:
        tokens = int(file["eval/val_tokens"][-1])
        statistics = [name for name in file["heads/self"] if not file["heads/self"][name].is_scale]
    assert re.search(rf"^  val_tokens +{tokens} token$", "\n".join(lines), flags=re.M)
    for name in set(statistics) - {"next_token", *re.findall(r"\w+", zero)}:
        assert sum(re.match(rf"  {name}  ", line) is not None for line in lines) == 1, name


def test_analyze_options_choose_keys_rows_and_the_path(small_run, tmp_path):
    """The path, --backend, changes no number."""
    def statistics(k, stride, backend):
        said = found("analyze", small_run, "--batches", 1, "--stats", "entropy", "js", "top_k_mass", "--top-k", k,
                     "--js-stride", stride, "--backend", backend, "--out", tmp_path / "a.h5")["statistics"]
        return [np.array(said[name], float) for name in ("entropy", "js", "top_k_mass")]

    entropy, js, mass = statistics(1, 1, "auto")
    of_eager, strided, whole = statistics(16, 5, "eager")
    assert np.allclose(entropy, of_eager, atol=1e-5)
    assert not np.allclose(js, strided, rtol=1e-2, atol=0)
    assert np.all(mass < whole) and np.allclose(whole, 1, atol=1e-5)  # the context


def test_convert_init_opens_the_gates_or_not(small_run, tmp_path):
    """--batches is how many are measured; --threads is written."""
    said = found("convert", small_run, "--to", "gated", "--init", 2.5, "--batches", 1, "--threads", 2, "--out",
                 tmp_path / "converted")
    assert said["loss_after"] == pytest.approx(said["loss_before"], abs=1e-6)
    assert json.loads((tmp_path / "converted/manifest.json").read_text())["threads"] == 2
    shut = found("convert", small_run, "--to", "gated", "--init", 0, "--batches", 2)
    assert abs(shut["loss_after"] - shut["loss_before"]) > 1e-6
    assert shut["tokens"] == 2 * said["tokens"]


def test_eval_batch_does_not_change_what_is_measured(small_run):
    one, seven = (found("eval", small_run, "--batch", n) for n in (64, 7))
    assert one["tokens"] == seven["tokens"]
    assert one["loss"] == pytest.approx(seven["loss"], abs=1e-5)


def test_prune_reduction_and_norm_choose_the_lowest_importance(small_run, tmp_path):
    """One does not know of the other; their numbers: tests/experiments/measuring/test_ablation.cpp."""
    importance = found("analyze", small_run, "--importance", "--split", "train", "--batches", 1, "--out",
                       tmp_path / "a.h5")["statistics"]
    for reduction, norm in ("paper", "global"), ("per_position", "none"), ("batch", "layer"):
        values = np.array(importance[f"importance_{reduction}"])
        scale = np.linalg.norm(values, axis=1, keepdims=True) if norm == "layer" else 1
        layer, head = np.unravel_index(np.argmin(values / scale), values.shape)
        pruned = found("prune", small_run, "--count", 1, "--batches", 1, "--reduction", reduction,
                       "--norm", norm, "--bench-batch", 3)
        assert pruned["removed"] == [f"{layer}:{head}"], norm
        assert pruned["batch"] == 3  # of a timed pass


def test_prune_says_by_what_it_ranked(small_run, tmp_path):
    """Numbers of two orders do not pass for one; the default has not always been the same."""
    once = "prune", small_run, "--batches", 1, "--bench-batch", 1
    ranking = "--by importance --reduction batch --norm none --recompute"
    text = headlab(*once, "--count", 1, "--reduction", "batch", "--norm", "none", "--recompute", "--out",
                   tmp_path / "out")
    assert f"\nranked: {ranking}; on split train, judged on val\n" in text
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["pruned"]["ranking"] == ranking
    drawn = [found(*once, "--count", 3, "--by", "random", "--seed", seed) for seed in (1, 3)]
    assert drawn[0]["removed"] != drawn[1]["removed"]
    assert drawn[1]["ranking"] == "--by random --seed 3"
    assert "ranking" not in found(*once, "--heads", "0:1")


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
    if command in ("eval", "layer"):
        assert done("eager").returncode == 0


def test_analyze_refuses_a_backend_for_maps_that_are_made():
    done = subprocess.run([program(), "analyze", ROOT / "tests/golden/maps/minilm.safetensors",
                           "--backend", "eager"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "analyze --backend: is for runs; maps are made already" in done.stderr


def test_every_command_that_takes_backend_is_tried():
    frozen = (ROOT / "tests/frozen/interface.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"^(\w+) --backend ", frozen, re.M)) == set(TAKES_BACKEND)


@pytest.mark.parametrize("command", [["ablate"], ["forward", "x.safetensors", "--out", "y.safetensors"]],
                         ids=lambda words: words[0])
def test_device_is_where_it_runs(small_run, command):
    """As in run and layer: tests/experiments/commands/test_command_errors.cpp."""
    done = subprocess.run([program(), command[0], small_run, *command[1:], "--device", "cuda"],
                          capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 6
    assert "no CUDA device is available; use --device cpu" in done.stderr


def test_analyze_takes_maps_of_a_log_as_they_are_and_causal_says_what_they_are(tmp_path):
    with hl.open_run(train(tmp_path, "char_mha", "data.context=128", "train.steps=2",
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
