"""The maps that the fifth notebook reads are what their script makes of a published model."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from conftest import ROOT

MAPS = ROOT / "tests/golden/maps/minilm.safetensors"


def test_the_kept_maps_are_those_that_their_script_makes(tmp_path, monkeypatch):
    shared = pathlib.Path(os.environ.get("HEADLAB_SHARED", ROOT / "../shared"))
    if not (shared / "golden/models/minilm_forward.safetensors").is_file():
        pytest.skip("no shared golden files; HEADLAB_SHARED names their folder")
    script = tmp_path / "make_minilm.py"
    script.write_text((MAPS.parent / "make_minilm.py").read_text())
    monkeypatch.setenv("HEADLAB_SHARED", str(shared))
    subprocess.run([sys.executable, str(script)], check=True)
    made, kept = load_file(tmp_path / MAPS.name), load_file(MAPS)
    assert {name: tensor.dtype for name, tensor in made.items()} == {
        name: tensor.dtype for name, tensor in kept.items()}
    for name in kept:
        np.testing.assert_array_equal(made[name], kept[name])
    assert metadata(tmp_path / MAPS.name) == metadata(MAPS)


def metadata(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


def test_the_kept_maps_are_attention_of_the_tokens_that_they_name():
    tokens = json.loads(metadata(MAPS)["tokens"])
    maps = load_file(MAPS)["in.attention"]  # layer, example, head, query, key
    assert maps.shape[:3] == (6, 8, 12) and len(tokens) == 8
    assert MAPS.stat().st_size < 2_000_000
    for example, texts in enumerate(tokens):
        assert texts[0] == "[CLS]" and texts[-1] == "[SEP]"
        used = maps[:, example, :, :len(texts)].astype(np.float64)
        assert used[..., :len(texts)].sum(-1) == pytest.approx(1, abs=5e-3)
        assert used[..., len(texts):].sum() == 0
