"""scripts/studies/compare_heads.py trains kinds with several seeds; its table is what their logs hold."""

import json
import math
import pathlib
import subprocess
import sys

import h5py
import pytest

from conftest import ROOT, program

SMALL = ("train.steps=6", "train.batch=4", "train.eval_batches=1", "model.layers=1",
         "model.d_model=16", "data.context=16", "log.every=2")


def compare(*arguments):
    script = [sys.executable, str(ROOT / "scripts/studies/compare_heads.py"), "--program", program()]
    for setting in SMALL:
        script += ["--set", setting]
    return subprocess.run([*script, *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    done = compare("--kinds", "gated,mha", "--seeds", "2", "--speed-rounds", "1",
                   "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_table_has_a_row_a_kind_and_mha_first(runs):
    trained, _, head, rule, mha, gated = runs[1].splitlines()
    assert trained.count(";") == 2  # when, on what and by which commit
    assert head.count("|") == rule.count("|") == mha.count("|") == gated.count("|")
    assert mha.startswith("| `mha` |") and gated.startswith("| `gated` |")


def test_numbers_are_those_of_the_runs(runs):
    out = runs[0]
    done = compare("--kinds", "gated,mha", "--seeds", "2", "--speed-rounds", "1",
                   "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr  # nothing is trained again
    rows = {row["kind"]: row for row in json.loads(done.stdout)}
    for kind, row in rows.items():
        losses, entropies, best = [], [], []
        for log in sorted(out.glob(f"char_{kind}/*/log.h5")):
            with h5py.File(log) as file:
                losses.append(float(file["eval/val_loss"][-1]))
                entropies.append(float(file["heads/self/entropy"][-1].mean()))
        for log in out.glob(f"induction_{kind}/*/log.h5"):
            with h5py.File(log) as file:
                best.append(float(file["heads/self/induction"][-1].max()))
        assert len(losses) == len(best) == 2
        assert sorted(row["losses"]) == pytest.approx(sorted(losses), rel=1e-5)
        assert row["val_loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)
        assert row["val_loss_std"] == pytest.approx(abs(losses[0] - losses[1]) / math.sqrt(2),
                                                    abs=1e-5)
        assert row["entropy"] == pytest.approx(sum(entropies) / 2, rel=1e-5)
        assert row["induction"] == pytest.approx(sum(best) / 2, rel=1e-5)
        assert row["steps_per_s"] > 0
    # Keys and values of one layer of 16 features.
    assert rows["mha"]["cache_bytes_per_token"] == rows["gated"]["cache_bytes_per_token"] == 2 * 16 * 4
    assert rows["gated"]["group"] == "routes or gates"
    assert rows["gated"]["parameters"] == rows["mha"]["parameters"] + 4 * (16 + 1)


def test_one_seed_has_no_spread(runs):
    arguments = ("--kinds", "mha", "--seeds", "1", "--speed-rounds", "1", "--out", str(runs[0]))
    row = compare(*arguments).stdout.splitlines()[-1]
    assert row.startswith("| `mha` |") and "±" not in row
    assert "±" in runs[1].splitlines()[-1]
    assert json.loads(compare(*arguments, "--json").stdout)[0]["val_loss_std"] is None


def test_what_is_kept_is_not_trained_again_and_is_drawn(runs, tmp_path):
    arguments = ("--kinds", "mha", "--seeds", "2", "--speed-rounds", "0",
                 "--kept", str(tmp_path / "kept.json"), "--json")
    first = compare(*arguments, "--out", str(runs[0]))
    assert first.returncode == 0, first.stderr
    again = compare(*arguments, "--out", str(tmp_path / "none"), "--picture",
                    str(tmp_path / "losses.png"))
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "losses.png").stat().st_size > 10_000


def test_a_page_keeps_what_stands_around_the_table(runs, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- side by side -->\nold\n<!-- end of side by side -->\nbelow\n")
    arguments = ("--kinds", "mha", "--seeds", "2", "--speed-rounds", "0", "--out", str(runs[0]))
    done = compare(*arguments, "--page", str(page))
    assert done.returncode == 0, done.stderr
    assert page.read_text() == (
        f"above\n<!-- side by side -->\n{done.stdout}<!-- end of side by side -->\nbelow\n")
    page.write_text("no markers\n")
    done = compare(*arguments, "--page", str(page))
    assert done.returncode == 2 and "has no <!-- side by side -->" in done.stderr
    assert page.read_text() == "no markers\n"


def test_an_unknown_kind_is_refused_with_those_that_are_there(tmp_path):
    done = compare("--kinds", "mah", "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "no configs/char_mah.yaml" in done.stderr and "mha" in done.stderr
    assert not (tmp_path / "runs").exists()
