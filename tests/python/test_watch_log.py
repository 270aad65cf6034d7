"""The log of headlab.watch: readers of headlab's own runs open it, and it holds whole rows."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from package_testing import program
from test_watch import B, T, batch_of, loss_of, steps, tiny

import headlab

h5py = pytest.importorskip("h5py")
hl = pytest.importorskip("headlab_log")
PROGRAM = program()


def trained(path, updates, every, **options):
    model = tiny("gpt2").train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with headlab.watch(model, path, every=every, **options) as w:
        for n in range(updates):
            loss = loss_of(model(**batch_of("gpt2")))
            loss.backward()
            optimizer.step()
            w.log(loss=loss, lr=1e-3, tokens=B * T, accuracy=n / 10)
    return w


def test_the_reader_opens_it_as_a_run(tmp_path):
    w = trained(tmp_path / "mine" / "log.h5", 7, 3, config={"name": "mine", "seed": 5, "batch": 3})
    run = hl.open_run(tmp_path / "mine")
    assert (run.state, run.name, run.seed, run.kind, run.sites) == ("finished", "mine", 5, "gpt2", ("self",))
    heads = run.heads()
    assert heads.step.values.tolist() == [0, 3, 6] and heads.entropy.dims == ("step", "layer", "head")
    assert heads.js.dims == ("step", "layer", "head", "head2") and heads.entropy.attrs["units"] == "nat"
    assert "cls_mass" not in heads and "induction" not in heads and "argmax_distance" not in heads
    np.testing.assert_array_equal(heads.entropy.values[-1], w.values["self"]["entropy"])
    assert (heads.head_mask.values == 1).all()
    scalars = run.scalars
    assert scalars.step.values.tolist() == [0, 3, 6]
    assert scalars.tokens.values.tolist() == [B * T, 3 * B * T, 6 * B * T]
    np.testing.assert_allclose(scalars.accuracy.values, [0, 0.2, 0.5], rtol=1e-6)
    assert np.isfinite(scalars.train_loss.values).all() and (np.diff(scalars.wall_time.values) > 0).all()
    assert run.config["log"]["layers"] == {"self": ["transformer.h.0.attn", "transformer.h.1.attn"]}
    assert run.config["training"]["batch"] == 3
    assert run.manifest["parameters"]["total"] == sum(p.numel() for p in tiny("gpt2").parameters())


def test_it_has_the_layout_of_the_programs_log(tmp_path):
    trained(tmp_path, 2, 1)
    with h5py.File(tmp_path / "log.h5") as file:
        assert {"Conventions", "title", "source", "run_id", "created_utc", "schema_name", "schema_version", "status",
                "config_yaml", "manifest_json", "axis_order"} == set(file.attrs)
        for group in (file["scalars"], file["heads/self"]):
            for name, data in group.items():
                assert {"units", "long_name", "comment"} <= set(data.attrs), name
                scales = [data] if data.is_scale else [axis[0] for axis in data.dims]
                assert all(scale.parent == group for scale in scales)
                assert data.dtype.kind != "f" or np.isnan(data.attrs["_FillValue"]).all()
        entropy = file["heads/self/entropy"]
        assert entropy.compression is None and np.isnan(entropy.fillvalue) and entropy.maxshape == (None, 2, 3)
        table = {row[0]: row for row in headlab._C.statistic_table()}
        assert entropy.attrs["comment"] == table["entropy"][3]


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason="the program is not built")
def test_the_program_inspects_it(tmp_path):
    trained(tmp_path / "run", 4, 2)
    done = subprocess.run([PROGRAM, "inspect", str(tmp_path / "run"), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    groups = {group["path"]: group for group in found["groups"]}
    assert found["status"] == "finished" and not found["needs_repair"]
    assert groups["/heads/self"]["records"] == 3 and groups["/heads/self"]["last_step"] == 4
    assert groups["/heads/self"]["axes"] == {"layer": 2, "head": 3, "head2": 3}


@pytest.mark.parametrize("command, needs", [(["report", "RUN", "-o", "OUT"], "plotly"), (["watch", "RUN"], "plotext"),
                                            (["csv", "RUN", "-o", "OUT"], "pandas")])
def test_the_commands_of_the_reader_take_it(command, needs, tmp_path):
    pytest.importorskip(needs)
    trained(tmp_path / "run", 4, 2)
    words = [{"RUN": str(tmp_path / "run"), "OUT": str(tmp_path / "out")}.get(word, word) for word in command]
    done = subprocess.run([sys.executable, "-m", "headlab_log", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = [path for path in [tmp_path / "out", *tmp_path.glob("out/**/*")] if path.is_file()]
    assert "entropy" in done.stdout + "".join(path.read_text() for path in written)


def test_log_ahead_of_the_update_is_of_that_update(tmp_path):
    model = tiny("gpt2").train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with headlab.watch(model, tmp_path, every=2) as w:
        for n in range(1, 5):
            for part in (0.0, 1.0):  # two micro-batches
                loss_of(model(**batch_of("gpt2"))).backward()
                w.log(loss=n + part, tokens=10)
            optimizer.step()
    scalars = hl.open_run(tmp_path).scalars
    assert scalars.step.values.tolist() == [0, 2, 4]
    assert scalars.train_loss.values.tolist() == [1.5, 2.5, 4.5]
    assert scalars.tokens.values.tolist() == [20, 40, 80]


def test_a_number_that_comes_too_late_is_refused(tmp_path):
    model = tiny("gpt2").train()
    with pytest.raises(ValueError, match=r"log\(late=\) comes too late"), \
            headlab.watch(model, tmp_path, every=1, step="pass") as w:
        for names in ({}, {}, {"late": 1.0}, {}):
            model(**batch_of("gpt2"))
            w.log(**names)


@pytest.mark.parametrize("step, rows", [("pass", [0, 2, 4]), ("manual", [0, 2])])
def test_steps_without_an_optimizer(step, rows, tmp_path):
    model = tiny("gpt2").train()
    with headlab.watch(model, tmp_path, every=2, step=step) as w:
        for n in range(4):
            model(**batch_of("gpt2"))
            if step == "manual" and n % 2:
                w.step()
    assert hl.open_run(tmp_path).heads().step.values.tolist() == rows
    with pytest.raises(ValueError, match='step="manual"'), headlab.watch(model, tmp_path / "other") as w:
        w.step()


def test_a_resumed_training_counts_on(tmp_path):
    w = steps(tiny("gpt2"), batch_of("gpt2"), path=tmp_path, every=5, start=9)
    assert w.updates == 10 and hl.open_run(tmp_path).heads().step.values.tolist() == [9, 10]


def test_a_log_is_replaced_only_where_that_is_said(tmp_path):
    steps(tiny("gpt2"), batch_of("gpt2"), path=tmp_path)
    before = (tmp_path / "log.h5").read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"), headlab.watch(tiny("gpt2"), tmp_path):
        pass
    assert (tmp_path / "log.h5").read_bytes() == before and not (tmp_path / "log.h5.lock").exists()
    steps(tiny("bert"), batch_of("bert"), path=tmp_path, overwrite=True)
    assert hl.open_run(tmp_path).kind == "bert"


def test_a_log_that_is_being_written_is_refused_and_can_be_read(tmp_path):
    model = tiny("gpt2").train()
    with headlab.watch(model, tmp_path, every=1, step="pass"):
        model(**batch_of("gpt2"))
        model(**batch_of("gpt2"))
        run = hl.open_run(tmp_path)
        assert run.state == "running" and run.heads().sizes["step"] == 2
        with pytest.raises(BlockingIOError, match=str(os.getpid())), \
                headlab.watch(tiny("bert"), tmp_path, overwrite=True):
            pass
    assert hl.open_run(tmp_path).state == "finished"


@pytest.mark.parametrize("error, status", [(ZeroDivisionError, "failed"), (KeyboardInterrupt, "stopped")])
def test_the_status_says_how_it_ended(error, status, tmp_path):
    model = tiny("gpt2").train()
    with pytest.raises(error), headlab.watch(model, tmp_path, step="pass"):
        model(**batch_of("gpt2"))
        raise error("for want of reasons")
    run = hl.open_run(tmp_path)
    assert run.state == status and "for want of reasons" in run.status["reason"] and run.heads().sizes["step"] == 1


def test_a_disk_that_fails_ends_the_log_and_not_the_training(tmp_path, monkeypatch):
    from headlab.watch_log import Log

    model = tiny("gpt2").train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    wrote = Log.add

    def add(log, group, step, row):
        if step >= 2:
            raise OSError("No space left on device")
        wrote(log, group, step, row)

    monkeypatch.setattr(Log, "add", add)
    with pytest.warns(RuntimeWarning, match="cannot be written .No space left"), \
            headlab.watch(model, tmp_path, every=1) as w:
        for _ in range(4):
            loss_of(model(**batch_of("gpt2"))).backward()
            optimizer.step()
    assert w.updates == 4 and not (tmp_path / "log.h5.lock").exists()
    monkeypatch.undo()
    with pytest.warns(hl.LogWarning):
        assert hl.open_run(tmp_path).heads().step.values.tolist() == [0, 1]


def test_a_training_that_sees_no_update_is_told(tmp_path):
    model = tiny("gpt2").train()
    with pytest.warns(UserWarning, match="no row was logged"), headlab.watch(model, tmp_path):
        model(**batch_of("gpt2"))


KILLED = """
import os, signal, sys, torch
sys.path[:0] = {path!r}
from test_watch import tiny, batch_of
import headlab
torch.set_num_threads(1)
model = tiny("gpt2").train()
with headlab.watch(model, {log!r}, every=1, step="pass") as w:
    for n in range(24):
        model(**batch_of("gpt2"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_whole_rows(tmp_path):
    here = str(pathlib.Path(__file__).parent)
    code = textwrap.dedent(KILLED).format(path=[here], log=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with pytest.warns(hl.LogWarning, match="killed"):
        run = hl.open_run(tmp_path)
    heads = run.heads()
    assert run.state == "killed" and heads.sizes["step"] >= 12
    assert heads.step.values.tolist() == list(range(heads.sizes["step"]))
    assert np.isfinite(heads.entropy.values).all() and np.isfinite(heads.js.values).all()
