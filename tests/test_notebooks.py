"""The notebooks of scripts/notebooks run on small trainings, show what they say, and are kept whole.

Their outputs are compared with what h5py reads from the same files.
"""

import base64
import functools
import gzip
import html
import io
import json
import pathlib
import re
import statistics
import subprocess
import sys

import h5py
import matplotlib.image
import nbformat
import numpy as np
import pytest

from test_readme import ROOT, program

NOTEBOOKS = sorted((ROOT / "scripts/notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
MAPS = ROOT / "tests/golden/maps/minilm.safetensors"
sys.path.insert(0, str(ROOT / "scripts/notebooks"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """What the notebooks look at, made small."""
    out = tmp_path_factory.mktemp("notebooks")
    script = [sys.executable, str(ROOT / "scripts/notebooks/make.py"), "--program", program()]
    options = ["--small", "--runs-only", "--seeds", "2", "--threads", "1", "--out", str(out)]
    done = subprocess.run([*script, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def executed(runs):
    """name -> the notebook with its outputs over `runs`, executed once."""
    import make
    return functools.cache(lambda name: make.execute(NOTEBOOKS[NAMES.index(name)], runs))


def kept(name):
    return nbformat.read(NOTEBOOKS[NAMES.index(name)], as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """All that was printed, in order."""
    return "".join(output.text for cell in code_cells(notebook) for output in cell.outputs
                   if output.output_type == "stream" and output.name == "stdout")


def outputs_of(notebook, kind):
    """Data of one MIME type, cell by cell."""
    return [[output.data[kind] for output in cell.outputs if kind in output.get("data", {})]
            for cell in code_cells(notebook)]


def figures_drawn(source):
    """How many figures a cell draws, at least."""
    drawing = re.findall(r"^\s*(?:\w+ = )?(?:plots\.[a-z]\w*\(|figure, axes = plt\.)", source, re.M)
    return len(drawing)


def value(path, name, *at):
    with h5py.File(path) as file:
        return file[name][at]


def one(pattern, text):
    """The groups of the only match."""
    (found,) = re.finditer(pattern, text, re.M)
    return found.groups()


def test_there_are_five_notebooks():
    assert [name[0] for name in NAMES] == list("12345")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_warns_of_nothing(name, executed):
    for cell in code_cells(executed(name)):
        said = [output.text for output in cell.outputs
                if output.output_type == "stream" and output.name == "stderr"]
        assert said == [], cell.source


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_that_draws_yields_its_pictures(name, executed):
    notebook = executed(name)
    drawn = 0
    for cell, images in zip(code_cells(notebook), outputs_of(notebook, "image/png")):
        assert len(images) >= figures_drawn(cell.source), cell.source
        for image in images:
            pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(image)))
            assert pixels[..., :3].std() > 0.02, f"a blank picture: {cell.source}"
        drawn += len(images)
    assert drawn >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_notebook_has_the_outputs_of_its_cells(name):
    import make
    notebook = kept(name)
    assert notebook.metadata["headlab"]["executed"] == make.fingerprint(notebook), \
        "edited since: scripts/notebooks/make"
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell, images in zip(cells, outputs_of(notebook, "image/png")):
        assert len(images) >= figures_drawn(cell.source), cell.source
        if "print(" in cell.source and "    print(" not in cell.source:
            assert any(output.output_type == "stream" for output in cell.outputs), cell.source


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_notebook_is_small_and_names_no_path_of_a_machine(name):
    assert NOTEBOOKS[NAMES.index(name)].stat().st_size < 1_500_000
    notebook = kept(name)
    texts = [printed(notebook)] + sum(outputs_of(notebook, "text/plain"), [])
    texts += [cell.source for cell in notebook.cells]
    absolute = re.compile(r"(?<![\w.:/])/[a-z][\w.-]*/[\w.-]+")
    assert [found for text in texts for found in absolute.findall(text)] == []


@pytest.mark.parametrize("name", NAMES)
def test_numbers_in_the_text_are_printed_by_the_code(name):
    """Years, arXiv numbers and what a definition says (0, 1, 2/3) apart."""
    notebook = kept(name)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"`[^`]*`|    headlab .*|arXiv [\d.]+|\b(19|20)\d\d\b", "", text)
    assert re.findall(r"\d+\.\d+|\d{2,}", text) == []
