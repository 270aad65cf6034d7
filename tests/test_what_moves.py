"""scripts/studies/what_moves.py: what single decisions move, of figures that can be worked out by hand."""

import json
import sys

import pytest

from conftest import ROOT, in_this_python

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/studies")]
import what_moves  # noqa: E402


def arm(name, half, whole, tried=()):
    return {"name": name, "state": "compared", "steps": 3000,
            "rate": {"chosen": 0.002, "tried": [{"rate": rate, "val/loss": loss} for rate, loss in tried]},
            "lengths": [{"length": 0.5, "test/loss": half}, {"length": 1.0, "test/loss": whole}]}


TASK = {"name": "char", "measured_on": {"split": "test", "examples": 871}, "arms": [
    arm("mha", [1.8, 1.9, 2.0], [1.6, 1.7, 1.8], [(0.001, 1.75), (0.002, 1.7), (0.004, 1.71)]),
    arm("mha no positions", [2.0, 2.1, 2.2], [1.7, 1.8, 1.9]),
    arm("moh", [1.8, 1.9, 2.0], [1.61, 1.72, 1.83]),
    arm("mta", [1.9, 2.0, 2.1], [1.61, 1.71, 1.81]),
    arm("mta paper", [2.2, 2.3, 2.4], [1.6, 1.7, 1.8]),
    {"name": "linformer", "state": "impossible"}]}


def test_every_decision_has_its_row_beside_the_kinds():
    head, _, *rows = [line[2:-2].split(" | ") for line in what_moves.moves(TASK, "mha").splitlines()
                      if line.startswith("|")]
    assert head == ["what changes", "after 1,500 updates", "after 3,000 updates"]
    # moh less mha is .01, .02, .03: mean .02, standard deviation .01, and 4.303 * .01 / sqrt(3) = .0248.
    assert rows == [
        ["one seed for another: standard deviation", "0.100", "0.100"],
        ["rate: half of mha's best, 0.002 (validation)", "-", "+0.050"],
        ["rate: twice mha's best, 0.002 (validation)", "-", "+0.010"],
        ["positions: no positions in place of rope", "+0.200 [+0.200, +0.200]", "+0.100 [+0.100, +0.100]"],
        ["initialisation: a paper's in place of plain heads', the largest of 1", "`mta` +0.300 [+0.300, +0.300]",
         "`mta` -0.010 [-0.010, -0.010]"],
        ["length: mha less its own at the end", "+0.200 [+0.200, +0.200]", "-"],
        ["**kind**: less mha, the largest of 2", "`mta` +0.100 [+0.100, +0.100]", "`moh` +0.020 [-0.005, +0.045]"]]


def test_the_table_goes_between_the_markers_of_a_page(tmp_path):
    results, page = tmp_path / "kinds.json", tmp_path / "page.md"
    results.write_text(json.dumps({"baseline": "mha", "tasks": [TASK]}))
    page.write_text("before\n<!-- what moves -->\nold\n<!-- end of what moves -->\nafter\n")
    done = in_this_python(what_moves.main, results, "--page", page)
    assert done.returncode == 0, done.stderr
    assert page.read_text() == (f"before\n<!-- what moves -->\n{what_moves.moves(TASK, 'mha')}"
                                "<!-- end of what moves -->\nafter\n")
    assert "871 examples" in page.read_text() and "3 seeds" in page.read_text()


def test_what_cannot_be_told_is_refused(tmp_path):
    results = tmp_path / "kinds.json"
    results.write_text(json.dumps({"baseline": "mha", "tasks": [TASK]}))
    assert in_this_python(what_moves.main, results, "--task", "mqar").returncode == 2
    with pytest.raises(what_moves.ProgramError, match="moh has no results"):
        what_moves.moves({**TASK, "arms": TASK["arms"][:1]}, "moh")
