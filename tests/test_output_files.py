"""What commands write where the user says (--out, -o): nothing that is read, kept or a device is lost to it."""

import contextlib
import hashlib
import os
import re
import runpy
import shutil
import stat
import subprocess
import threading

import pytest

from conftest import ROOT, in_this_python, log_command, program
from headlab_log import output

CASE = ROOT / "tests/golden/mha/llama_gqa.safetensors"
HDF5 = b"\x89HDF"
SHELL_SPECIAL = "a $(touch hacked) 'b' \"c\" `touch hacked` ; & \\ #.safetensors"


def called(*words, **where):
    return subprocess.run(list(map(str, words)), capture_output=True, **where)


def by_program(*words, **where):
    return called(os.path.abspath(program()), *words, **where)


def refused(done, *words, code=4):
    said = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
    assert done.returncode == code, said
    assert all(word in said for word in words) and "Traceback" not in said, said


@pytest.fixture
def run(small_run, tmp_path):
    """A run of one's own, with a text beside it."""
    shutil.copytree(small_run, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def contents(folder):
    """Every file below a folder with the digest of its bytes, links by where they lead."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()}


@contextlib.contextmanager
def unchanged(folder):
    before = contents(folder)
    yield
    assert contents(folder) == before


def layer_to(out, case=CASE, **where):
    return by_program("layer", case, "--out", out, **where)


# name: a command that writes `out`, of a run and of a folder that it may use.
WRITERS = {
    "layer": lambda run, out: layer_to(out),
    "check": lambda run, out: by_program("check", CASE, "--out", out),
    "analyze": lambda run, out: by_program("analyze", run, "--batches", 1, "--stats", "entropy", "--out", out),
    "analyze a file": lambda run, out: by_program(
        "analyze", ROOT / "tests/golden/maps/minilm.safetensors", "--out", out),
    "ablate": lambda run, out: by_program("ablate", run, "--batches", 1, "--heads", "0:0", "--out", out),
    "report": lambda run, out: log_command("report", run, "-o", out),
}
each_writer = pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
# One of each way to make a file: all go through the same door, as the tests of each writer show.
WAYS = ("layer", "analyze", "report")
each_way = pytest.mark.parametrize("writer", [WRITERS[name] for name in WAYS], ids=WAYS)


def names_of_program(name):
    text = (ROOT / "experiments/system/output_file.cpp").read_text()
    return tuple(re.findall('"([^"]+)"', re.search(name + r"\{(.*?)\};", text, re.S)[1]))


def test_program_and_tools_keep_the_same_names():
    assert set(names_of_program("kOfRun")) == set(output.OF_RUN)
    assert set(names_of_program("kOfSweep")) == set(output.OF_SWEEP)
    assert set(names_of_program("kMarksOfRun")) == set(output.MARKS_OF_RUN)
    assert set(names_of_program("kMarksOfSweep")) == set(output.MARKS_OF_SWEEP)
    assert {f"{name}*.h5" for name in names_of_program("kResults")} == set(output.RESULTS)


def test_every_file_of_a_run_is_refused_by_program_and_tools(run):
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"log.h5", "analysis.h5", "state.json", "config.yaml"} <= {path.name for path in files}
    with unchanged(run):
        for path in files:
            refused(layer_to(path), str(path), "choose another name")
            assert output.is_kept_by_run(path.resolve()), path
        for name in (*output.OF_RUN, ".tmp-x", "ckpt/new/x"):  # there or not
            refused(layer_to(run / name), "cannot be written")
            assert output.is_kept_by_run(run / name)


def test_files_of_a_sweep_are_refused(tmp_path):
    (tmp_path / "points.tsv").touch()
    with unchanged(tmp_path):
        for name in (*output.OF_SWEEP, "configs/x.yaml", "sweep-2.sbatch"):
            refused(layer_to(tmp_path / name), "cannot be written")
            assert output.is_kept_by_run(tmp_path / name)


@each_writer
def test_what_a_run_keeps_is_refused_through_links(writer, run, tmp_path):
    (tmp_path / "link.h5").symlink_to(run / "log.h5")
    (tmp_path / "twice.h5").symlink_to("link.h5")
    (tmp_path / "folder").symlink_to(run)
    with unchanged(tmp_path):
        for out in ("run/log.h5", "link.h5", "twice.h5", "folder/status.json", "run/ckpt/last/model.safetensors",
                    "run/../run/config.yaml", "folder/log.h5.lock"):
            refused(writer(run, tmp_path / out), out, "cannot be written")


def test_an_answer_replaces_its_own_file_and_no_other_ones(run):
    assert by_program("analyze", run, "--batches", 1, "--out", run / "analysis.h5").returncode == 0
    with unchanged(run):
        refused(by_program("analyze", run, "--batches", 1, "--out", run / "ablation.h5"), "another command")
    assert by_program("analyze", run, "--batches", 1, "--out", run / "mine.h5").returncode == 0


def test_what_a_command_reads_is_refused(run, tmp_path):
    case, text = tmp_path / "case.safetensors", tmp_path / "text.txt"
    shutil.copy(CASE, case)
    text.write_text("To be, or not to be, that is the question. " * 9)
    maps = tmp_path / "maps.safetensors"
    shutil.copy(ROOT / "tests/golden/maps/minilm.safetensors", maps)
    for name, of in (("hard", case), ("hard_text", text), ("hard_maps", maps)):
        os.link(of, tmp_path / name)
        (tmp_path / f"{name}_link").symlink_to(name)
    with unchanged(tmp_path):
        for out in case, tmp_path / "hard", tmp_path / "hard_link", tmp_path / "run/../case.safetensors":
            refused(layer_to(out, case), "reads it")
            refused(by_program("check", case, "--out", out), "reads it")
            refused(by_program("forward", run, case, "--out", out), "reads it")
        for out in text, tmp_path / "hard_text", tmp_path / "hard_text_link":
            for command in "analyze", "ablate":
                for option in "--data", "--text":
                    refused(by_program(command, run, option, text, "--out", out), "reads it")
        for out in maps, tmp_path / "hard_maps_link":
            refused(by_program("analyze", maps, "--out", out), "reads it")
    config, own = run / "config.yaml", tmp_path / "own.txt"  # a copy: a program that fails would write over it
    theirs = re.search(r"path: (.*)", config.read_text())[1]
    shutil.copy(theirs, own)
    config.write_text(config.read_text().replace(theirs, str(own)))
    with unchanged(tmp_path):
        refused(by_program("ablate", run, "--out", own), "reads it")


@each_way
def test_no_device_no_pipe_and_no_folder_is_replaced(writer, run, tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    (tmp_path / "link").symlink_to(pipe)
    (tmp_path / "to_folder").symlink_to("folder")
    got = []
    for out in pipe, tmp_path / "link":
        reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
        reader.start()
        done = writer(run, out)
        if done.returncode != 0:  # else the reader waits for ever
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        reader.join(timeout=20)
        assert done.returncode == 0, done.stderr
        assert len(got.pop()) > 1000
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and (tmp_path / "link").is_symlink()
    for out in folder, f"{folder}/", tmp_path / "to_folder":
        refused(writer(run, out), "is a directory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe", "run", "to_folder"]
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: devices are made by root only")
@each_way
def test_a_device_takes_the_bytes_and_stays(writer, run, tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"x")
    except OSError:
        pytest.skip("NOT TESTED: no device can be made here")
    done = writer(run, null)
    assert done.returncode == 0, done.stderr
    assert stat.S_ISCHR(null.lstat().st_mode)
    full = tmp_path / "full"
    os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    refused(writer(run, full), "No space left")
    assert stat.S_ISCHR(full.lstat().st_mode)


def own_stdout(folder):
    """As /dev/stdout is, which a program that fails would replace for the whole machine."""
    (folder / "stdout").symlink_to("/proc/self/fd/1")
    return folder / "stdout"


@pytest.mark.parametrize("name", WAYS)
def test_stdout_by_its_name_is_written_to(name, run, tmp_path):
    stdout = own_stdout(tmp_path)
    done = called(ROOT / "scripts/log", name, run, "-o", stdout) if name == "report" else WRITERS[name](run, stdout)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1000
    assert stdout.is_symlink()


def test_what_is_redirected_stays_the_same_file(tmp_path):
    kept = tmp_path / "kept"
    with open(kept, "wb") as file:
        inode = os.fstat(file.fileno()).st_ino
        done = subprocess.run([program(), "layer", CASE, "--out", own_stdout(tmp_path)], stdout=file)
    assert done.returncode == 0 and kept.stat().st_ino == inode
    assert b"llama_gqa" not in kept.read_bytes()[:8] and kept.stat().st_size > 1000


@each_way
def test_a_link_stays_and_its_file_is_written(writer, run, tmp_path):
    for name in "there", "new":
        (tmp_path / f"{name}_link").symlink_to(f"{name}.png")
    (tmp_path / "there.png").write_text("old")
    for name in "there", "new":
        done = writer(run, tmp_path / f"{name}_link")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{name}_link").is_symlink()
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == \
        ["new.png", "new_link", "run", "there.png", "there_link"]


@each_writer
def test_links_in_a_circle_end(writer, run, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused(writer(run, tmp_path / "a"), "cannot be written")


@each_writer
def test_control_characters_are_refused(writer, run, tmp_path):
    with unchanged(tmp_path):
        for character in "\n", "\x1b", "\x85":
            done = writer(run, f"{tmp_path}/a{character}b")
            refused(done, "control character", code=2)
            assert character == "\n" or character.encode() not in os.fsencode(done.stderr)


def test_a_picture_goes_through_the_same_door(run, tmp_path):
    (tmp_path / "link.png").symlink_to(run / "log.h5")
    with unchanged(tmp_path):
        refused(in_this_python(runpy.run_path(ROOT / "scripts/studies/plot_run.py")["main"], run, "-o",
                               tmp_path / "link.png"), "link.png: cannot be written")


def test_shell_characters_are_plain_in_a_file_name(tmp_path):
    assert layer_to(SHELL_SPECIAL, cwd=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [SHELL_SPECIAL]


def test_new_folders_lie_neither_in_what_a_run_keeps_nor_on_what_is_there(run, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    (tmp_path / "nowhere").symlink_to("absent")
    os.mkfifo(tmp_path / "pipe")
    makers = [lambda out: by_program("prune", run, "--heads", "0:1", "--batches", 1, "--out", out),
              lambda out: by_program("convert", run, "--to", "collaborative", "--batches", 1, "--out", out),
              lambda out: by_program("import", ROOT / "tests/golden/models/llama_gqa", "--out", out),
              lambda out: by_program("export", run, out)]
    with unchanged(tmp_path):
        for make in makers:
            for out in "run/ckpt/new", "run", "run/log.h5", "file", "full", "nowhere", "run/.tmp-new":
                done = make(tmp_path / out)
                assert done.returncode in (2, 4) and out in done.stderr.decode(), (done.args, done.stderr)
            refused(make(f"{tmp_path}/a\nb"), "control character", code=2)
            assert make(tmp_path / "pipe").returncode in (2, 4)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_tables_and_events_go_neither_through_links_nor_onto_a_run(run, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "eval.csv").write_text("mine")
    with unchanged(tmp_path):
        for command in "csv", "tensorboard":
            refused(log_command(command, run, "-o", run / "ckpt"), "choose another place")
            refused(log_command(command, run, "-o", run / "ckpt/new"), "choose another place")
            refused(log_command(command, run, "-o", f"{tmp_path}/a\nb"), "control character", code=2)
        refused(log_command("tensorboard", run, "-o", victim / "eval.csv"))
    for name in "csv", "tensorboard":  # as whoever handed the run over may have laid it
        (run / name).symlink_to(victim)
        refused(log_command(name, run), "is a link")
        (run / name).unlink()
        (run / name).mkdir()
    (run / "csv/eval.csv").symlink_to(victim / "eval.csv")
    (run / "tensorboard/.headlab.part").symlink_to(victim / "eval.csv")
    refused(log_command("csv", run), "no regular file")
    assert log_command("tensorboard", run).returncode == 0
    assert (victim / "eval.csv").read_text() == "mine"


def test_a_page_is_whole_or_not_there(tmp_path):
    (tmp_path / "old").write_text("old")

    def stops(path):
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.Output(tmp_path / "old").write(stops)
    assert [path.name for path in tmp_path.iterdir()] == ["old"] and (tmp_path / "old").read_text() == "old"


def test_scripts_that_make_runs_anew_take_no_other_folder_away(run, tmp_path):
    import headlab_program
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kept").touch()
    (tmp_path / "link").symlink_to(run)
    for path in tmp_path / "mine", tmp_path / "mine/kept", tmp_path / "link":
        with pytest.raises(headlab_program.ProgramError, match="no run"), unchanged(tmp_path):
            headlab_program.fresh_run(path)
    assert headlab_program.fresh_run(run) == run and not run.exists()
    assert headlab_program.fresh_run(tmp_path / "absent") == tmp_path / "absent"
