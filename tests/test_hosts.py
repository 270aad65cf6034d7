"""scripts/studies/hosts.py trains configs with several seeds; its table is what their runs hold."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT, program

SMALL = ("train.epochs=1", "train.steps=4", "train.batch=4", "model.layers=1", "model.d_model=16",
         "data=digits", "model.patch=4", "log.stats_every=0")


def hosts(*arguments):
    script = [sys.executable, str(ROOT / "scripts/studies/hosts.py"), "--program", program()]
    for setting in SMALL:
        script += ["--set", setting]
    return subprocess.run([*script, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    done = hosts("mnist_vit_mh?", "mnist_vit_talking:1", "--seeds", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_config_is_trained_with_its_seeds_and_has_a_row(runs):
    out, done = runs
    assert sorted(path.parent.name + path.name[8:] for path in out.glob("*/*")) == [
        "mnist_vit_mha-s1337", "mnist_vit_mha-s1338", "mnist_vit_talking-s1337"]
    *_, head, rule, mha, talking = done.stdout.splitlines()
    assert head.count("|") == rule.count("|") == mha.count("|") == talking.count("|")
    assert mha.startswith("| `mnist_vit_mha` | 2 |") and "±" in mha
    assert talking.startswith("| `mnist_vit_talking` | 1 |") and "±" not in talking


def test_numbers_are_those_of_the_runs(runs):
    out, done = runs
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
    arguments = ("mnist_vit_talking:1", "mnist_vit_mha:2", "--out", runs[0])
    done = hosts(*arguments, "--against", "mnist_vit_mha")
    talking, mha = json.loads(hosts(*arguments, "--json").stdout)
    *_, head, _, first, second = done.stdout.splitlines()
    assert "| loss against `mnist_vit_mha` |" in head
    assert f"| {talking['loss'][0] - mha['loss'][0]:+.3f} |" in first
    assert "|  |" in second
    assert hosts(*arguments, "--against", "char_mha").returncode == 2


def test_what_is_named_last_says_how_many_seeds(runs):
    done = hosts("mnist_vit_mha:2", "mnist_vit_mh?:1", "--out", runs[0], "--json")
    assert [row["seeds"] for row in json.loads(done.stdout)] == [1]


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


def test_what_is_kept_is_not_trained_again_until_what_made_it_changes(tmp_path):
    file = tmp_path / "kept.json"

    def trained(out, *options):
        done = hosts("mnist_vit_mha", "--seeds", 1, "--out", tmp_path / out, "--kept", file, "--json",
                     *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), (tmp_path / out).exists()

    rows, _ = trained("one")
    assert trained("two") == (rows, False)
    _, anew = trained("three", "--set", "train.steps=3")
    assert anew
    results = json.loads(file.read_text())
    assert [(one["config"], one["seed"]) for one in results] == [("mnist_vit_mha", 1337)] * 2
    assert {one["end"]["loss"] for one in results} >= set(rows[0]["loss"])
    for change in ({"kinds": {"mha": "of another source"}},
                   {"data": {"configs/char_mha.yaml": "of other bytes"}}):
        file.write_text(json.dumps([one | change for one in results]))
        assert trained(f"changed-{next(iter(change))}")[1]
