"""Damaged and hostile logs: the Python readers say so in one sentence, and never hang or crash."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from conftest import ROOT, log_command
from test_opening import Growing, steps

import headlab_log as hl
from headlab_log import files, guard, report

SIGNATURES = rb"OHDR|OCHK|FRHP|FHDB|BTHD|BTLF|FAHD|FADB|EAHD|EAIB|EADB|GCOL"
READ_ALL = """
import pathlib, sys, headlab_log as hl
log, ended = pathlib.Path(sys.argv[1]) / "log.h5", []
sound = log.read_bytes()
for at, value in map(lambda word: map(int, word.split("=")), sys.argv[2:]):
    log.write_bytes(sound[:at] + bytes([value]) + sound[at + 1:])
    try:
        with hl.open_run(log.parent) as run:
            for group in run:
                run.group(group).load()
            run.map(), run.results, run.label, run.sites
        print("read")
    except hl.LogError as error:
        print(error)
"""


@pytest.fixture
def copy(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "copy", ignore=shutil.ignore_patterns("ckpt"))
    return tmp_path / "copy"


@pytest.mark.parametrize("count", [24])  # of more: tests/slow/test_changed_bytes.py
def test_one_changed_byte_ends_in_values_or_in_a_sentence(copy, count):
    for name in "analysis.h5", "ablation.h5":  # which stay as they are
        (copy / name).unlink()
    sound = (copy / "log.h5").read_bytes()
    chance = random.Random(40)
    begin = [found.start() for found in re.finditer(SIGNATURES, sound)]
    places = [*range(0, 12, max(1, 72 // count)),
              *(chance.choice(begin) + chance.randrange(60) for _ in range(count * 5 // 9)),
              *(chance.randrange(len(sound)) for _ in range(count * 5 // 18))]
    changes = [f"{at}={sound[at] ^ chance.randrange(1, 256)}" for at in places]
    done = subprocess.run([sys.executable, "-c", READ_ALL, str(copy), *changes], text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "scripts/python")}, timeout=500,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(changes) and "read" in said
    refused = [line for line in said if line != "read"]
    assert len(refused) > count / 4
    for line in refused:
        assert line.startswith(str(copy)) and "log.h5" in line, line


def test_a_damaged_variable_is_named_by_every_command_with_the_remedy(copy):
    sound = (copy / "log.h5").read_bytes()
    with h5py.File(copy / "log.h5") as file:
        at = h5py.h5o.get_info(file["heads/self/entropy"].id).addr
    at = at if sound[at:at + 4] == b"OHDR" else sound.index(b"OHDR", at)
    changed = bytearray(sound)
    changed[at + 8] ^= 0x55  # in a header that has a checksum
    (copy / "log.h5").write_bytes(changed)
    for use in ("watch", "report", "csv", "tensorboard"):
        done = log_command(use, copy)
        assert done.returncode == 4 and done.stderr.count("\n") == 1, done.stderr
        assert re.search(r"log\.h5: /heads/self/entropy: is damaged .*headlab repair", done.stderr)


def test_a_text_that_is_no_utf8_is_damage(copy):
    log = copy / "log.h5"
    with h5py.File(log, "r+") as file:
        file["scalars/train_loss"].attrs.create("comment", np.bytes_(b"a\xffb"), dtype=h5py.string_dtype())
    with pytest.raises(hl.LogError, match=r"/scalars/train_loss: is damaged"):
        hl.open_run(copy).scalars


def test_an_axis_longer_than_the_file_backs_is_refused(copy):
    with h5py.File(copy / "log.h5", "r+") as file:
        for name in ("train_loss", "step"):
            file["scalars"][name].resize(1_000_000_000, axis=0)
    with pytest.raises(hl.LogError, match=r"/scalars/\w+: is damaged .*claims [48],000,000,000 bytes"):
        hl.open_run(copy).scalars
    with h5py.File(copy / "log.h5", "r+") as file:
        file["attention/self/weights"].resize(100_000_000, axis=0)
        file["attention/self/step"].resize(100_000_000, axis=0)
    with pytest.raises(hl.LogError, match="claims"):
        hl.open_run(copy).attention().weights.load()


def test_a_finished_log_is_read_plainly_and_one_that_grows_as_swmr(small_run, tmp_path):
    with files.open_h5(small_run / "log.h5") as file:
        assert not file.swmr_mode
    growing = Growing(tmp_path)
    try:
        log = growing.until(lambda run: steps(run) > 1) / "log.h5"
        with files.open_h5(log) as file:
            assert file.swmr_mode
        growing.kill()
        assert files.is_locked(log) is False
        with files.open_h5(log) as file:  # what it had flushed
            assert len(file["scalars/step"]) > 1
    finally:
        growing.kill()


def test_what_crashes_the_library_or_never_ends_is_told_in_words(copy, monkeypatch):
    if not sys.platform.startswith("linux"):
        pytest.skip("files are surveyed in a child process on Linux only")
    monkeypatch.setattr(guard, "SECONDS", 1)

    def takes_all():
        raise MemoryError

    def forever():
        while True:
            pass

    assert "crashes at it (SIGSEGV)" in guard.ending(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    assert "does not end within 1 s" in guard.ending(forever)
    assert "2 GiB of memory" in guard.ending(takes_all)
    assert guard.ending(lambda: 1 / 0) is None and guard.ending(lambda: None) is None
    monkeypatch.setattr(files, "survey", lambda file: os.kill(os.getpid(), signal.SIGSEGV))
    monkeypatch.setattr(guard, "_known", {})
    with pytest.raises(hl.LogError, match=r"log\.h5: is damaged: .*SIGSEGV.*copy from before"):
        hl.open_run(copy)


@pytest.mark.parametrize("text, said", [
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "it has an alias"),
    ("model: 3\n", "model is no mapping"), ("train: {steps: 2x}\n", "train.steps is no whole number"),
    ("- a\n", "it is no mapping"), ("a: [\n", "did not find expected"), ("[" * 5000, ""),
    ("a: \x01", "unacceptable character|special characters"), ("model: {attention: {kind: [1]}}\n", "kind is no text")])
def test_a_config_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(hl.LogError, match=r"config\.yaml: its config is damaged \(.*" + f"({said})"):
        hl.open_run(tmp_path)


def test_what_is_no_regular_file_of_usual_size_is_refused(copy, tmp_path):
    (copy / "status.json").unlink()
    os.mkfifo(copy / "status.json")
    with pytest.raises(hl.LogError, match=r"status\.json: is no regular file"):
        hl.open_run(copy)
    (copy / "status.json").unlink()
    (copy / "status.json").symlink_to("/dev/zero")
    with pytest.raises(hl.LogError, match=r"status\.json: is no regular file"):
        hl.open_run(copy)
    (copy / "status.json").unlink()
    with open(copy / "status.json", "wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(hl.LogError, match=r"status\.json: has more than 16 MiB"):
        hl.open_run(copy)
    (copy / "status.json").write_text("[1, 2]")
    os.mkfifo(copy / "log.h5.lock")
    assert hl.open_run(copy).status == {}
    assert report.build([copy]).startswith("<!DOCTYPE")
