"""`prune --tune` and `convert --tune` that end before their time go on, and end as if they never had."""

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from conftest import ROOT, headlab, program, train

sys.path.insert(0, str(ROOT / "scripts/studies"))
from same_end import differences  # noqa: E402

# The n-th call that gives a file its name or puts it on the disk: the process gets a signal there,
# or the call fails. Every stage of a run is between two of them.
FAULT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
static int strikes(void) {
  static int calls = 0;
  const char *at = getenv("FAULT_AT");
  if (!at || ++calls < atoi(at)) return 0;
  const int number = atoi(getenv("FAULT_SIGNAL"));
  if (number == 0) { errno = atoi(getenv("FAULT_ERRNO")); return 1; }
  if (calls == atoi(at)) kill(getpid(), number);
  return 0;
}
int rename(const char *a, const char *b) {
  static int (*real)(const char *, const char *);
  if (!real) real = dlsym(RTLD_NEXT, "rename");
  return strikes() ? -1 : real(a, b);
}
int fsync(int d) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  return strikes() ? -1 : real(d);
}
"""
TIMES = {"seconds", "seconds_masked", "seconds_sliced", "time_saved", "time_saved_quartiles",
         "time_beyond_noise", "out"}
COMMANDS = {
    "prune": ("prune", "--count", 3, "--rounds", 2, "--tune", 5, "--batches", 2),
    "sliced": ("prune", "--count", 2, "--by", "activation", "--recompute", "--rounds", 2, "--tune",
               3, "--batches", 1, "--slice"),
    "gated": ("convert", "--to", "gated", "--target-heads", 3, "--tune", 9, "--batches", 2),
    "grouped": ("convert", "--kv-heads", 1, "--tune", 7),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return train(tmp_path_factory.mktemp("source"), "char_mha", "train.checkpoint.every=2",
                 "train.eval_every=3", "model.dropout=0.1", "log.every=1", "log.stats_every=2",
                 "log.attention.every=4")


@pytest.fixture(scope="module")
def fault(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fault")
    (folder / "fault.c").write_text(FAULT)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", folder / "fault.so",
                    folder / "fault.c", "-ldl"], check=True)
    return folder / "fault.so"


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Of a command's name: the run and the answer of one that nothing has stopped."""
    folder, found = tmp_path_factory.mktemp("whole"), {}

    def made(name):
        if name not in found:
            out = folder / name
            found[name] = out, json.loads(headlab(*words(name, source, out)))
        return found[name]
    return made


def words(name, source, out):
    command, *options = COMMANDS[name]
    return [command, source, *options, "--json", "--out", out]


def start(fault, at, number, error, command):
    """The command with a signal, or an error from then on, at its call `at`."""
    environment = {**os.environ, "LD_PRELOAD": str(fault), "FAULT_AT": str(at),
                   "FAULT_SIGNAL": str(int(number)), "FAULT_ERRNO": str(error)}
    return subprocess.run([program(), *map(str, command)], capture_output=True, text=True,
                          env=environment)


def lasting(answer):
    """What two answers must have alike."""
    if isinstance(answer, dict):
        return {key: lasting(value) for key, value in answer.items() if key not in TIMES}
    return [lasting(value) for value in answer] if isinstance(answer, list) else answer


def same_end(whole, out, answer):
    assert lasting(answer) == lasting(whole[1])
    sliced = answer.get("sliced", False)
    if not sliced:
        assert differences(whole[0], out) == []
    model = "ckpt/last/model.safetensors"
    assert (out / model).read_bytes() == (whole[0] / model).read_bytes()
    assert {path.name for path in out.iterdir()} == {path.name for path in whole[0].iterdir()}
    if "kept" not in answer:
        return
    tables = [[{key: cell for key, cell in row.items() if key != "seconds"}
               for row in csv.DictReader((run / "pruning.csv").open())] for run in (whole[0], out)]
    assert tables[0] == tables[1]
    with h5py.File(whole[0] / "pruning.h5") as one, h5py.File(out / "pruning.h5") as other:
        for name in set(one["pruning"]) - {"seconds"}:
            np.testing.assert_array_equal(one["pruning"][name][()], other["pruning"][name][()])


# A process more is stopped `more` calls later; at other calls, closer: tests/slow/test_tunings_stopped.py.
@pytest.mark.parametrize("name,at,more,number,error", [
    ("prune", 9, 53, signal.SIGKILL, 0), ("sliced", 40, 53, signal.SIGTERM, 0),
    ("gated", 21, 31, signal.SIGINT, 0), ("grouped", 14, 31, 0, errno.ENOSPC)])
