"""scripts/studies/claims.py: every block of docs/claims.md has its trainings, and its table is of its results."""

import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT, program
from test_compare_command import COMPARISON, TASK

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/studies")]
import claims  # noqa: E402
import claims_measured  # noqa: E402
import comparison  # noqa: E402
import study  # noqa: E402

PAGE = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
NAMES = [*claims.COMPARISONS, *claims_measured.SWEEPS]
RESULTS = json.loads((ROOT / "docs/claims.json").read_text())


def test_every_comparison_and_sweep_has_a_place_on_the_page():
    assert sorted(re.findall(r"<!-- (\d\w+) -->", PAGE)) == sorted(NAMES)
    for name in claims_measured.SWEEPS:
        assert claims_measured.file_of(name).exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_those_of_the_results(name):
    """`scripts/studies/claims --tables` writes them anew."""
    (shown,) = study.marked(name).findall(PAGE)
    assert shown == (claims.told(name, RESULTS[name]) if name in RESULTS else "")


def test_an_unknown_claim_is_refused(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "scripts/studies/claims.py"), "14_none"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "no claim is called 14_none" in done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small comparison with the runs of its arms, and how the program is called."""
    bench = tmp_path_factory.mktemp("claims")
    (bench / "small.yaml").write_text(TASK)
    (bench / "c.yaml").write_text(COMPARISON.replace("[1.0e-3, 4.0e-3]", "1.0e-3").replace("[1, 2, 3]", "[1, 2]")
                                  .replace("{name: wider, set: {model.head_dim: 16}}, ", ""))

    class Arguments:
        out, jobs = bench / "runs", 2
    Arguments.program = program()
    report, runs = comparison.compared(Arguments, bench / "c.yaml", "model.layers=2",
                                       "train.steps=8", "--skip-pruning")
    return Arguments, report, runs


def test_what_is_measured_beside_has_a_number_a_run(whole, monkeypatch):
    arguments, _, runs = whole
    monkeypatch.setattr(claims_measured, "SHARED", (8,))
    monkeypatch.setattr(claims_measured, "TUNE", 2)
    found = {}
    for claim, arm in claims_measured.OF_ARM:
        count = 2 if claim == "07_reattention" else 1
        found |= claims_measured.of_arm(arguments, claim, arm, runs["small", "mha"][:count])
    assert set(found) == {"converted to R = 8", "qk_layer_rank_95", "cosine of maps", "half by gates",
                          "half by importance", "half by random"}
    assert {name: len(values) for name, values in found.items() if len(values) > 1} == {"cosine of maps": 2}
    assert all(0 < rank <= 16 for rank in found["qk_layer_rank_95"])


def test_the_table_has_the_statistics_of_the_claim(whole):
    _, report, runs = whole
    for arm in report["tasks"][0]["arms"]:
        arm["statistics"] = claims.statistics_of(runs["small", arm["name"]], ["js", "alpha"]) \
            if arm["state"] == "compared" else {}
    text = claims.table(report)
    head, _, mha, *_ = [line for line in text.splitlines() if line.startswith("|")]
    assert head.endswith("| js |") and re.search(r"\| 0\.\d{3} \|$", mha)
