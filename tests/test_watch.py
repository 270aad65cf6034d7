"""scripts/watch shows a run that goes on, ends or is killed, and leaves the terminal tidy."""

import fcntl
import os
import re
import shutil
import signal
import sys
import types

import h5py
import numpy as np
import pexpect
import pytest
import xarray as xr

from conftest import ROOT, log_command
from test_exports import pruned  # noqa: F401: a fixture
from test_opening import growing  # noqa: F401: a fixture

import headlab_log as hl
from headlab_log import watch

COLOUR = r"\x1b\[[\d;]+m"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def terminal():
    """Starts watch in a terminal of 80 columns and 24 lines."""
    started = []

    def start(*arguments, **environment):
        started.append(pexpect.spawn(
            sys.executable,
            ["-m", "headlab_log", "watch", "--interval", "0.1", *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(ROOT / "scripts/python")} | environment,
            dimensions=(24, 80), encoding="utf-8", timeout=60))
        return started[-1]

    yield start
    for process in started:
        process.close(force=True)


@pytest.fixture
def held(small_run, tmp_path):
    """A run whose writer, this test, has its log; and the lock by which that is known."""
    path = tmp_path / "held"
    shutil.copytree(small_run, path)
    with h5py.File(path / "log.h5", "r+") as file:
        file.attrs["status"] = "running"
    with open(f"{path}/log.h5.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path, lock


def ending(process):
    """What it printed until its end, and its exit code."""
    process.expect(pexpect.EOF)
    process.close()
    return process.before, process.exitstatus


def test_a_finished_run_is_printed_once_as_plain_text(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = log_command("watch", run.path)
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    with h5py.File(run.path / "log.h5") as log:
        training, validation = log["scalars/train_loss"][-1], log["eval/val_loss"][-1]
        entropy = log["heads/self/entropy"][-1]
    assert lines[0] == "char_mha s1337: mha, 2 layers, 3 heads, finished"
    assert "step 20 of 20, 100 %" in lines[1]
    assert f"training {training:.4f} nat, validation {validation:.4f} nat (step 20, whole split)" in lines[2]
    assert lines[-4] == "entropy [nat] of heads, step 20"
    for layer, line in enumerate(lines[-2:]):
        assert line.split() == [str(layer), *(f"{value:.3f}" for value in entropy[layer])]


def test_the_curve_falls_as_the_loss_does(run):
    lines = watch.lines_of(run, 60)
    rows = [row for row, line in enumerate(lines) if "│" in line]
    curve = np.array([[cell not in " │o" for cell in lines[row][8:-1]] for row in rows])
    first, last = (np.flatnonzero(curve[:, column]).mean() for column in (0, -2))
    assert run.scalars.train_loss[0] > run.scalars.train_loss[-1] and first < last
    assert any("o" in lines[row] for row in rows)


def test_a_run_is_shown_in_place_until_it_is_stopped(growing, terminal):
    training = growing()
    path = training.until(lambda path: hl.open_run(path).heads().sizes["step"] > 1)
    process = terminal(path)
    process.expect(r"running.*?step (\d+) of 1000000, 0 %.*? left.*?entropy \[nat\] of heads")
    before = int(process.match[1])
    while int(process.match[1]) == before:
        process.expect(r"step (\d+) of 1000000")
    training.kill(signal.SIGINT)
    text, code = ending(process)
    assert code == 0 and text.count(SHOWN) == 1
    last = plain(text.split(SHOWN)[1])  # what stays on the terminal
    assert "stopped before its end; the same command goes on" in " ".join(last.split())
    assert "entropy [nat] of heads" in last


def test_a_killed_writer_is_told_with_the_remedy(held, terminal):
    path, lock = held
    process = terminal(path)
    process.expect("running")
    fcntl.flock(lock, fcntl.LOCK_UN)
    text, code = ending(process)
    assert code == 0
    said = "".join(plain(text.split(SHOWN)[1]).split())
    assert f"itswriterwaskilled;`headlabrepair{path}/log.h5`mendsit" in said


def test_watching_begins_before_there_is_a_log(run, tmp_path, terminal):
    new = tmp_path / "new"
    new.mkdir()
    shutil.copy(run.path / "config.yaml", new)
    process = terminal(new, NO_COLOR="1")
    process.expect("waiting")
    shutil.copy(run.path / "log.h5", tmp_path / "log.h5")
    (tmp_path / "log.h5").rename(new / "log.h5")
    text, code = ending(process)
    assert code == 0 and "step 20 of 20" in plain(text.split(SHOWN)[1])
    assert not re.search(COLOUR, text)


@pytest.mark.parametrize("how, code", [("sendintr", 130), ("terminate", 143)])
def test_an_interrupted_watch_gives_the_cursor_back(held, terminal, how, code):
    process = terminal(held[0])
    process.expect("entropy")
    assert HIDDEN in process.before
    if how == "sendintr":
        process.sendintr()
    else:
        process.kill(signal.SIGTERM)
    text, ended = ending(process)
    assert ended == code and "Traceback" not in text
    assert text.endswith(f"{SHOWN}\x1b[?1049l")


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_is_not_lost_in_a_destructor(run, monkeypatch, capsys, number, code):
    class Closing:
        def __del__(self):  # what is raised in here goes nowhere
            signal.raise_signal(number)

    looks = []

    def look(path):
        Closing() if not looks else pytest.fail("it looks again")
        looks.append(path)
        return {}  # of which nothing is "in", as in a run that has just been started

    monkeypatch.setattr(watch, "look", look)
    monkeypatch.setattr(watch, "lines_of", lambda *_: ["waiting"])
    usual = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as the command does
    try:
        with pytest.raises(SystemExit) as ended:
            watch.watch(run.path, interval=0.01)
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert ended.value.code == code and capsys.readouterr().out.endswith(f"{SHOWN}\x1b[?1049l")


def test_colours_are_for_terminals_that_want_them(run, terminal):
    text, code = ending(terminal("--once", run.path))
    assert code == 0 and re.search(COLOUR, text) and HIDDEN not in text


def test_the_lowest_number_is_darkest_and_the_highest_brightest(run):
    values = run.heads().entropy.isel(step=-1)
    cells = {value: watch.cell(value, values, 7, True) for value in values.values.ravel().tolist()}
    assert "48;2;0;34;77m" in cells[min(cells)] and "48;2;253;231;55m" in cells[max(cells)]


def test_pruned_heads_are_blank(pruned):
    table = watch.heads_table(pruned, 80, False)
    assert table[-2].split() == ["0"] and len(table[-1].split()) == 3
    assert table[-1][13:20].strip() == ""


class AsIf(types.SimpleNamespace):
    """Stands for a run; `has` says what is in it."""

    def __contains__(self, name):
        return self.has(name)


def many_heads(run, layers, heads):
    """The run as if it had so many."""
    values = np.random.default_rng(0).random((1, layers, heads))
    data = xr.Dataset({"entropy": (("step", "layer", "head"), values, {"units": "nat"})},
                      coords={"step": [20], "layer": range(layers), "head": range(heads)})
    kept = {name: getattr(run, name) for name in (
        "label", "kind", "config", "state", "status", "manifest", "path", "scalars", "evaluations",
        "sites")}
    return AsIf(has=run.__contains__, heads=lambda site: data, **kept)


@pytest.mark.parametrize("width, height", [(80, 24), (120, 50), (50, 24), (80, 200)])
def test_many_heads_fit_the_window(run, width, height):
    lines = watch.lines_of(many_heads(run, 24, 32), width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert sum("│" in line for line in lines) >= 3  # the curves are there
    if height == 200:
        assert len([line for line in lines if re.match(r" +\d+ +0\.\d", line)]) == 24 * 4
    else:
        assert "higher window" in lines[-1]


@pytest.mark.parametrize("width, height", [(40, 24), (30, 30), (20, 8), (16, 3)])
def test_a_small_window_is_not_overrun_and_its_curve_has_a_unit(run, width, height):
    lines = watch.lines_of(run, width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert lines[0].startswith("char_mha")
    if height >= 24:
        assert any("loss [nat]" in line for line in lines)


def test_what_cannot_be_shown_is_named(run, tmp_path):
    done = log_command("watch", run.path, "--statistic", "beauty")
    assert done.returncode == 4 and "beauty" in done.stderr and "mean_distance" in done.stderr
    done = log_command("watch", run.path, "--site", "cross")
    assert done.returncode == 4 and "there are self" in done.stderr
    done = log_command("watch", tmp_path / "nothing")
    assert done.returncode == 4 and "there is no such run" in done.stderr
    shutil.copytree(run.path, tmp_path / "bare")
    (tmp_path / "bare/log.h5").unlink()
    done = log_command("watch", tmp_path / "bare")
    assert done.returncode == 4 and "no log.h5" in done.stderr


def test_another_statistic_is_shown_on_demand(run):
    done = log_command("watch", run.path, "--statistic", "mean_distance")
    assert "mean_distance [token] of heads, step 20" in done.stdout


def test_serve_hands_over_to_the_report(run, monkeypatch):
    asked = []
    served = types.ModuleType("headlab_log.serve")
    served.serve = lambda paths, port: asked.append((paths, port))
    monkeypatch.setitem(sys.modules, "headlab_log.serve", served)
    monkeypatch.setattr(sys, "argv", ["watch", "--serve", "--port", "8123", str(run.path)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        watch.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [([str(run.path)], 8123)]


def test_a_kind_without_a_map_shows_what_it_has_and_a_silent_one_is_named(small_run, tmp_path):
    def table(keep):
        shutil.copytree(small_run, tmp_path / str(keep))
        with h5py.File(tmp_path / str(keep) / "log.h5", "r+") as file:
            for name, variable in file["heads/self"].items():
                if variable.dtype == "f4" and name != keep:
                    variable[:] = np.nan
        return watch.heads_table(hl.open_run(tmp_path / str(keep)), 80, colour=False)

    assert table("output_norm")[0].startswith("output_norm ")
    assert " ".join(table(None)) == ("no statistic of heads has a number: compute() of kind 'mha' "
                                     "tells its observer nothing (docs/own_kind.md)")
