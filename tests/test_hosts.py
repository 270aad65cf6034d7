"""scripts/studies/hosts.py trains configs with several seeds; its table is what their runs hold."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT, in_this_python, program

sys.path.insert(0, str(ROOT / "scripts/studies"))
import hosts as study  # noqa: E402
from headlab_program import ProgramError  # noqa: E402
from kept import Kept  # noqa: E402

SMALL = ("train.epochs=1", "train.steps=4", "train.batch=4", "model.layers=1", "model.d_model=16",
         "data=digits", "model.patch=4", "log.stats_every=0")
SET = [word for setting in SMALL for word in ("--set", setting)]


def hosts(*arguments):
    def main():
        try:
            study.main()
        except ProgramError as error:  # as the script ends then
            sys.exit(str(error))

    return in_this_python(main, "--program", program(), *SET, *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the runs, the file of what is kept of them, and what the script said."""
    out = tmp_path_factory.mktemp("runs")
    kept = tmp_path_factory.mktemp("kept") / "kept.json"
    script = [sys.executable, ROOT / "scripts/studies/hosts.py", "--program", program(), *SET]
    done = subprocess.run([*script, "mnist_vit_mh?", "mnist_vit_talking:1", "--seeds", "2", "--out", out,
                           "--kept", kept], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, kept, done


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_config_is_trained_with_its_seeds_and_has_a_row(runs):
    out, _, done = runs
    assert sorted(path.parent.name + path.name[8:] for path in out.glob("*/*")) == [
        "mnist_vit_mha-s1337", "mnist_vit_mha-s1338", "mnist_vit_talking-s1337"]
    *_, head, rule, mha, talking = done.stdout.splitlines()
    assert head.count("|") == rule.count("|") == mha.count("|") == talking.count("|")
    assert mha.startswith("| `mnist_vit_mha` | 2 |") and "±" in mha
    assert talking.startswith("| `mnist_vit_talking` | 1 |") and "±" not in talking


def test_numbers_are_those_of_the_runs(runs):
    out, _, done = runs
    again = hosts("mnist_vit_mha", "--seeds", 2, "--out", out, "--json")
    assert again.returncode == 0, again.stderr  # nothing is trained again
    row, = json.loads(again.stdout)
    ends = [metrics(run)[-1] for run in sorted(out.glob("mnist_vit_mha/*"), key=lambda run: run.name[-4:])]
    assert row["accuracy"] == [end["val/accuracy"] for end in ends]
    assert row["loss"] == [end["val/loss"] for end in ends]
    assert row["time"] == [end["wall_s"] for end in ends]
    losses = row["loss"]
    deviation = abs(losses[0] - losses[1]) / math.sqrt(2)
    line = next(line for line in done.stdout.splitlines() if "`mnist_vit_mha`" in line)
    assert f"| {sum(losses) / 2:.3f} ± {deviation:.3f} |" in line
    assert f"| {row['parameters']:,} |" in line


def test_losses_are_held_against_those_of_the_same_seed(runs):
    out, kept, _ = runs
    arguments = ("mnist_vit_talking:1", "mnist_vit_mha:2", "--out", out, "--kept", kept)
    done = hosts(*arguments, "--against", "mnist_vit_mha")
    talking, mha = (metrics(next(out.glob(f"{name}/*-s1337")))[-1]["val/loss"]
                    for name in ("mnist_vit_talking", "mnist_vit_mha"))
    *_, head, _, first, second = done.stdout.splitlines()
    assert "| loss against `mnist_vit_mha` |" in head
    assert f"| {talking - mha:+.3f} |" in first
    assert "|  |" in second
    assert hosts(*arguments, "--against", "char_mha").returncode == 2


def test_what_is_named_last_says_how_many_seeds():
    assert study.chosen(["mnist_vit_mha:2", "mnist_vit_mh?:1"], 3) == {"mnist_vit_mha": 1}
    assert study.chosen(["mnist_vit_mha:2", "mnist_vit_talking"], 3) == {
        "mnist_vit_mha": 2, "mnist_vit_talking": 3}


@pytest.mark.parametrize("wrong, said", [("mnist_vit_mah", "no configs/mnist_vit_mah.yaml"),
                                         ("mnist_vit_mha:0", "must be at least 1"),
                                         ("mnist_vit_mha:many", "must be at least 1")])
def test_what_cannot_be_trained_is_refused_at_once(tmp_path, wrong, said):
    done = hosts(wrong, "--out", tmp_path / "runs")
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_training_that_fails_ends_the_study_with_what_it_said(tmp_path):
    done = hosts("mnist_vit_mha:1", "--set", "model.patch=3", "--out", tmp_path)
    assert done.returncode == 1 and "3 does not divide the images" in done.stderr


def test_the_study_in_docs_is_of_its_script():
    assert "scripts/studies/hosts" in (ROOT / "docs/hosts.md").read_text()
    assert pathlib.Path(ROOT / "scripts/studies/hosts").stat().st_mode & 0o111


def test_what_is_kept_is_not_trained_again_until_what_made_it_changes(runs, tmp_path):
    _, kept, _ = runs
    done = hosts("mnist_vit_mha", "--seeds", 1, "--out", tmp_path / "out", "--kept", kept, "--json")
    assert done.returncode == 0 and not (tmp_path / "out").exists(), done.stderr
    row, = json.loads(done.stdout)
    results = json.loads(kept.read_text())
    assert [(one["config"], one["seed"]) for one in results] == [
        ("mnist_vit_mha", 1337), ("mnist_vit_mha", 1338), ("mnist_vit_talking", 1337)]
    assert [results[0]["end"]["loss"]] == row["loss"]
    there, config = Kept(kept), ROOT / "configs/mnist_vit_mha.yaml"
    settings = [there.settings(program(), config, ["seed=1337", "train.threads=1", *SMALL, *more])
                for more in ([], ["train.steps=3"])]
    assert there.find(settings[0]) == results[0] and there.find(settings[1]) is None
    for change in ({"kinds": {"mha": "of another source"}},
                   {"data": {"configs/char_mha.yaml": "of other bytes"}}):
        (tmp_path / "changed.json").write_text(json.dumps([one | change for one in results]))
        assert Kept(tmp_path / "changed.json").find(settings[0]) is None
