"""Two published models from import to the cut model, as a user has them: configs/data/smollm2, minilm. Run by
`scripts/test --slow`; models of a few thousand parameters go the same way in the usual tests."""

import json
import os
import subprocess

import h5py
import numpy as np
import pytest

from conftest import ROOT, headlab, program
from transformers_testing import asked, bench_python
from warm_program import Start

MB = 1 << 20


def published(name, file=""):
    path = ROOT / "configs/data" / name / file
    if not path.exists():
        pytest.skip(f"no {path}; scripts/data {name} puts it there")
    return path


def peak_memory(*arguments):
    """Bytes that the program held at most, and what it said."""
    process = Start([program(), *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode == 0
    return usage.ru_maxrss * 1024, said


def imported(folder, model, *options):
    """The run; its import took no more memory than the model and a little."""
    alone, _ = peak_memory("list")
    peak, said = peak_memory("import", model, "--out", folder / "run", "--json", *options)
    report = json.loads(said)
    size = report["parameters"] * {"fp32": 4, "bf16": 2}[report["dtype"]]
    assert peak - alone <= 1.3 * size + 64 * MB
    return report


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    model = published("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    report = imported(folder, model)
    assert (report["parameters"], report["tokenizer"]) == (134515008, "bpe")
    return folder / "run"


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minilm")
    report = imported(folder, published("minilm"))
    assert (report["parameters"], report["tokenizer"]) == (22713216, "wordpiece")
    return folder / "run"


def test_half_the_memory_is_enough_for_bf16(tmp_path):
    imported(tmp_path, published("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), "--dtype", "bf16")


def test_it_answers_and_stops(smollm2):
    question = ("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
                "<|im_start|>assistant\n")
    said = headlab("generate", smollm2, "--prompt", question, "--temperature", "0", "--tokens", "24")
    assert said == question + "The capital of France is Paris.\n"


def test_the_heads_that_copy_are_those_that_are_known(smollm2, tmp_path):
    text = "Heads of a trained model are looked at, and then some are taken away."
    headlab("analyze", smollm2, "--text", text, "--context", "16", "--batch", "1", "--stats",
            "induction_repeated", "--out", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        score = file["analysis/self/induction_repeated"][()]
    best = {tuple(map(int, divmod(n, score.shape[1]))) for n in np.argsort(-score, axis=None)[:4]}
    assert best == {(18, 6), (17, 3), (17, 4), (17, 5)}


def test_an_encoder_is_cut_and_opened_by_transformers(minilm, tmp_path):
    bench_python()
    (tmp_path / "lines").write_text("A dog plays in the park.\nThe cat sits on the mat.\n")
    cut = tmp_path / "cut"
    report = json.loads(headlab("prune", minilm, "--fraction", "0.3", "--slice", "--text",
                                tmp_path / "lines", "--out", cut, "--json"))
    assert report["rounds"][-1]["kept"] == 50
    assert 0 < report["rounds"][-1]["distance"] < 0.2
    pairs = {}
    for run in minilm, cut:
        headlab("export", run, tmp_path / f"{run.name}_out")
        pairs[run.name] = run, tmp_path / f"{run.name}_out"
    for found in asked(pairs)["models"].values():
        assert found["class"] == "BertModel"
        assert found["missing"] == [] and found["unexpected"] == []
        assert found["difference"] < 1e-4 * found["largest"]
