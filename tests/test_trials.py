"""Small models of others' makers with the right answers beside them: folder trials of HEADLAB_SHARED.

Each case has a test of the project's own, too, on inputs that it makes itself; these run where the
folder is there.
"""

import os
import pathlib
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import ROOT, headlab, program

TRIALS = pathlib.Path(os.environ.get("HEADLAB_SHARED", ROOT / "../shared")) / "trials"


def trial(name):
    folder = TRIALS / name
    if not folder.exists():
        pytest.skip(f"no {folder}; HEADLAB_SHARED names the folder that has it")
    return folder


def model_of(folder):
    file = folder / "model.gguf"
    return file if file.exists() else folder


def imported(folder, run):
    headlab("import", model_of(folder), "--out", run)
    return run


def refusal(*arguments):
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode in (2, 3), done.stdout
    return done.stderr


def assert_equal(folder, run, out):
    """As compare.py there has it: within 1e-4 of the largest number."""
    headlab("forward", run, folder / "in.safetensors", "--out", out)
    ours, expected = load_file(out), load_file(folder / "expected.safetensors")
    for name, right in expected.items():
        if name == "out.logits.without_0_1":
            continue
        found = ours["out.logits"][:, -8:] if name.endswith("last8") else ours[name]
        assert found.shape == right.shape, name
        assert np.abs(found - right).max() <= 1e-4 * np.abs(right).max(), name


@pytest.mark.parametrize("name", ["03_gguf_small_scales/Q8_0", "03_gguf_small_scales/F16",
                                  "09_tokenizer_ids/hole", "09_tokenizer_ids/beyond_the_model"])
def test_its_logits_are_the_right_ones(tmp_path, name):
    folder = trial(name)
    assert_equal(folder, imported(folder, tmp_path / "run"), tmp_path / "out.safetensors")


@pytest.mark.parametrize("name, key", [("scaling_factor_alone", "llama.rope.scaling.factor"),
                                       ("scale_linear", "llama.rope.scale_linear"),
                                       ("dimension_count_half", "llama.rope.dimension_count")])
def test_positions_that_no_model_here_has_are_refused_by_key(tmp_path, name, key):
    assert f"model.gguf: {key}: " in refusal("import", model_of(trial(f"04_gguf_rope/{name}")),
                                             "--out", tmp_path / "run")


@pytest.mark.parametrize("name", ["hugging_face", "gguf"])
def test_a_text_ends_where_its_makers_end_it(tmp_path, name):
    folder = trial(f"08_ends/{name}")
    said = headlab("generate", imported(folder, tmp_path / "run"), "--prompt", "Hello", "--tokens", 16,
                   "--temperature", 0)
    assert said.rstrip("\n") == (folder / "expected.txt").read_text(encoding="utf-8").rstrip("\n")


def test_the_ids_are_the_librarys_and_a_token_without_a_row_is_refused(tmp_path):
    hole = imported(trial("09_tokenizer_ids/hole"), tmp_path / "hole")
    assert headlab("generate", hole, "--prompt", "xyz", "--tokens", 0) == "xyz\n"
    beyond = imported(trial("09_tokenizer_ids/beyond_the_model"), tmp_path / "beyond")
    headlab("generate", beyond, "--prompt", "xyz", "--tokens", 0)
    assert "--prompt:1: '[PAD]' is token 256" in refusal("generate", beyond, "--prompt", "xy[PAD]z",
                                                         "--tokens", 0)


@pytest.mark.parametrize("file", ["", "model.gguf"])
def test_a_pointer_of_git_lfs_is_named_as_such(tmp_path, file):
    said = refusal("import", trial("10_lfs_pointer") / file, "--out", tmp_path / "run")
    assert "is a pointer of Git LFS" in said and "git lfs pull" in said
