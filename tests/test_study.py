"""scripts/studies/pruning.py and importance.py train, prune and say what came of it; here in seconds."""

import json
import pathlib
import subprocess
import sys
from unittest import mock

import pytest

from conftest import ROOT, TINY, in_this_python, program

import headlab_program

sys.path[:0] = [str(ROOT / "scripts/studies"), str(ROOT / "scripts/notebooks")]
import importance  # noqa: E402
import pruning  # noqa: E402
import sites  # noqa: E402
from make import small_settings  # noqa: E402

SMALL = ("train.steps=6", "train.batch=4", "train.eval_batches=1", "data.context=16",
         "model.d_model=32", "log.stats_every=0", "log.attention.probes=1")


def run_script(script, out, *options):
    settings = [word for setting in SMALL for word in ("--set", setting)]
    done = in_this_python(script.main, "--program", program(), "--random", 2, "--batches", 1, "--threads", 1,
                          "--out", out, *options, *settings)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The text is short: every tuning would measure all of it."""
    folder, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("study")
    (folder / "configs").mkdir()
    (text,) = [one.removeprefix("data.path=") for one in TINY if one.startswith("data.path=")]
    for name in "char_mha", "induction_mha":
        config = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8")
        (folder / f"configs/{name}.yaml").write_text(config.replace("data/tinyshakespeare.txt", text))
    with mock.patch.object(headlab_program, "ROOT", folder):
        done = run_script(pruning, out, "--seeds", 1, "--tune", 3)
    return json.loads((out / "study.json").read_text()), done.stdout, out


def test_every_head_goes_once_in_every_order(study):
    for task, heads in (("char", 16), ("induction", 8)):
        for model in study[0][task]:
            assert len(model["heads"]) == heads
            assert len(model["curves"]) == 6
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
    (model,) = numbers["char"]
    loss = model["curves"]["importance"]["loss"]
    line = next(l for l in text.splitlines() if l.startswith("| importance |"))
    assert float(line.split("|")[2]) == pytest.approx(loss["8"] - loss["16"], abs=6e-4)
    assert text.count("### ") == 2
    assert "Accuracy of copying with heads ablated" in text
    assert (out / "pruning.png").stat().st_size > 10_000


INDUCTION = ("--tasks", "induction", "--kinds", "mha", "--seeds", 1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("importance")
    return run_script(importance, out, *INDUCTION).stdout, out


def kept_of(out):
    """By the options of `prune` what OUT holds of the model."""
    (path,) = out.glob("measured/induction_mha-*-s1337.json")
    return path, json.loads(path.read_text())


def measured_by(options, kept):
    """The one command among those kept that ends in these options."""
    found = [command for command in kept if command.endswith(options)]
    assert len(found) == 1, found
    return found[0]


def test_every_reduction_and_norm_is_measured_once_and_anew(measured):
    text, out = measured
    kept = kept_of(out)[1]
    assert len(kept) == 2 * (3 * 2 + 1 + 3) + 2
    for command, curve in kept.items():
        least = 2 if command.endswith("--keep-per-layer 1") else 0
        assert sorted(map(int, curve["loss"])) == list(range(least, 9)), command
        assert len(set(curve["order"])) == 8 - least
    for reduction in "paper", "per_position", "batch":
        for norm in "layer", "global":
            options = f"--by importance --reduction {reduction} --norm {norm}"
            assert measured_by(options, kept) and measured_by(f"{options} --recompute", kept)
            assert f"| {reduction}, {norm} |" in text
            assert f"| {reduction}, {norm}, ranked anew |" in text
    assert "| paper, global, one a layer kept, ranked anew |" in text
    assert (out / "importance.png").stat().st_size > 10_000


def test_the_rises_are_means_over_the_seeds(measured, capsys):
    text, out = measured
    kept = kept_of(out)[1]
    loss = kept[measured_by("--reduction batch --norm global", kept)]["loss"]
    line = next(l for l in text.splitlines() if l.startswith("| batch, global |"))
    assert float(line.split("|")[4]) == pytest.approx(loss["2"] - loss["8"], abs=6e-4)  # of one seed

    def model(rise):
        return {order: {heads: 3 + rise * (8 - heads) for heads in range(9)} for order in ("batch, global", "random 0")}

    importance.print_rises("induction_mha", [model(.125), model(.25)])
    said = capsys.readouterr().out
    assert "| batch, global | 0.375 ± 0.177 | 0.750 ± 0.354 | 1.125 ± 0.530 |" in said
    assert "loss 3.000 ± 0.000, 2 seeds" in said


def test_what_was_measured_is_not_measured_again_but_by_another_program(measured):
    text, out = measured
    path, kept = kept_of(out)
    random = kept[measured_by("--by random --seed 1", kept)]
    random["program"]["headlab"] = "0.0.0"
    random["loss"]["8"] = -1
    path.write_text(json.dumps(kept))
    again = run_script(importance, out, *INDUCTION)
    said = [line for line in again.stderr.splitlines()
            if line.startswith("importance: ") and ("random" in line or "," in line)]
    assert len(said) == 1 and said[0].endswith("-s1337: random 1")
    assert again.stdout == text


def test_the_study_in_docs_is_of_its_script():
    text = (ROOT / "docs/pruning.md").read_text()
    assert "scripts/studies/pruning" in text
    assert (ROOT / "docs/pruning.png").exists()
    assert pathlib.Path(ROOT / "scripts/studies/pruning").stat().st_mode & 0o111


@pytest.fixture(scope="module")
def by_site(tmp_path_factory):
    out = tmp_path_factory.mktemp("by_site")
    small = small_settings("multi30k_mha", out)
    config = ROOT / "configs/multi30k_mha.yaml"
    settings = [*small, "model.layers=1", "model.heads=2", "train.steps=300", "train.epochs=80",
                "train.lr=5.0e-3"]
    done = subprocess.run([program(), "run", config, *settings, "--out", out, "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = [json.loads(done.stdout)["run"], "--program", program(), "--parts", 2, "--random", 1, "--tune", 2,
             "--out", out]
    done = in_this_python(sites.main, *words)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "study.json").read_text())[0], done.stdout, words


def test_heads_of_each_site_go_and_what_is_left_translates(by_site):
    study, text, _ = by_site
    sites = ["encoder_self", "decoder_self", "cross"]
    assert study["sites"] == sites
    assert study["heads"] == {**dict.fromkeys(sites, 2), "all three": 6}
    assert list(study["cells"]) == ["1/2", "2/2", "half, at random", "half, then tuned"]
    cells = study["cells"]
    # What is never looked at cannot be translated; each random draw is measured.
    assert cells["2/2"]["cross"]["loss"] > study["whole"]["loss"] + 0.5
    assert list(cells["2/2"]) == sites
    assert all(len(draws) == 1 for draws in cells["half, at random"].values())
    line = next(line for line in text.split("validation loss")[1].splitlines()
                if line.startswith("| 1/2 |"))
    shown = [float(cell) for cell in line.split("|")[2:-1]]
    assert shown == pytest.approx([cells["1/2"][site]["loss"] for site in (*sites, "all three")],
                                  abs=6e-4)
    for layer in study["layers"].values():  # of two heads one is left, as when half of them go
        assert layer["loss"] == pytest.approx(cells["1/2"][layer["best"].split("/")[0]]["loss"])


def test_what_is_measured_by_site_is_not_measured_again(by_site):
    _, text, words = by_site
    again = in_this_python(sites.main, *words)
    assert again.returncode == 0 and not again.stderr
    assert again.stdout == text
