"""A kind of one's own, a file in variants/, is in the Python package after `pip install .`."""

import os
import shutil
import subprocess

from conftest import ROOT

NEEDED = ("CMakeLists.txt", "CMakePresets.json", "pyproject.toml", "README.md", "LICENSE", "core", "variants",
          "experiments", "configs", "scripts", "tests")


def renamed(text):
    """variants/mha.cpp as another kind."""
    for old, new in {"class Mha": "class Mine", "RegisterHeads<Mha>": "RegisterHeads<Mine>", '"mha"': '"mine"'}.items():
        assert old in text, f"variants/mha.cpp has no {old!r} any more: this test edits it"
        text = text.replace(old, new)
    return text


def said(*words, **variables):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_kind_of_one_s_own_is_known_after_pip_install(tmp_path):
    tree, site = tmp_path / "headlab", tmp_path / "site"
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    (tree / "variants/mine.cpp").write_text(renamed((ROOT / "variants/mha.cpp").read_text()))
    python = said(ROOT / "scripts/bench/environment", "-I", "-c", "import sys; print(sys.executable)").strip()
    torch = str((ROOT / ".deps/torch").resolve())
    said(python, "-I", "-m", "pip", "install", "-q", "--no-deps", "--target", site, tree, HEADLAB_TORCH=torch)
    asks = ("import headlab, torch; print(headlab.kinds());"
            "print(list(headlab.Heads('mine', 16, 4)(torch.ones(2, 5, 16)).shape))")
    kinds, shape = said(python, "-P", "-c", asks, PYTHONPATH=f"{site}:{torch}").splitlines()
    assert "'mine'" in kinds and "'mha'" in kinds
    assert shape == "[2, 5, 16]"
