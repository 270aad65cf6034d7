"""headlab_log opens runs: growing, finished and killed ones, by path, folder and @."""

import errno
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import time
import warnings

import h5py
import numpy as np
import pytest

from conftest import ROOT, TINY, headlab, log_command, program, train

import headlab_log as hl

LONG = ("train.steps=1000000", "log.attention.every=50", "log.flush_every=1")


class Growing:
    """A training that goes on until it is told otherwise."""

    def __init__(self, out, *settings):
        self.out = out
        self.process = subprocess.Popen(
            [program(), "run", str(ROOT / "configs/char_mha.yaml"), *TINY, *LONG, *settings,
             "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def until(self, true):
        """The run directory, once `true(run directory)`."""
        for _ in range(600):
            assert self.process.poll() is None, "the training ended"
            for path in self.out.glob("char_mha/*/log.h5"):
                try:
                    if true(path.parent):
                        return path.parent
                except (hl.LogError, OSError):  # it has just been made
                    pass
            time.sleep(0.1)
        raise AssertionError("the training wrote no log in a minute")

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.wait()


@pytest.fixture
def growing(tmp_path):
    started = []

    def start(*settings):
        started.append(Growing(tmp_path / "runs", *settings))
        return started[-1]

    yield start
    for training in started:
        training.kill()


def steps(path):
    with hl.open_run(path) as run:
        return len(run.scalars.step)


def test_a_growing_run_opens_and_refresh_shows_what_came_since(growing):
    training = growing()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hl.open_run(training.until(lambda path: steps(path) > 2)) as run:
            assert run.state == "running"
            before = run.scalars
            maps = run.attention()
            training.until(lambda path: steps(path) > len(before.step) + 10)
            assert len(run.scalars.step) == len(before.step)  # what one has stays as it is
            run.refresh()
            assert len(run.scalars.step) > len(before.step)
            np.testing.assert_array_equal(run.scalars.train_loss[:len(before.step)],
                                          before.train_loss)
            assert not run.heads().entropy.isnull().any()
            assert float(maps.weights[0, 0, 0, 0, 0, 0]) == 1  # a map of the file before


def test_a_killed_run_opens_with_a_warning_and_can_be_repaired(growing):
    training = growing()
    path = training.until(lambda path: steps(path) > 5)
    training.kill()
    with pytest.warns(hl.LogWarning, match=r"was killed; .*headlab repair .*log\.h5"):
        run = hl.open_run(path)
    assert run.state == "killed"
    seen = run.scalars
    assert len(seen.step) > 5 and not seen.train_loss.isnull().any()
    assert run.map(step=0).sizes == {"query": 16, "key": 16}
    run.close()
    with pytest.raises(OSError):
        h5py.File(path / "log.h5", "r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hl.open_run(path, repair=program()) as run:
            assert run.state != "running"
            assert len(run.scalars.step) >= len(seen.step)
    with h5py.File(path / "log.h5", "r") as file:
        assert len(file["scalars/step"]) >= len(seen.step)


def test_a_run_that_was_told_to_stop_says_so(growing):
    training = growing()
    path = training.until(lambda path: steps(path) > 2)
    training.kill(signal.SIGTERM)
    assert hl.open_run(path).state == "stopped"


def test_a_run_that_ends_while_it_is_opened_is_not_taken_for_a_killed_one(
        small_run, tmp_path, monkeypatch):
    path = altered(small_run, tmp_path, lambda f: f.attrs.modify("status", "running"))

    def ends_now(log):
        with h5py.File(log, "r+") as file:
            file.attrs["status"] = "stopped"
        return False

    monkeypatch.setattr("headlab_log.run.is_locked", ends_now)
    assert hl.open_run(path).state == "stopped"


def test_a_log_without_swmr_opens(tmp_path):
    path = train(tmp_path, "char_mha", "log.swmr=false")
    with hl.open_run(path) as run:
        assert run.state == "finished"
        np.testing.assert_array_equal(run.scalars.step, [0, 5, 10, 15, 20])


def altered(small_run, tmp_path, change):
    copy = tmp_path / "altered"
    shutil.copytree(small_run, copy)
    with h5py.File(copy / "log.h5", "r+") as file:
        change(file)
    return copy


def test_a_newer_major_schema_is_refused_and_a_newer_minor_one_read(small_run, tmp_path):
    path = altered(small_run, tmp_path, lambda f: f.attrs.modify("schema_version", "2.0.0"))
    with pytest.raises(hl.LogError, match=r"log\.h5: schema 2\.0\.0 is newer .* reads 1\.x; inst"):
        hl.open_run(path)
    with h5py.File(path / "log.h5", "r+") as file:
        file.attrs.modify("schema_version", "1.7.0")
    assert hl.open_run(path).state == "finished"


def test_other_files_are_refused_with_the_reason(small_run, tmp_path):
    path = altered(small_run, tmp_path, lambda f: f.attrs.__delitem__("schema_name"))
    with pytest.raises(hl.LogError, match="not a log of headlab"):
        hl.open_run(path)
    (path / "log.h5").write_bytes(b"text")
    with pytest.raises(hl.LogError, match=r"log\.h5: not readable as HDF5"):
        hl.open_run(path)
    with pytest.raises(hl.LogError, match="there is no such run"):
        hl.open_run(tmp_path / "nowhere")
    with pytest.raises(hl.LogError, match="neither a run"):
        hl.open_run(tmp_path / "altered/ckpt")


def test_a_log_under_another_name_is_refused_and_not_taken_for_an_empty_run(small_run, tmp_path):
    renamed = shutil.copy(small_run / "log.h5", tmp_path / "char_mha.h5")
    with pytest.raises(hl.LogError, match=r"char_mha\.h5: the file of a run is named log\.h5"):
        hl.open_run(renamed)
    assert hl.open_run(small_run / "analysis.h5").path == small_run


def test_a_folder_of_one_run_is_that_run(small_run, tmp_path):
    assert hl.open_run(small_run.parent).path == small_run
    assert hl.open_run(small_run / "log.h5").path == small_run
    for name in ("a-s1", "b-s2"):
        shutil.copytree(small_run, tmp_path / "two" / name)
    with pytest.raises(hl.LogError, match=r"holds 2 runs; name one of them: .*a-s1 \(char_mha "
                                          r"s1337, finished\), .*b-s2"):
        hl.open_run(tmp_path / "two")


def test_at_is_the_newest_run_below_runs_of_the_working_directory(
        small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hl.LogError, match="there are 0 runs below .*/runs; `.* run CONFIG`"):
        hl.open_run("@")
    for n, name in enumerate(("a/new", "b/c/old", ".hidden")):
        shutil.copytree(small_run, tmp_path / "runs" / name)
        os.utime(tmp_path / "runs" / name / "status.json", (1e9 - n, 1e9 - n))
    assert hl.open_run("@").path.name == "new" and hl.open_run("@2").path.name == "old"
    with pytest.raises(hl.LogError, match="there are 2 runs"):
        hl.open_run("@3")


def test_commands_name_the_run_that_at_stands_for(small_run, tmp_path, monkeypatch):
    for n, name in enumerate(("new", "old")):
        shutil.copytree(small_run, tmp_path / "runs" / name)
        os.utime(tmp_path / "runs" / name / "status.json", (1e9 - n, 1e9 - n))
    (tmp_path / "a").symlink_to("runs/new")
    monkeypatch.chdir(tmp_path)
    for name, *words in (("csv", "@"), ("tensorboard", "@"), ("watch", "@", "--once"),
                         ("report", "@2", "@"), ("csv", "a")):
        done = log_command(name, *words)
        assert done.returncode == 0, done.stderr
        named = name if name in ("report", "watch") else f"to_{name}"
        said = [f"{named}: {word} is runs/{'old' if word == '@2' else 'new'} (char_mha s1337, finished)"
                for word in words if word.startswith("@")]
        assert done.stderr.splitlines() == said


def test_a_label_names_kind_and_tag_and_what_was_made_of_a_run_its_own_directory(
        small_run, tmp_path):
    made = tmp_path / "half"
    shutil.copytree(small_run, made)
    config = (made / "config.yaml").read_text()
    (made / "log.h5").unlink()  # which keeps a config of its own
    (made / "config.yaml").write_text(config.replace("kind: mha", "kind: moh") + "tag: night\n")
    assert hl.open_run(small_run).label == "char_mha s1337"
    assert hl.open_run(made).label == "char_mha (moh) night s1337"
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps({**manifest, "pruned": {}}))
    assert hl.open_run(made).label == "half (moh) night s1337"


def test_half_written_records_are_not_shown(small_run, tmp_path):
    def half_a_record(file):
        group = file["heads/self"]
        for name in ("entropy", "js"):
            group[name].resize(len(group[name]) + 1, axis=0)
    with hl.open_run(altered(small_run, tmp_path, half_a_record)) as run:
        np.testing.assert_array_equal(run.heads().step, [0, 5, 10, 15, 20])
        assert run.heads().entropy.shape[0] == 5


def test_of_many_runs_a_few_are_read_and_named(small_run, tmp_path, monkeypatch):
    for n in range(300):
        (tmp_path / f"runs/s{n:03}").mkdir(parents=True)
        shutil.copy(small_run / "config.yaml", tmp_path / f"runs/s{n:03}")
    (tmp_path / "runs/s001/config.yaml").write_text("[")
    read = []
    opened = hl.Run.__init__
    monkeypatch.setattr(hl.Run, "__init__", lambda run, path: read.append(path) or opened(run, path))
    with pytest.raises(hl.LogError, match=r"holds 300 runs; name one of them: .*s000 \(char_mha s1337, "
                                          r"finished\), .*s001 \(damaged\), .*s019 .*, and 280 more$"):
        hl.open_run(tmp_path / "runs")
    assert len(read) == 20


@pytest.mark.parametrize("name", ["ablation.txt", "analysis.h5.bak", "log.txt", "ablations.h5"])
def test_a_file_of_another_name_is_no_result(small_run, tmp_path, name):
    shutil.copy(small_run / "ablation.h5", tmp_path / name)
    with pytest.raises(hl.LogError, match="the file of a run is named log.h5"):
        hl.open_run(tmp_path / name)


@pytest.mark.parametrize("error", (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP))
def test_a_writer_is_known_by_fcntl_where_there_is_no_flock(tmp_path, monkeypatch, error):
    def refuse(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refuse)
    log = tmp_path / "log.h5"
    assert hl.files.is_locked(log) is False
    with open(f"{log}.lock", "w") as held:
        assert hl.files.is_locked(log) is False
        fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        assert hl.files.is_locked(log) is True
    assert hl.files.is_locked(log) is False
