"""One question never takes another's answer: what ablate and analyze write, and under which name;
words that look like paths; what the reader says of the source of a number."""

import json
import pathlib
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from conftest import headlab, program

import headlab_log as hl


@pytest.fixture
def fresh(small_run, tmp_path):
    """The small run without what was measured of it."""
    shutil.copytree(small_run, tmp_path / "run", symlinks=True)
    for name in "analysis.h5", "ablation.h5":
        (tmp_path / "run" / name).unlink()
    return tmp_path / "run"


def found(*arguments):
    return json.loads(headlab(*arguments, "--json"))


def name_of(*arguments):
    """The name of the file that a command wrote."""
    return found(*arguments)["out"].rsplit("/", 1)[1]


def files(run):
    return sorted(path.name for path in run.glob("*.h5") if path.name != "log.h5")


def refused(*arguments, cwd=None):
    done = subprocess.run([pathlib.Path(program()).resolve(), *map(str, arguments)], cwd=cwd,
                          capture_output=True, text=True)
    assert done.returncode != 0 and not done.stdout
    return done.returncode, done.stderr


@pytest.mark.parametrize("command, word", [
    *((["eval"], word) for word in ("TYPO.txt", "texts/typo", "./typo", "a.b.md", "typo.7z", "typo.tar_gz")),
    (["ablate"], "TYPO.txt"), (["analyze"], "texts/typo"), (["prune", "--count", "1"], "./typo"),
    (["convert", "--to", "collaborative"], "a.b.md")])
def test_a_word_that_looks_like_a_path_is_a_file(small_run, command, word, tmp_path):
    code, said = refused(command[0], small_run, *command[1:], "--text", word, cwd=tmp_path)
    assert code == 3
    assert f"--text {word}: there is no such file" in said
    assert "name one that exists" in said and f"--text '{word} '" in said


@pytest.mark.parametrize("text", ["Romeo", "Hear me.", "me, O me!", "3.14", ".", "Romeo...", "v 1.txt",
                                  "TYPO.txt ", "and / or"])
def test_a_text_that_is_no_path_is_the_text_itself(small_run, text):
    code_of = subprocess.run([program(), "eval", str(small_run), "--text", text], capture_output=True,
                             text=True)
    # A letter that the run's text lacks, or one token alone, is refused as such.
    assert code_of.returncode == 0 or "no such file" not in code_of.stderr


def test_a_text_in_a_file_is_named_as_its_source(small_run, tmp_path):
    (tmp_path / "other.txt").write_text("First Citizen:\nBefore we proceed\n")
    for option in "--text", "--data":
        assert found("eval", small_run, option, tmp_path / "other.txt")["data"] == [
            str(tmp_path / "other.txt")]


def test_each_measure_has_a_file_of_its_own(fresh, tmp_path):
    (tmp_path / "other.txt").write_text("First Citizen:\nBefore we proceed any further\n" * 4)
    usual = ["ablate", fresh, "--batches", 2, "--batch", 4]
    assert name_of(*usual) == "ablation.h5"
    before = (fresh / "ablation.h5").read_bytes()
    others = {name_of(*usual, *options) for options in (
        ["--mode", "mean"], ["--mode", "uniform"], ["--mode", "all"], ["--split", "train"],
        ["--heads", "0:1,2", "1:0"], ["--heads", "0:1"], ["--text", "To be, or not to be"],
        ["--text", "To be, or not to me"], ["--data", tmp_path / "other.txt"],
        ["--text", "To be, or not to be", "--context", 8])}
    assert len(others) == 10 and "ablation.h5" not in others
    assert {"ablation-mean.h5", "ablation-uniform.h5", "ablation-all-modes.h5", "ablation-train.h5",
            "ablation-heads-0.1-0.2-1.0.h5", "ablation-heads-0.1.h5"} <= others
    assert any(name.startswith("ablation-text-To-be-or-not-to-be-") for name in others)
    assert any(name.startswith("ablation-data-other-") for name in others)
    assert (fresh / "ablation.h5").read_bytes() == before
    there = files(fresh)
    assert set(there) == others | {"ablation.h5"}
    # The same heads in other words, and the same question again.
    assert name_of(*usual, "--heads", "1:0", "0:2,1") == "ablation-heads-0.1-0.2-1.0.h5"
    assert name_of(*usual, "--text", "To be, or not to be") in others
    assert files(fresh) == there
    # Another text under the same name is another one.
    (tmp_path / "other.txt").write_text("First Citizen:\nSpeak, speak.\n" * 4)
    assert name_of(*usual, "--data", tmp_path / "other.txt") not in others


