"""What tests of sweeps share: a sweep of three kinds with three seeds, and how it is run."""

import csv
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import time

import pytest

from conftest import ROOT, program

CLOCK = {"run", "wall_s", "tokens_per_s"}  # what no two sweeps have alike
SWEEP = f"""base: {ROOT}/configs/char_mha.yaml
grid:
  model.attention.kind: [mha, moh, collaborative]
  seed: [1, 2, 3]
"""
ONE_KIND, TWO_KINDS = (SWEEP.replace("[mha, moh, collaborative]", kinds) for kinds in ("[mha]", "[mha, moh]"))
TEXT = "The quick brown fox jumps over a lazy dog, and naps.\n" * 60
SETTINGS = ("train.steps=60", "train.batch=4", "train.threads=1", "train.eval_every=0",
            "train.checkpoint.every=5", "data.context=16", "data.path=text.txt", "model.layers=1",
            "model.d_model=16", "model.heads=4", "log.every=1", "log.stats_every=30",
            "log.attention.every=0")


@pytest.fixture
def bench(tmp_path):
    """A folder with a sweep file and the text that its points are trained on."""
    (tmp_path / "kinds.yaml").write_text(SWEEP)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def one_kind(bench):
    """The same, of one kind with its three seeds."""
    (bench / "kinds.yaml").write_text(ONE_KIND)
    return bench


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a finished sweep of two kinds with three seeds."""
    bench = tmp_path_factory.mktemp("trained")
    (bench / "kinds.yaml").write_text(TWO_KINDS)
    (bench / "text.txt").write_text(TEXT)
    sweep(bench, "runs")
    return folder_of(bench, "runs")


@pytest.fixture
def finished(one_kind, trained):
    """One kind whose three runs are there, finished."""
    for run in (trained.parent.parent / "char_mha").glob("[!.]*"):
        if "kind: mha" in (run / "config.yaml").read_text():
            shutil.copytree(run, one_kind / "runs/char_mha" / run.name, symlinks=True)
    return one_kind


def start(bench, out, *words):
    return subprocess.Popen(
        [os.path.abspath(program()), "sweep", "kinds.yaml", *SETTINGS, "--out", str(out), "--jobs", "2", *words],
        cwd=bench, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sweep(bench, out, *words, code=0):
    process = start(bench, out, *words)
    printed, said = process.communicate()
    assert process.returncode == code, said
    return printed, said


def folder_of(bench, out):
    found, = (bench / out / "sweeps").iterdir()
    return found


def table(bench, out):
    """The summary without what the clock says."""
    rows = list(csv.DictReader((folder_of(bench, out) / "summary.csv").open()))
    return [{key: value for key, value in row.items() if key not in CLOCK} for row in rows]


def statuses(bench, out):
    """run -> what its status.json says."""
    return {path.parent: json.loads(path.read_text())
            for path in (bench / out).glob("char_mha/[!.]*/status.json")}


def wait_until(true, process):
    """Polls for a state, which must come while the process lives."""
    while not true():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(.01)


def children_of(process):
    """Of a process, those that live."""
    listed = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def needed(name, package):
    """A program; the test is skipped, loudly, where it is not there."""
    found = shutil.which(name)
    if not found:
        pytest.skip(f"NOT TESTED: {name} is not here; the package {package} has it")
    return found


def slurm_script(bench, *words):
    """The array script of the sweep into runs/."""
    printed, _ = sweep(bench, "runs", *words, "--emit", "slurm", "--time", "00:10:00")
    return pathlib.Path(shlex.split(printed)[1])
