"""What a command prints: the result must not be lost in silence, what it tells beside it may be."""

import json
import pathlib
import subprocess

import pytest

from conftest import ROOT, TINY, program, train

TRAINING = (ROOT / "configs/char_mha.yaml", *TINY)


def with_a_reader_that_leaves(*arguments):
    """The exit code of headlab, of whose stderr one line is read, and its stdout."""
    process = subprocess.Popen([program(), *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline()
    process.stderr.close()
    printed = process.stdout.read()
    process.stdout.close()
    return process.wait(), printed


def test_a_run_whose_progress_nobody_reads_any_more_goes_on_to_its_end(tmp_path):
    code, printed = with_a_reader_that_leaves("run", *TRAINING, "--out", tmp_path)
    assert code == 0
    path, = tmp_path.glob("char_mha/*")
    assert json.loads((path / "status.json").read_text())["status"] == "finished"
    assert str(path.name) in printed


@pytest.mark.parametrize("command, asked", (
    ("sweep", "base: {base}\ngrid: {{seed: [1, 2]}}\n"),
    ("compare", "tasks: [{base}]\nkinds: [mha, sigmoid]\nrates: [1.0e-3]\nchoose_seeds: 3\n"
                "seeds: [1, 2]\nmatch: none\n")))
def test_many_runs_whose_progress_nobody_reads_any_more_go_on_to_their_end(tmp_path, command, asked):
    (tmp_path / "asked.yaml").write_text(asked.format(base=TRAINING[0]))
    code, printed = with_a_reader_that_leaves(command, tmp_path / "asked.yaml", *TINY,
                                              "train.threads=1", "--out", tmp_path, "--json")
    assert code == 0
    assert json.loads(printed)


@pytest.mark.parametrize("arguments", (
    ("describe",), ("describe", "--markdown", "config"), ("--help",), ("--version",), ("run", "--help"),
    ("completion", "bash"), ("config", TRAINING[0]), ("inspect", "LOG"), ("eval", "RUN"),
    ("generate", "RUN", "--tokens", 5)))
def test_a_result_that_stdout_does_not_take_is_an_error(small_run, arguments):
    given = [str(a).replace("LOG", str(small_run / "log.h5")).replace("RUN", str(small_run))
             for a in arguments]
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run([program(), *given], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1] == "headlab: stdout: cannot be written: No space left on device"


def test_a_finished_run_stays_finished_where_stdout_does_not_take_its_result(tmp_path):
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run([program(), "run", *map(str, TRAINING), "--out", str(tmp_path)],
                              stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4, done.stderr
    path, = tmp_path.glob("char_mha/*")
    assert json.loads((path / "status.json").read_text())["status"] == "finished"
    assert train(tmp_path) == path  # with 0
