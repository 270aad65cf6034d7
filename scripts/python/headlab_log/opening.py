"""Finds the run that a path means, and opens it."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import warnings

from .files import LogError, LogWarning, PathLike
from .group_names import is_result
from .program import program_name
from .run import Run
from .text import shell_word

LISTED = 20  # runs of a folder that are named
NEWEST = re.compile(r"@(\d*)")  # a run by when it was written: @ the last, @2 the one before it


def open_run(path: PathLike, repair: bool | PathLike = False) -> Run:
    """Opens a run that goes on, has ended or was killed.

    path: a run directory, its log.h5, a folder with one run below it, or `@`, the newest run below
    runs/ of the working directory (`@2`: the one before it). A run whose writer was killed
    opens with a LogWarning: what it flushed is there; on Windows, which knows no locks, it counts
    as running. repair: let `headlab repair` mend such a log
    first (True, or the path of the program), after which any HDF5 reader opens it.
    Raises LogError where there is no run, or one of a newer schema.

    >>> with hl.open_run(run.path) as again:
    ...     again.state
    'finished'
    """
    run = Run(find_run(pathlib.Path(path)))
    if run.state == "killed":
        log = run.path / "log.h5"
        if repair:
            repair_log(log, repair)
            return Run(run.path)
        warnings.warn(f"{log}: its writer was killed; this is what it had flushed. Other readers "
                      f"open it after `{program_name()} repair {shell_word(log)}`, or open_run(..., repair=True)",
                      LogWarning, stacklevel=2)
    return run


def find_run(path: pathlib.Path) -> pathlib.Path:
    """The run directory that a path means."""
    if number := NEWEST.fullmatch(str(path)):
        return newest_run(path, int(number[1] or 1))
    if path.is_file():
        if path.name != "log.h5" and not is_result(path):
            raise LogError(f"{path}: the file of a run is named log.h5; a copy under another name "
                           "belongs into a folder of its own under that one")
        return path.parent
    if not path.is_dir():
        raise LogError(f"{path}: there is no such run; `{program_name()} run CONFIG` says where "
                       "its run is")
    if is_run(path):
        return path
    inside = runs_below(path)
    if len(inside) == 1:
        return inside[0]
    if not inside:
        raise LogError(f"{path}: neither a run (no log.h5, no config.yaml) nor a folder of one")
    more = f", and {len(inside) - LISTED} more" if len(inside) > LISTED else ""
    raise LogError(f"{path}: holds {len(inside)} runs; name one of them: "
                   + ", ".join(map(shortly, inside[:LISTED])) + more)


def shortly(path):
    """A run in a list of several; one that cannot be read is named, too."""
    try:
        run = Run(path)
    except LogError:
        return f"{path} (damaged)"
    return f"{path} ({run.label}, {run.state})"


def newest_run(words, number):
    """The run below runs/ whose status was written last, or number - 1 before it."""
    runs = sorted(runs_below(pathlib.Path("runs")), key=written_at, reverse=True)
    if not 1 <= number <= len(runs):
        raise LogError(f"{words}: there are {len(runs)} runs below {pathlib.Path('runs').resolve()}; "
                       f"`{program_name()} run CONFIG` makes one")
    return runs[number - 1]


def runs_below(folder):
    """Runs at any depth, by path; not what is hidden, nor what lies inside a run."""
    found = []
    with os.scandir(folder) if folder.is_dir() else contextlib.nullcontext([]) as entries:
        folders = sorted(entry.name for entry in entries
                         if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."))
    for child in (folder / name for name in folders):
        found += [child] if is_run(child) else runs_below(child)
    return found


def written_at(run):
    status = run / "status.json"
    return (status if status.is_file() else run).stat().st_mtime


def is_run(path):
    return (path / "log.h5").is_file() or (path / "config.yaml").is_file()


def repair_log(log, program=True):
    """Lets `headlab repair` mend a log; `program` is its path, or True to look for it."""
    beside = pathlib.Path(__file__).resolve().parents[1] / "headlab"  # in headlab's own tree
    found = program if program is not True else (
        shutil.which("headlab") or (str(beside) if beside.is_file() else None))
    if not found:
        raise LogError(f"{log}: the program headlab is not on PATH; give it: repair=PATH")
    done = subprocess.run([str(found), "repair", str(log)], capture_output=True, text=True)
    if done.returncode != 0:
        raise LogError(f"{log}: `{found} repair` failed: {done.stderr.strip()}")
