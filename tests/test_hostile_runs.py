"""Runs that someone else has made into traps: no command hangs, dies, or changes what lies outside."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import h5py
import numpy as np
import pytest

from conftest import ROOT, TINY, log_command, program

import headlab_log
from headlab_log import LogError
from headlab_log.__main__ import main as headlab_log_main

SECONDS = 20
CODES = {0, 1, 2, 3, 4, 5, 6}  # of the program itself; 70 would be a mistake of its own
TERABYTE = 1 << 40
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
CHECKPOINT = "ckpt/step-00000020"


def away(path):
    """Takes what has the name out of the way."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def link(name):
    """The file is a link to one of the same bytes outside, as a copy of it could be."""
    def lay(run, outside):
        target = outside / pathlib.Path(name).name
        path = run / name
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True)
        elif path.exists():
            shutil.copy(path, target)
        else:
            target.write_text("precious")
        away(path)
        path.symlink_to(target)
    return lay


def second_name(name):
    """The file has another name, outside."""
    def lay(run, outside):
        if not (run / name).exists():
            (run / name).write_text("precious")
        os.link(run / name, outside / name)
    return lay


def fifo(name):
    def lay(run, outside):
        away(run / name)
        os.mkfifo(run / name)
    return lay


def plug(name):
    def lay(run, outside):
        away(run / name)
        with socket.socket(socket.AF_UNIX) as made:
            os.chdir(run)  # the address of a socket is short
            made.bind(name)
            os.chdir(ROOT)
    return lay


def zeros(name):
    def lay(run, outside):
        away(run / name)
        (run / name).symlink_to("/dev/zero")
    return lay


def sparse(name):
    def lay(run, outside):
        away(run / name)
        with open(run / name, "wb") as file:
            file.truncate(TERABYTE)
    return lay


def of_log(change, name="log.h5"):
    def lay(run, outside):
        with h5py.File(run / name, "r+") as file:
            change(file, outside)
    return lay


def external_storage(file, outside):
    (outside / "secret").write_bytes(b"\0\0\x80?" * 64)
    rows = len(file["scalars/step"])
    del file["scalars/train_loss"]
    file["scalars"].create_dataset("train_loss", (rows,), "f4", external=[
        (str(outside / "secret"), 0, 4 * rows)])


def external_fifo(file, outside):
    os.mkfifo(outside / "pipe")
    rows = len(file["scalars/step"])
    del file["scalars/train_loss"]
    file["scalars"].create_dataset("train_loss", (rows,), "f4",
                                   external=[(str(outside / "pipe"), 0, 4 * rows)])


def external_link(file, outside):
    with h5py.File(outside / "other.h5", "w") as other:
        other["loss"] = np.ones(len(file["scalars/step"]), "f4")
    del file["scalars/train_loss"]
    file["scalars/train_loss"] = h5py.ExternalLink(str(outside / "other.h5"), "/loss")


def external_group(file, outside):
    with h5py.File(outside / "other.h5", "w") as other:
        file.copy("heads/self", other, "self")
    del file["heads/self"]
    file["heads/self"] = h5py.ExternalLink(str(outside / "other.h5"), "/self")


def soft_loop(file, outside):
    file["scalars/loop"] = h5py.SoftLink("/scalars/loop")


def soft_group(file, outside):
    file["heads/loop"] = h5py.SoftLink("/heads")


def hard_loop(file, outside):
    for n in range(12):
        file["heads"][f"again{n}"] = file["heads"]


def virtual(file, outside):
    rows = len(file["scalars/step"])
    with h5py.File(outside / "other.h5", "w") as other:
        other["loss"] = np.ones(rows, "f4")
    layout = h5py.VirtualLayout((rows,), "f4")
    layout[:] = h5py.VirtualSource(str(outside / "other.h5"), "loss", (rows,))
    del file["scalars/train_loss"]
    file["scalars"].create_virtual_dataset("train_loss", layout)


def plugin(file, outside):
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((4,))
    made.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    rows = len(file["scalars/step"])
    del file["scalars/train_loss"]
    space = h5py.h5s.create_simple((rows,))
    h5py.h5d.create(file["scalars"].id, b"train_loss", h5py.h5t.IEEE_F32LE, space, made)


def escapes_in_log(file, outside):
    file.attrs["title"] = file.attrs["run_id"] = ESCAPE
    for axis in ("units", "long_name"):
        file["scalars/train_loss"].attrs[axis] = ESCAPE
    file.attrs["config_yaml"] += f"tag: {json.dumps(ESCAPE)}\n"
    file.copy(file["scalars/train_loss"], file["scalars"], name=f"{ESCAPE}loss")
    file.create_group(f"heads/{ESCAPE}")


def escapes_in_run(run, outside):
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"status": "failed", "reason": ESCAPE}))
    config = (run / "config.yaml").read_text()
    assert "name: char_mha" in config
    (run / "config.yaml").write_text(config.replace(
        "name: char_mha", f"name: {json.dumps('a' + ESCAPE)}\ntag: {json.dumps(ESCAPE)}"))


def named_by_escapes(run, outside):
    run.rename(run.parent / f"{ESCAPE}$(touch ran)")


def extends(target):
    def lay(run, outside):
        os.mkfifo(outside / "pipe")
        with open(run / "config.yaml", "a") as file:
            file.write(f"extends: {target or outside / 'pipe'}\n")
    return lay


