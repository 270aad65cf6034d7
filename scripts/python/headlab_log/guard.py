"""Reads a file of unknown origin in a child process first: damaged ones crash HDF5, or never end."""

import faulthandler
import os
import pathlib
import select
import signal
import sys
import warnings
from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None

SECONDS = 8  # of computing; a sound log of 240,000 chunks takes a fraction of one
PATIENCE = 15  # seconds in all: who waits for a slow disk is let through
MEMORY = 2 << 30  # bytes beyond what this process has
OUT_OF_MEMORY = 3  # the child's exit code

_known: dict[str, tuple[tuple[int, ...], str | None]] = {}  # path: its stamp, what is wrong with it


def complaint(path: pathlib.Path, growing: bool, survey: Callable[[], object]) -> str | None:
    """What reading a file ends in where that is no exception; None: it is safe to read.

    survey: reads it; its exceptions say nothing here, since the caller will meet them. A file is
    surveyed again when it has changed, one that grows only when it is another file. Where processes
    cannot be copied safely, which only Linux allows, every file is safe.
    """
    if not sys.platform.startswith("linux") or not hasattr(os, "fork"):
        return None
    at = path.stat()
    stamp = (at.st_dev, at.st_ino) if growing else (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns)
    before, said = _known.get(str(path), (None, None))
    if stamp != before:
        said = ending(survey)
        _known[str(path)] = (stamp, said)
    return said


def ending(body: Callable[[], object]) -> str | None:
    """How a process that runs the body ends: in words where that is by a signal or out of memory."""
    sys.stdout.flush()
    sys.stderr.flush()
    heard, held = os.pipe()  # closed by the kernel when the child ends, whatever it dies of
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: h5py holds its lock meanwhile
        try:
            child = os.fork()
        except OSError:  # no process left: the file is read without
            os.close(heard)
            os.close(held)
            return None
    if child == 0:
        be_child(body)
    os.close(held)
    ended = False
    try:
        ended = bool(select.select([heard], [], [], PATIENCE)[0])
    finally:
        os.close(heard)
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if not ended:
        return None
    if os.WIFEXITED(status):
        full = os.WEXITSTATUS(status) == OUT_OF_MEMORY
        return f"it claims more than {MEMORY >> 30} GiB of memory" if full else None
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return f"reading it does not end within {SECONDS} s of computing"
    return f"the HDF5 library crashes at it ({signal.Signals(number).name})"


def be_child(body):
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        with open("/proc/self/statm") as statm:
            held = int(statm.read().split()[5]) * resource.getpagesize()
        for what, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0),
                           (resource.RLIMIT_DATA, held + MEMORY)):
            hard = resource.getrlimit(what)[1]
            resource.setrlimit(what, (most if hard < 0 else min(most, hard), hard))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a crashing allocator prints
            os.dup2(nowhere, stream)
        body()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:
        pass
    finally:
        os._exit(0)