def test_a_quick_look_does_not_take_the_place_of_a_longer_one(fresh):
    def loss():
        with h5py.File(fresh / "ablation.h5") as file:
            return file["ablation/self/loss_delta"][0], file["ablation/self/loss_delta"].attrs["examples"]

    once = ["ablate", fresh, "--batch", 4]
    assert name_of(*once, "--batches", 1) == "ablation.h5"  # nothing was there
    assert loss()[1] == 4
    assert name_of(*once, "--batches", 3) == "ablation.h5"  # which is more of the same
    longer = loss()
    assert longer[1] == 12
    assert name_of(*once, "--batches", 1) == "ablation-batches-1-batch-4.h5"
    np.testing.assert_array_equal(loss()[0], longer[0])
    assert name_of(*once, "--batches", 3, "--pairs") == "ablation.h5"
    assert name_of(*once, "--batches", 3) == "ablation-batches-3-batch-4.h5"
    with h5py.File(fresh / "ablation.h5") as file:
        assert "pair_l2" in file["ablation/self"]


def test_a_part_of_an_analysis_does_not_take_the_place_of_it(fresh):
    once = ["analyze", fresh, "--batches", 1]
    assert name_of(*once, "--importance") == "analysis.h5"  # nothing was there
    assert name_of(*once) == "analysis.h5"
    assert name_of(*once, "--importance") == "analysis-importance-batches-1.h5"
    assert name_of(*once, "--stats", "entropy") == "analysis-entropy-batches-1.h5"
    assert name_of(*once, "--maps", 1) == "analysis.h5"
    assert name_of(*once) == "analysis-batches-1.h5"
    assert name_of(*once, "--top-k", 3, "--thresholds", "sink=0.5") == "analysis-top-k-3-sink-0.5.h5"
    assert hl.open_run(fresh).analysis().sizes["example"] == 1


def test_another_checkpoint_is_another_question(fresh):
    saved = fresh / "ckpt"
    last = (saved / "last").resolve()
    assert name_of("ablate", saved / "last", "--batches", 1) == "ablation.h5"
    assert name_of("ablate", last, "--batches", 1) == "ablation.h5"
    shutil.copytree(last, saved / "step-00000007")
    assert name_of("ablate", saved / "step-00000007", "--batches", 1) == "ablation-step-20.h5"


def test_results_of_older_weights_or_that_are_damaged_are_replaced(fresh):
    assert name_of("ablate", fresh, "--batches", 2) == "ablation.h5"
    with h5py.File(fresh / "ablation.h5", "r+") as file:
        manifest = json.loads(file.attrs["manifest_json"])
        manifest["parent"]["step"] = 5
        file.attrs["manifest_json"] = json.dumps(manifest)
    assert name_of("ablate", fresh, "--batches", 1) == "ablation.h5"
    (fresh / "ablation.h5").write_bytes(b"nonsense")
    assert name_of("ablate", fresh, "--batches", 1) == "ablation.h5"


def test_the_reader_has_every_answer_with_its_source(fresh):
    headlab("ablate", fresh, "--batches", 2, "--batch", 4)
    headlab("ablate", fresh, "--batches", 1, "--batch", 4, "--mode", "mean")
    headlab("analyze", fresh, "--batches", 1, "--batch", 4)
    headlab("analyze", fresh, "--text", "To be, or not to be", "--importance")
    with hl.open_run(fresh) as run:
        text = next(name for name in run.results if name.startswith("analysis-text-To-be"))
        assert list(run.results) == ["ablation", "ablation-mean", "analysis", text]
        assert run.results["ablation"] == "val of tinyshakespeare.txt, first 8 examples"
        assert run.results["ablation-mean"] == "val of tinyshakespeare.txt, first 4 examples"
        assert run.results[text] == "the text 'To be, or not to be', first 1 example"
        assert list(run.ablation()["mode"].values) == ["zero"]
        assert list(run.ablation(of="mean")["mode"].values) == ["mean"]
        of = text.removeprefix("analysis-")
        given, usual = run.analysis(of=of).importance, run.analysis().importance
        assert given.attrs["measured"] == run.results[text] != usual.attrs["measured"]
        assert not np.array_equal(given.values, usual.values)
        assert "measured" not in run.analysis().qk_rank_95.attrs  # of weights alone
        assert run.roles().previous.attrs["measured"] == "val of tinyshakespeare.txt"
        assert f"analysis-{of}/self" in run and f"roles-{of}/self" in run and "ablation-mean" in run
        assert not any(name in run for name in ("ablation-uniform", "ablation-", "analysis-mean"))
        with pytest.raises(hl.LogError, match="has no ablation-uniform; it has: .*ablation-mean/self"):
            run.ablation(of="uniform")
        assert hl.to_pandas(run, "ablation-mean/self").index.names == ["mode", "layer", "head"]
    (fresh / "ablation.h5").unlink()
    with hl.open_run(fresh) as run:  # the only one there is
        assert list(run.ablation()["mode"].values) == ["mean"]
    headlab("ablate", fresh, "--batches", 1, "--batch", 4, "--mode", "uniform")
    with hl.open_run(fresh) as run:
        with pytest.raises(hl.LogError, match="ablation-mean, ablation-uniform"):
            run.ablation()
