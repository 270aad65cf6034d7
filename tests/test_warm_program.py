"""A copy of the waiting program is what a start of it is to those who started it."""

import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest

import warm_program
from conftest import ROOT, program

CASE = ROOT / "tests/golden/mha/llama_gqa.safetensors"
LONG = ("run", ROOT / "configs/char_mha.yaml", "train.steps=1000000", "train.batch=1", "train.eval_batches=1",
        "model.layers=1", "model.d_model=16", "data.context=8", "log.stats_every=0", "log.attention.every=0")


@pytest.fixture(autouse=True)
def built():
    if not pathlib.Path(program()).with_name("libheadlab_warm_program.so").is_file():
        pytest.skip("NOT TESTED: every start of the program loads its libraries")


def preloaded(process):
    """Whether it is a copy: it is shown the environment of the waiting one."""
    return b"LD_PRELOAD=" in pathlib.Path(f"/proc/{process.pid}/environ").read_bytes()


def started(monkeypatch, start, *words, **where):
    monkeypatch.setattr(subprocess, "Popen", start)
    return subprocess.run([os.path.abspath(program()), *words], capture_output=True, **where)


@pytest.mark.parametrize("words", [("--version",), ("modle",), ("describe", "mha"), ("layer", "case", "--out", "made")])
def test_it_answers_alike(monkeypatch, tmp_path, words):
    found = []
    for start in warm_program.Start, warm_program.Copy:
        where = tmp_path / start.__name__
        where.mkdir()
        (where / "case").symlink_to(CASE)
        done = started(monkeypatch, start, *words, cwd=where, env=os.environ | {"HEADLAB_COMMAND": "mine"})
        found.append((done.returncode, done.stdout, done.stderr,
                      {path.name: path.read_bytes() for path in where.iterdir()}))
    assert found[0] == found[1]
    assert words != ("modle",) or b"mine --help" in found[1][2]


def test_it_is_a_child_that_signals_reach(tmp_path):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen([program(), *map(str, LONG), "--out", tmp_path / str(code)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        assert process.stderr.readline() and preloaded(process)
        assert f"\nPPid:\t{os.getpid()}\n" in pathlib.Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(number)
        process.stderr.close()
        assert process.wait() == code


def test_descriptors_are_those_that_are_given(tmp_path):
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run([program(), "--version"], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 4 and b"No space left" in done.stderr
    joined = subprocess.run([program(), "modle"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert b"no command 'modle'" in joined.stdout


def test_what_a_copy_has_not_is_started_anew(tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = subprocess.run([program(), "layer", CASE, "--out", tmp_path / "made"], capture_output=True,
                          preexec_fn=limited)
    assert done.returncode == 4 and b"File too large" in done.stderr
    with pytest.raises(FileNotFoundError):
        subprocess.run([program(), "--version"], cwd=tmp_path / "nowhere")
    many = subprocess.run([program(), "--version"], env=os.environ | {"OMP_NUM_THREADS": "999999"}, capture_output=True)
    assert many.returncode == 2 and b"OMP_NUM_THREADS=999999" in many.stderr


def test_a_script_of_python_has_copies_as_well(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = '--version'\n")
    (tmp_path / "script.py").write_text("import beside, subprocess, sys\n"
                                        "subprocess.run([sys.argv[1], beside.WORD])\n"
                                        "print(type(subprocess.Popen).__name__, subprocess.Popen.__name__)\n")
    done = subprocess.run([sys.executable, ROOT / "tests/warm_program.py", tmp_path / "script.py",
                           os.path.abspath(program())], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "type Copy" and "0.1" in done.stdout, done.stderr
