"""scripts/studies/compare_heads.py runs a comparison; its tables are what `headlab compare` reports."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT, program
from test_compare_command import COMPARISON, TASK


def compare(*arguments):
    script = [sys.executable, str(ROOT / "scripts/studies/compare_heads.py"), "--program", program()]
    return subprocess.run([*script, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a small comparison with its results, and what was printed."""
    bench = tmp_path_factory.mktemp("bench")
    (bench / "small.yaml").write_text(TASK)
    (bench / "c.yaml").write_text(COMPARISON)
    done = compare(bench / "c.yaml", "train.weight_decay=0.05", "--speed-rounds", 1, "--out",
                   bench / "runs", "--results", bench / "results.json")
    assert done.returncode == 0, done.stderr
    return bench, done.stdout


def rows_of(text):
    """Of each table in it the rows by their first cell."""
    tables = []
    for line in text.splitlines():
        if line.startswith("| kind "):
            tables.append({})
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            tables[-1][cells[0].strip("` ")] = cells
    return tables


def test_a_row_an_arm_with_its_figures(results):
    bench, text = results
    report = json.loads((bench / "results.json").read_text())
    task, = report["tasks"]
    assert 0 < 3600 * task["choosing_hours"] < sum(run["wall_s"] for arm in task["arms"] for run in arm.get("runs", []))
    arms = {arm["name"]: arm for arm in task["arms"]}
    costs, measured = rows_of(text)
    assert list(costs) == list(measured) and next(iter(costs)) == "mha"
    assert set(costs) == {"mha", "wider", "again", "linformer"} == set(arms)
    metric = arms["wider"]["metrics"]["val/accuracy"]
    assert f"{metric['mean']:.3f} ± {metric['std']:.3f}" in measured["wider"]
    assert f"{metric['difference']['mean']:+.3f} [" in measured["wider"][3]
    assert measured["mha"][3] == "-" and measured["linformer"][2] == "-"
    assert costs["mha"][-1] == "1.00" and arms["wider"]["steps_per_s"] > 0
    # Keys and values of one layer of two heads of 8, and of two of 16.
    assert costs["mha"][5] == f"{2 * 16 * 4}" and costs["wider"][5] == f"{2 * 32 * 4}"


def test_results_say_whence_and_hold_no_path_of_the_machine(results):
    bench, text = results
    kept = (bench / "results.json").read_text()
    assert str(bench) not in kept and str(bench) not in text
    said, = [line for line in text.splitlines() if "headlab compare c.yaml train.weight_decay=0.05" in line]
    assert said.count(";") == 3 and " hours of one thread, and 0.0 to choose" in said  # when, on what, by which commit, how long
    assert "seeds 1, 2, 3" in text and "64 examples" in text


def test_results_are_drawn_and_told_again_without_a_training(results, tmp_path):
    bench, text = results
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- side by side -->\nold\n<!-- end of side by side -->\nbelow\n")
    done = compare(bench / "results.json", "--page", page, "--picture", tmp_path / "losses.png",
                   "--out", tmp_path / "none")
    assert done.returncode == 0, done.stderr
    assert done.stdout == text and not (tmp_path / "none").exists()
    assert page.read_text() == (
        f"above\n<!-- side by side -->\n{text}<!-- end of side by side -->\nbelow\n")
    assert (tmp_path / "losses.png").stat().st_size > 10_000


def test_a_task_alone_takes_its_place_among_the_others(results, tmp_path):
    bench, _ = results
    kept = json.loads((bench / "results.json").read_text())
    other = {**kept["tasks"][0], "name": "other", "command": "headlab compare c.yaml --task other"}
    path = tmp_path / "results.json"

    def again(**changed):
        path.write_text(json.dumps({**kept, "tasks": [other, {**kept["tasks"][0], "arms": []}], **changed}))
        return compare(bench / "c.yaml", "train.weight_decay=0.05", "--task", "small", "--speed-rounds", 0,
                       "--out", bench / "runs", "--results", path)

    done = again()
    assert done.returncode == 0, done.stderr
    first, second = json.loads(path.read_text())["tasks"]
    assert first == other and second["name"] == "small" and len(second["arms"]) == 4
    assert "c.yaml --task other`" in done.stdout and "train.weight_decay=0.05 --task small`" in done.stdout
    refused = again(seeds=[1, 2])
    assert refused.returncode == 1 and "has other seeds, [1, 2] instead of [1, 2, 3]" in refused.stderr
    assert json.loads(path.read_text())["seeds"] == [1, 2]


def test_a_page_without_markers_is_refused_before_anything_is_trained(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no markers\n")
    done = compare(results[0] / "c.yaml", "--page", page, "--out", tmp_path / "runs")
    assert done.returncode == 2 and "has no <!-- side by side -->" in done.stderr
    assert page.read_text() == "no markers\n" and not (tmp_path / "runs").exists()
