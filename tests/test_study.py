"""scripts/studies/pruning.py trains, prunes and says what came of it; here in seconds."""

import json
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT, program

SMALL = ("train.steps=6", "train.batch=4", "train.eval_batches=1", "data.context=16",
         "model.d_model=32", "log.stats_every=0", "log.attention.probes=1")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    script = [sys.executable, str(ROOT / "scripts/studies/pruning.py"), "--program", program(),
              "--seeds", "2", "--random", "2", "--tune", "3", "--batches", "1", "--threads", "1",
              "--out", str(out)]
    for setting in SMALL:
        script += ["--set", setting]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "study.json").read_text()), done.stdout, out


def test_every_head_goes_once_in_every_order(study):
    for task, heads in (("char", 16), ("induction", 8)):
        for model in study[0][task]:
            assert len(model["heads"]) == heads
            assert len(model["curves"]) == 5
            for curve in model["curves"].values():
                assert sorted(curve["order"]) == sorted(model["heads"])
                assert sorted(map(int, curve["loss"])) == list(range(heads + 1))
                assert curve["loss"][str(heads)] == pytest.approx(model["loss"], rel=1e-6)


def test_gates_leave_as_many_heads_as_they_were_told(study):
    for task, left in (("char", [4, 8]), ("induction", [2, 4])):
        for model in study[0][task]:
            for losses in model["tuned"].values():
                assert sorted(map(int, losses)) == left
                assert all(loss > 0 for loss in losses.values())


def test_the_tables_are_made_of_the_numbers(study):
    numbers, text, out = study
    models = numbers["char"]
    rises = [m["curves"]["importance"]["loss"]["8"] - m["curves"]["importance"]["loss"]["16"]
             for m in models]
    line = next(l for l in text.splitlines() if l.startswith("| importance |"))
    cell = float(line.split("|")[2].split("±")[0])
    assert cell == pytest.approx(sum(rises) / 2, abs=6e-4)
    assert text.count("### ") == 2
    assert "Accuracy of copying with heads ablated" in text
    assert (out / "pruning.png").stat().st_size > 10_000


def test_the_study_in_docs_is_of_its_script():
    text = (ROOT / "docs/pruning.md").read_text()
    assert "scripts/studies/pruning" in text
    assert (ROOT / "docs/pruning.png").exists()
    assert pathlib.Path(ROOT / "scripts/studies/pruning").stat().st_mode & 0o111
