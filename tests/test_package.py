"""headlab_log elsewhere: with the packages it names, without POSIX, as a wheel."""

import os
import subprocess
import sys

import h5py

from conftest import ROOT

# What Python has on Windows: none of these modules, functions and signals.
WITHOUT_POSIX = """
import os, signal, sys
import h5netcdf, plotext, xarray, yaml  # not ours to look at
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("uname", "getuid", "geteuid", "fork", "sched_getaffinity", "kill"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGWINCH"):
    delattr(signal, name)
"""
READS = """
import headlab_log as hl
run = hl.open_run(sys.argv[1])
print(run.state, run.heads().sizes["layer"], run.map(layer=1).shape, len(run.tokens()),
      run.ablation().sizes["head"])
"""
FOUND = "2 (16, 16) 16 3"  # of small_run


def python(code, *arguments):
    """What a Python prints that finds headlab_log and this Python's packages."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], text=True,
                          capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_run_is_read_and_watched_without_posix(small_run):
    watches = ("from headlab_log.__main__ import main\n"
               "main(['watch', '--once', sys.argv[1]])")
    said = python(WITHOUT_POSIX + READS + watches, small_run).splitlines()
    assert said[0] == f"finished {FOUND}"
    assert said[1] == "char_mha s1337: mha, 2 layers, 3 heads, finished"


def test_without_locks_a_run_is_what_its_log_says(small_run, tmp_path):
    """On Windows nobody can tell a writer that was killed from one that goes on."""
    with h5py.File(small_run / "log.h5") as log, h5py.File(tmp_path / "log.h5", "w") as copy:
        for name in log:
            log.copy(name, copy)
        copy.attrs.update(log.attrs)
        copy.attrs["status"] = "running"
    said = "import headlab_log as hl; print(hl.open_run(sys.argv[1]).state)"
    assert python(WITHOUT_POSIX + said, tmp_path) == "running"
    assert python("import sys\n" + said, tmp_path) == "killed"