ATTACKS = {
    **{f"{name} is a link": link(name) for name in (
        ".lock", "log.h5.lock", "metrics.jsonl", "log.h5", "status.json", "log.h5.new", "ckpt",
        CHECKPOINT)},
    **{f"{name} has another name": second_name(name) for name in (
        ".lock", "log.h5.lock", "metrics.jsonl", "log.h5")},
    **{f"{name} is a FIFO": fifo(name) for name in (
        ".lock", "config.yaml", "status.json", "manifest.json", "data.json", "metrics.jsonl",
        "log.h5", "log.h5.lock", "analysis.h5", f"{CHECKPOINT}/state.json",
        f"{CHECKPOINT}/model.safetensors")},
    "status.json is a socket": plug("status.json"),
    **{f"{name} is /dev/zero": zeros(name) for name in (
        "config.yaml", "status.json", "metrics.jsonl", "log.h5", "data.json")},
    **{f"{name} is a terabyte of nothing": sparse(name) for name in (
        "config.yaml", "status.json", "metrics.jsonl", "data.json", "log.h5",
        f"{CHECKPOINT}/state.json", f"{CHECKPOINT}/model.safetensors")},
    **{f"{change.__name__} in the log": of_log(change) for change in (
        external_storage, external_fifo, external_link, external_group, soft_loop, soft_group,
        hard_loop, virtual, plugin, escapes_in_log)},
    "escapes in config and status": escapes_in_run,
    "a name of escapes and of a command": named_by_escapes,
    "a config that extends a FIFO": extends(""),
    "a config that extends /dev/zero": extends("/dev/zero"),
}


@contextlib.contextmanager
def in_time():
    """What Python does inside must end in time."""
    def late(*_):
        raise AssertionError(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def is_harmless(text):
    """Whether a terminal shows it as it is."""
    return all(c in "\n\t" or c.isprintable() for c in text)


def snapshot(folder):
    """Every file of a folder: what it is, and its bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        bytes_of = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (status.st_mode, hashlib.sha256(bytes_of).hexdigest())
    return found


def unfinished(small_run, out):
    """A copy of a run that its command goes on with, as after kill -9."""
    run = out / "char_mha" / small_run.name
    shutil.copytree(small_run, run, symlinks=True)
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"status": "running"}))
    return run


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_command_hangs_dies_or_changes_what_lies_outside_of(attack, small_run, tmp_path):
    outside, out = tmp_path / "outside", tmp_path / "runs"
    outside.mkdir()
    run = unfinished(small_run, out)
    ATTACKS[attack](run, outside)
    run = next(iter(run.parent.iterdir()))
    before = snapshot(outside)
    of_logs = [["inspect", run], ["repair", run / "log.h5"]] if "log" in attack else []
    of_rest = []
    if "in the log" not in attack and "metrics" not in attack:  # of which it reads nothing
        of_rest = [["analyze", run, "--batches", 1, "--stats", "entropy"]]
    for words in (["runs", out], *of_logs, *of_rest,
                  ["run", ROOT / "configs/char_mha.yaml", *TINY, "--out", out]):
        done = subprocess.run([os.path.abspath(program()), *map(str, words)], capture_output=True, timeout=SECONDS,
                              cwd=tmp_path, stdin=subprocess.DEVNULL)
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode in CODES, (words[0], said)
        assert done.returncode == 0 or done.stderr, words[0]
        assert is_harmless(said), words[0]
        assert snapshot(outside) == before, words[0]
    with in_time():
        pages = [["report", str(run), "-o", f"{tmp_path}/page.html"]] if "in the log" in attack else []
        for words in (["watch", str(run), "--once"], *pages):
            done = log_command(*words)
            assert done.returncode in (0, 4) and is_harmless(done.stdout + done.stderr), words[0]
    assert snapshot(outside) == before


def test_a_config_that_is_a_link_out_of_its_run_is_no_text_for_a_page(small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run", symlinks=True)
    (run / "log.h5").unlink()
    (run / "config.yaml").rename(tmp_path / "secret.yaml")
    (run / "config.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(LogError, match="is a link to .*secret.yaml"):
        headlab_log.open_run(run)
    (run / "config.yaml").unlink()
    shutil.copy(tmp_path / "secret.yaml", run / "first.yaml")
    (run / "config.yaml").symlink_to("first.yaml")
    assert headlab_log.open_run(run).name == "char_mha"


@pytest.mark.parametrize("change", [external_storage, external_link, external_group, soft_loop,
                                    virtual, plugin])
def test_a_log_that_leads_out_of_itself_is_refused_by_both_readers(change, small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run", symlinks=True)
    with h5py.File(run / "log.h5", "r+") as file:
        change(file, tmp_path)
    done = subprocess.run([program(), "inspect", run], capture_output=True, text=True)
    assert done.returncode == 4
    with pytest.raises(LogError) as refused:
        headlab_log.open_run(run)
    for said in (done.stderr, str(refused.value)):
        assert str(run / "log.h5") in said and "ask its sender" in said
        assert "train_loss" in said or "heads/self" in said or "loop" in said or "self" in said


def test_what_messages_suggest_is_quoted_for_the_shell(small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "a b; touch ran", symlinks=True)
    (run / "log.h5").unlink()
    with headlab_log.open_run(run) as opened, pytest.raises(LogError) as lacks:
        opened.group("pruning")
    assert f"'{run}'" in str(lacks.value)


@pytest.mark.parametrize("command", ["csv", "tensorboard"])
def test_what_is_written_into_a_run_is_not_written_through_a_link(command, small_run, tmp_path):
    run = shutil.copytree(small_run, tmp_path / "run", symlinks=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "scalars.csv").write_text("precious")
    before = snapshot(outside)
    (run / command).symlink_to(outside)
    with pytest.raises(SystemExit) as end:
        headlab_log_main([command, str(run)])
    assert end.value.code == 4 and snapshot(outside) == before
    (run / command).unlink()
    (run / command).mkdir()
    (run / command / ".headlab.part").symlink_to(outside / "scalars.csv")
    headlab_log_main([command, str(run)])
    assert snapshot(outside) == before