def test_stopped_again_and_again_it_ends_as_if_never_stopped(source, fault, whole, tmp_path, name,
                                                             at, more, number, error):
    out, codes, steps = tmp_path / "out", [], []
    code = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 75, 0: 4}
    for session in range(60):
        done = start(fault, at + more * session, number, error, words(name, source, out))
        codes.append(done.returncode)
        if done.returncode == 0:
            break
        assert done.returncode == code[number], done.stderr
        steps.append(max([int(path.name[5:]) for path in out.glob("ckpt/step-*")], default=0))
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) and out.exists():
            status = json.loads((out / "status.json").read_text())
            assert status["status"] == json.loads(done.stdout)["status"] == "stopped"
            assert "the same command" in done.stderr
        elif error:
            assert os.strerror(error) in done.stderr
    assert codes[-1] == 0 and len(codes) > 2, codes
    assert steps == sorted(steps)
    same_end(whole(name), out, json.loads(done.stdout))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_finished_one_answers_again_and_trains_nothing(source, whole, name):
    out, answer = whole(name)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    done = subprocess.run([program(), *map(str, words(name, source, out))], capture_output=True,
                          text=True)
    assert done.returncode == 0 and json.loads(done.stdout) == answer
    assert "this run is finished" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    if name in ("prune", "gated"):
        text = [word for word in words(name, source, out) if word != "--json"]
        assert headlab(*text).startswith(("val: ", "layer  "))


def refused(*command):
    done = subprocess.run([program(), *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 4 and done.stdout == ""
    return done.stderr


def test_another_command_in_its_place_is_refused_by_what_differs(source, fault, whole, tmp_path):
    def files():  # without the lock of the killed process, which nobody holds
        return {path: path.read_bytes() for path in out.rglob("*")
                if path.is_file() and path.name != ".lock"}

    out, gated = tmp_path / "out", whole("gated")[0]
    once = words("prune", source, out)
    start(fault, 45, signal.SIGKILL, 0, once)
    assert json.loads((out / "status.json").read_text())["status"] == "running"
    stopped = files()
    tune, batches = once.index("--tune") + 1, once.index("--batches") + 1
    other = [*once[:tune], 4, *once[tune + 1:]]
    shutil.copytree(source, tmp_path / "other")
    config = tmp_path / "other/config.yaml"
    config.write_text(config.read_text().replace("label_smoothing: 0.0", "label_smoothing: 0.1"))
    for changed, said in (
            (other, "--tune was 5, is 4"),
            ([*once[:batches], 3, *once[batches + 1:]], "--batches was 2, is 3"),
            (["prune", source, "--heads", "0:1", "--tune", 3, "--out", out], "--heads was not given, is [\"0:1\"]"),
            (["convert", source, "--to", "collaborative", "--tune", 3, "--out", gated],
             "--to was gated, is collaborative"),
            (words("prune", source, gated), "command was convert, is prune"),
            ([*other[:-1], whole("prune")[0]], "--tune was 5, is 4"),
            (words("prune", tmp_path / "other", out), "label_smoothing was 0.0, is 0.1")):
        told = refused(*changed)
        assert "a run is there already" in told and said in told, told
    assert files() == stopped


def test_what_is_no_tuned_run_is_left_alone(source, tmp_path):
    for name in "prune", "gated":
        assert "a run is there already" in refused(*words(name, source, source))
    cut = tmp_path / "cut"
    headlab("prune", source, "--heads", "0:1", "--batches", 1, "--out", cut)
    assert "a run is there already" in refused(*words("prune", source, cut))


def test_a_stopped_one_is_listed_as_stopped_and_no_other_command_trains_it(source, fault, tmp_path):
    out = tmp_path / "runs/cut"
    done = start(fault, 60, signal.SIGTERM, 0, words("prune", source, out))
    assert done.returncode == 143
    assert "stopped" in headlab("runs", tmp_path / "runs")
    told = subprocess.run([program(), "run", out / "config.yaml", "--resume", out],
                          capture_output=True, text=True)
    assert told.returncode == 2 and "made from another run" in told.stderr
    assert json.loads(headlab("eval", out, "--json"))["step"] > 20


def test_time_that_is_over_counts_for_each_process(source, tmp_path):
    once = tmp_path / "source"
    shutil.copytree(source, once)
    config = once / "config.yaml"
    config.write_text(config.read_text().replace("\ntrain:\n", "\ntrain:\n  max_time: 1.0e-9\n"))
    out = tmp_path / "out"
    command = ["prune", once, "--count", 2, "--rounds", 1, "--tune", 2, "--batches", 1, "--out", out]
    codes = []
    while codes[-1:] != [0] and len(codes) < 12:
        done = subprocess.run([program(), *map(str, command)], capture_output=True, text=True)
        codes.append(done.returncode)
    assert codes == [75] * (len(codes) - 1) + [0] and len(codes) > 2, codes
    plain = tmp_path / "plain"
    command[1], command[-1] = source, plain
    headlab(*command)
    model = "ckpt/last/model.safetensors"
    assert (out / model).read_bytes() == (plain / model).read_bytes()
