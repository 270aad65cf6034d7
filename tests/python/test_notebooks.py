"""The notebooks of the package run: their code, with a few updates instead of hundreds."""

import json
import os
import re
import subprocess
import sys

import pytest
from package_testing import ROOT

import headlab

pytest.importorskip("matplotlib")
hl = pytest.importorskip("headlab_log")


def printed(name, folder, **environment):
    """What the cells of a notebook print where it lies, warnings being errors; a line `figures N` at the end."""
    (path,) = (ROOT / "scripts/notebooks").glob(f"{name}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = folder / "notebook.py"
    script.write_text("\n".join([*code, "print('figures', len(plt.get_fignums()))"]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error::UserWarning", script], capture_output=True, text=True, cwd=path.parent,
        env={**os.environ, "MPLBACKEND": "Agg", "HEADLAB_STEPS": "4", "HEADLAB_RUNS": str(folder), "OMP_NUM_THREADS": "1",
             **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_heads_of_a_gpt2_are_in_the_log(tmp_path):
    pytest.importorskip("transformers")
    text = printed(8, tmp_path)
    heads = hl.open_run(tmp_path / "gpt2_watched").heads()
    assert heads.step.values.tolist() == [0, 1, 2, 3, 4]
    assert dict(heads.sizes) == {"step": 5, "layer": 4, "head": 4, "head2": 4}
    assert re.search(r"^4 updates in \d+ s, the last loss [234]\.\d+ nat$", text, re.M)
    assert "figures 1" in text


def test_dcmha_trains_in_nanogpt(tmp_path):
    text = printed(9, tmp_path)
    counts = {name: int(count.replace(",", "")) for name, count in re.findall(r"^(\w+) +([\d,]+) parameters", text, re.M)}
    layer = headlab.Heads("dcmha", 128, 4, context=64)
    mixing = sum(p.numel() for p in layer.parameters()) - 4 * 128 * 128
    assert mixing > 0 and counts["dcmha"] == counts["CausalSelfAttention"] + 4 * mixing
    assert len(re.findall(r"^layer \d: entropy of heads( \d\.\d\d){4}   composed_row_sum( -?\d+\.\d\d){4}$", text, re.M)) == 4
    assert "figures 1" in text
