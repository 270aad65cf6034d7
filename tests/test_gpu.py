"""What the CPU does, on a GPU: every command, every kind's training, and runs that end alike to the bit.
Skipped where there is no GPU, or the program is not built for one (`scripts/test --preset cuda`)."""

import concurrent.futures
import json
import pathlib
import re
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from conftest import ROOT, TINY, headlab, program
from ranks_testing import SETTINGS, Group, numbers, weights
from test_resume import KINDS, finish, kill

sys.path.insert(0, str(ROOT / "scripts/studies"))
from same_end import differences  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def gpu():
    any_case = next((ROOT / "tests/golden/mha").glob("*.safetensors"))
    tried = subprocess.run([program(), "check", any_case, "--device", "cuda"], capture_output=True,
                           text=True)
    if "no CUDA device is available" in tried.stderr:
        pytest.skip("no GPU here, or none built for")


def train(out, config, device, *settings):
    """The run directory."""
    headlab("run", ROOT / f"configs/{config}.yaml", *TINY, *settings, "--device", device, "--out", out)
    return max(out.glob(f"{config}/*"), key=lambda run: run.stat().st_mtime)


def values(run, name):
    rows = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return np.array([row[name] for row in rows if name in row])


def test_the_authors_numbers_come_from_a_gpu_too():
    files = sorted(str(file) for file in (ROOT / "tests/golden").glob("*/*.safetensors")
                   if re.search(rb'"headlab_(case|train)"', file.read_bytes()[:5000]))
    judged = {}
    for backend in "auto", "eager":
        done = subprocess.run([program(), "check", *files, "--device", "cuda", "--backend", backend,
                               "--json"], capture_output=True, text=True)
        assert done.stdout, done.stderr
        judged[backend] = json.loads(done.stdout)
    assert len(judged["auto"]) == len(files) > 150
    failed = [(backend, case["case"], [t for t in case["tensors"] if not t["pass"]][:2])
              for backend, cases in judged.items() for case in cases if not case["pass"]]
    assert not failed, "\n".join(map(str, failed))


@pytest.mark.parametrize("processes", [1, 2])
def test_sums_between_gpus_have_the_bits_of_one_process(tmp_path, processes):
    """A process alone makes its sums by NCCL, too, where it was started as one of several are."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    if listed.count("GPU ") < processes:
        pytest.skip(f"NOT TESTED: a run on {processes} GPUs: there are {listed.count('GPU ')}")
    settings = (*SETTINGS, "train.accumulate=2")
    headlab("run", ROOT / "configs/char_mha.yaml", *settings, "--device", "cuda", "--out", tmp_path / "plain")
    group = Group(processes, tmp_path / "met", *settings)
    assert group.end() == [0] * processes, group.said
    assert weights(tmp_path / "met") == weights(tmp_path / "plain")
    assert numbers(tmp_path / "met") == numbers(tmp_path / "plain")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same training in float32 on the CPU and on the GPU."""
    out = tmp_path_factory.mktemp("both")
    return [train(out / device, "char_mha", device, "train.precision=fp32", "train.steps=40",
                  "log.stats=[all]") for device in ("cpu", "cuda")]


def test_a_training_on_a_gpu_follows_that_on_the_cpu(both):
    for name in "train/loss", "val/loss", "grad_norm":
        assert np.allclose(values(both[1], name), values(both[0], name), rtol=2e-3), name
    manifests = [json.loads((run / "manifest.json").read_text()) for run in both]
    assert manifests[0]["gpus"] == [] and "NVIDIA" in manifests[1]["gpus"][0]
    assert manifests[1]["versions"]["cuda"].startswith("13.")
    logs = [h5py.File(run / "log.h5") for run in both]
    names = set(logs[0]["heads/self"])
    assert names == set(logs[1]["heads/self"]) and len(names) > 20
    for name in names - {"step"}:
        cpu, gpu = (log[f"heads/self/{name}"][:1] for log in logs)  # of the first steps
        assert np.allclose(gpu, cpu, rtol=1e-2, atol=1e-3, equal_nan=True), name
    maps = [log["attention/self/weights"][0] / 65535 for log in logs]
    assert np.allclose(*maps, atol=1e-2)


