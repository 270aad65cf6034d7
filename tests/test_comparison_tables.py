"""compare.csv and compare.tex hold what compare.json and compare.md do."""

import csv
import json
import re
import shutil
import subprocess

import pytest

from comparison_testing import folder_of


@pytest.fixture
def folder(compared):
    return folder_of(compared[0])


@pytest.fixture
def kept(folder):
    return json.loads((folder / "compare.json").read_text())


def test_the_csv_reads_back_to_the_numbers_of_the_json(folder, kept):
    with open(folder / "compare.csv", newline="", encoding="utf-8") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    arms = {arm["name"]: arm for arm in kept["tasks"][0]["arms"]}
    assert list(rows) == list(arms) and {row["task"] for row in rows.values()} == {"small"}
    for name, row in rows.items():
        assert row["reason"] == arms[name]["reason"]
        for metric in ("val/loss", "val/accuracy"):
            of = arms[name].get("metrics", {}).get(metric)
            if of is None:
                assert row[f"{metric}.mean"] == ""
                continue
            assert [float(row[f"{metric}.values.{seed}"]) for seed in (1, 2, 3)] == of["values"]
            assert (float(row[f"{metric}.mean"]), float(row[f"{metric}.std"])) == (of["mean"], of["std"])
            difference = of["difference"]
            if difference is None:
                assert row[f"{metric}.difference.mean"] == ""
                continue
            assert [float(row[f"{metric}.difference.{end}"]) for end in ("low", "high")] == difference["interval"]
            assert float(row[f"{metric}.difference.p_holm"]) == difference["p_holm"]
            assert json.loads(row[f"{metric}.difference.reported"]) is difference["reported"]
    assert float(rows["wider"]["rate.chosen"]) == arms["wider"]["rate"]["chosen"]
    runs = arms["wider"]["runs"]
    assert rows["wider"]["runs.commit"] == runs[0]["commit"] and rows["wider"]["runs.machine"] == runs[0]["machine"]
    assert rows["again"]["notices"] == "; ".join(arms["again"]["notices"])


def plain_latex(cell):
    """A cell of LaTeX as compare.md has it."""
    for latex, text in (("$\\pm$", "±"), ("$-$", "-"), ("{[}", "["), ("$^{*}$", " *"), ("$<$", "<"), ("$>$", ">"),
                        ("\\%", "%"), ("\\_", "_")):
        cell = cell.replace(latex, text)
    return "-" if cell == "--" else cell


def test_the_latex_table_has_booktabs_all_arms_and_what_it_was_measured_on(folder, kept):
    text = (folder / "compare.tex").read_text(encoding="utf-8")
    body = re.search(r"\\toprule\n(.*)\\midrule\n(.*)\\bottomrule", text, re.S)
    head, *rows = [[plain_latex(cell) for cell in line.removesuffix(r" \\").split(" & ")]
                   for part in body.groups() for line in part.splitlines()]
    assert "l" + "r" * (len(head) - 1) == re.search(r"\\begin\{tabular\}\{(.*)\}", text)[1]
    lines = [line[2:-2].split(" | ") for line in (folder / "compare.md").read_text().splitlines()
             if line.startswith("| ")]
    titles = {title.replace(" ", ""): n for n, title in enumerate(lines[0])}
    found = [titles[re.sub(r"\\shortstack\{(.*)\}$", r"\1", cell).replace(r"\\", "").replace(" ", "")]
             for cell in head]
    assert {"arm", "parameters", "val/loss[nat],mean±sd", "effectivespeedup"} <= {
        list(titles)[n] for n in found} and "time" not in head
    assert len(rows) == 5 and all(len(row) == len(head) for row in rows)
    for row, cells in zip(rows, lines[1:]):
        assert row[0] == cells[0]
        assert set(row) <= {"-" if cell.startswith("- (") else cell for cell in cells}
    assert text.count("{") == text.count("}") and "±" not in text
    caption = re.search(r"\\caption\{(.*)\}\n", text)[1]
    run = kept["tasks"][0]["arms"][0]["runs"][0]["run"]
    manifest = json.loads(open(f"{run}/manifest.json", encoding="utf-8").read())
    for said in ("64 examples", "whole val split", "3 seeds (1, 2, 3)", "after 24 updates", "cpu in fp32",
                 manifest["cpu"].split("(")[0], "linformer has no figures"):
        assert said in caption, said
    assert ((manifest["git"] or {}).get("commit") or "not known")[:8] in caption


def test_the_latex_table_compiles(folder, tmp_path):
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed (apt install texlive-latex-recommended); its structure is tested")
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
        + (folder / "compare.tex").read_text(encoding="utf-8") + "\\end{document}\n", encoding="utf-8")
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