def numbers(value, name=""):
    """Every number in an object of JSON, by its place, but for times."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not re.search("ms|seconds|_s|time|speed|faster|saved", key):
                yield from numbers(inner, f"{name}/{key}")
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from numbers(inner, f"{name}/{n}")
    elif isinstance(value, float):
        yield name, value


COMMANDS = {
    "eval": ("eval", "RUN"),
    "analyze": ("analyze", "RUN", "--batches", 2, "--maps", 1, "--out", "OUT/a.h5"),
    "ablate": ("ablate", "RUN", "--mode", "all", "--batches", 2, "--out", "OUT/b.h5"),
    "prune": ("prune", "RUN", "--count", 2, "--batches", 2, "--slice", "--out", "OUT/pruned"),
    "tune": ("prune", "RUN", "--heads", "0:1", "--batches", 2, "--tune", 3, "--out", "OUT/tuned"),
    "collaborative": ("convert", "RUN", "--to", "collaborative", "--batches", 2, "--out", "OUT/c"),
    "grouped": ("convert", "RUN", "--to", "mha", "--kv-heads", 1, "--align", "--batches", 2,
                "--out", "OUT/d"),
    "gated": ("convert", "RUN", "--to", "gated", "--target-heads", 3, "--tune", 3, "--batches", 2,
              "--out", "OUT/e"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_on_a_gpu_what_it_says_on_the_cpu(both, command, tmp_path):
    said = {}
    for device in "cpu", "cuda":
        (tmp_path / device).mkdir()
        words = [str(word).replace("RUN", str(both[0])).replace("OUT", str(tmp_path / device))
                 for word in COMMANDS[command]]
        said[device] = dict(numbers(json.loads(headlab(*words, "--device", device, "--json"))))
    assert said["cpu"].keys() == said["cuda"].keys() and len(said["cpu"]) > 1
    for name, cpu in said["cpu"].items():
        if not re.search(r"p_(value|holm)", name):
            assert said["cuda"][name] == pytest.approx(cpu, rel=1e-2, abs=1e-3, nan_ok=True), name


def test_a_sliced_run_is_cut_again_on_a_gpu(both, tmp_path):
    sliced = tmp_path / "sliced"
    headlab("prune", both[0], "--heads", "0:1", "--slice", "--out", sliced, "--device", "cuda")
    again = json.loads(headlab("prune", sliced, "--heads", "0:1", "0:0", "--slice", "--json",
                               "--out", tmp_path / "again", "--device", "cuda"))
    assert again["removed"] == ["0:0"]


def test_layers_are_timed_on_a_gpu():
    found = json.loads(headlab("bench", "mha", "dcmha", "--shape", "2x64x64x4", "--rounds", 2, "--seconds", 0.01,
                               "--statistics", "--decode", "--dtype", "bf16", "--device", "cuda", "--json"))
    assert found["machine"]["device"] == "cuda" and found["machine"]["gpus"]
    for row in found["shapes"][0]["rows"]:
        assert all(row[name]["ms"]["least"] > 0 for name in ("forward", "both", "statistics", "decode"))
        assert row["both"]["peak_bytes"] > 0


def test_a_text_goes_on_alike(both):
    said = [headlab("generate", both[0], "--temperature", 0, "--tokens", 40, "--device", device)
            for device in ("cpu", "cuda")]
    assert said[0] == said[1]


def test_a_device_that_is_not_there_is_named(both):
    done = subprocess.run([program(), "eval", both[0], "--device", "cuda:63"], capture_output=True,
                          text=True)
    assert done.returncode == 6 and "--device cuda:63: there are only " in done.stderr


CONFIGS = [*sorted(path.stem for path in (ROOT / "configs").glob("char_*.yaml")), "mlm_mha",
           "mnist_vit_mha", "first_token_linformer", "induction_mha", "mqar_64_4_small_mha"]


def test_every_kind_trains_in_half_precision(tmp_path_factory):
    """As a GPU does by default; with every statistic, and evaluated anew from its checkpoint."""
    out = tmp_path_factory.mktemp("kinds")

    def tried(config):
        settings = [setting for setting in TINY
                    if not setting.startswith(("data.", "model.heads", "model.d_model"))]
        done = subprocess.run(
            [program(), "run", str(ROOT / f"configs/{config}.yaml"), *settings, "log.stats=[all]",
             "model.dropout=0.1", "--device", "cuda", "--out", out, "--json"], capture_output=True,
            text=True)
        if done.returncode != 0:
            return f"{config}: {done.stderr[-300:]}"
        run = json.loads(done.stdout)["run"]
        done = subprocess.run([program(), "eval", run, "--device", "cuda"], capture_output=True,
                              text=True)
        return f"{config}: eval: {done.stderr[-300:]}" if done.returncode != 0 else None

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        failed = [said for said in pool.map(tried, CONFIGS) if said]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_deterministic_run_that_is_killed_equals_one_that_never_was(kind, tmp_path):
    settings = (*KINDS[kind], "train.deterministic=true", "--device", "cuda")
    whole = finish(tmp_path / "whole", settings)
    kill(tmp_path / "parts", settings, signal.SIGKILL)
    assert differences(whole, finish(tmp_path / "parts", settings)) == []
    assert values(whole, "train/loss")[-1] < values(whole, "train/loss")[0]
