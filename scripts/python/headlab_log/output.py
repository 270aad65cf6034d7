"""The one door for what a tool writes where its user says (-o): no input, nothing that a run keeps for
itself, and no device is lost to it. experiments/system/output_file.cpp is the program's.
"""

import argparse
import fnmatch
import os
import pathlib
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable

from .files import LogError, PathLike

# What a run keeps, with what its commands find; what a sweep or a comparison keeps. Tests compare the names
# with the program's.
OF_RUN = ("config.yaml", "manifest.json", "data.json", "code.patch", "status.json", "metrics.jsonl", "log.h5",
          "log.h5.lock", ".lock", "ckpt", "pruning.h5", "pruning.csv")
OF_SWEEP = ("points.tsv", "points.json", "sweep.yaml", "summary.csv", "summary.json", "means.csv", "configs",
            "output", "slurm", "sweep.jobs", "sweep.joblog", "compare.yaml", "compare.json", "compare.md",
            "compare.csv", "compare.tex", "surviving_heads.json")
RESULTS = ("analysis*.h5", "ablation*.h5")
# A folder that holds one of these is one.
MARKS_OF_RUN = ("config.yaml", "manifest.json", "status.json", "metrics.jsonl", "log.h5")
MARKS_OF_SWEEP = ("points.tsv", "compare.yaml")


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_kept_by_run(path: pathlib.Path) -> bool:
    """Whether a run or a sweep keeps a file or a folder of its own at `path`, or around it."""
    for at in (path, *path.parents):
        for marks, names in ((MARKS_OF_RUN, (*OF_RUN, *RESULTS, ".tmp-*")),
                             (MARKS_OF_SWEEP, (*OF_SWEEP, "*.sbatch"))):
            if matches(at.name, names) and any(os.path.lexists(at.parent / mark) for mark in marks):
                return True
    return False


def plain_path(words: str) -> pathlib.Path:
    """The type of an -o of argparse: a path without control characters."""
    if any(unicodedata.category(character) == "Cc" for character in words):
        raise argparse.ArgumentTypeError(f"{words!r} has a control character, such as a line feed; choose a "
                                         "name without")
    return pathlib.Path(words)


def descriptor_of(path):
    """The number of one of this process's descriptors in /proc/self/fd, or None."""
    own = path.parent == pathlib.Path("/proc/self/fd").resolve()
    return int(path.name) if own and path.name.isdecimal() else None


class Output:
    """A file that a user named to be written.

    A path goes where a redirection of the shell would: through links, to the file that they lead to.
    read: files that the command reads. LogError: one of those, or what a run keeps, would be lost; the
    path is a directory or a disk; its folder is not there.
    """

    def __init__(self, path: PathLike, read: Iterable[PathLike] = ()) -> None:
        self.path = pathlib.Path(path)
        self.target, self.descriptor = self.path.parent.resolve() / self.path.name, None
        for _ in range(40):  # as of Linux
            self.descriptor = descriptor_of(self.target)
            if self.descriptor is not None or not self.target.is_symlink():
                break
            next_path = self.target.parent / os.readlink(self.target)
            self.target = next_path.parent.resolve() / next_path.name
        else:
            self.refuse("its links lead nowhere")
        there = self.target.stat() if self.target.exists() else None
        kind = stat.S_IFMT(there.st_mode) if there else stat.S_IFREG
        self.sent = self.descriptor is not None or kind in (stat.S_IFIFO, stat.S_IFCHR)
        if there and any(os.path.exists(file) and os.path.samefile(self.target, file) for file in read):
            self.refuse("the command reads it; name another file")
        if kind == stat.S_IFDIR:
            self.refuse("it is a directory; name a file in it")
        if self.sent:
            return
        if kind != stat.S_IFREG:
            self.refuse("it is no file; name another")
        if is_kept_by_run(self.target):
            self.refuse("a run or a sweep keeps a file of its own there; choose another name")
        if not self.target.parent.is_dir():
            self.refuse(f"there is no folder {self.path.parent}")

    def refuse(self, why):
        raise LogError(f"{self.path}: cannot be written: {why}")

    def write(self, content: str | Callable[[pathlib.Path], object]) -> pathlib.Path:
        """Writes a text, or what a function writes into the file that it is given, whole or not at all.

        What is no regular file (/dev/null, a FIFO, /dev/stdout) is given the bytes, and stays what it is.
        OSError: it cannot be written.
        """
        beside = None if self.sent else self.target.parent
        with tempfile.TemporaryDirectory(dir=beside, prefix=f".{self.target.name}.") as folder:
            part = pathlib.Path(folder) / self.target.name
            if callable(content):
                content(part)
            else:
                part.write_text(content, encoding="utf-8", newline="\n")
            if self.sent:
                self.send(part.read_bytes())
            else:
                synced(part)
                os.replace(part, self.target)
                synced(self.target.parent)
        return self.path

    def send(self, content):
        sys.stdout.flush()
        number = (os.dup(self.descriptor) if self.descriptor is not None else
                  os.open(self.target, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)))
        with open(number, "wb") as file:
            file.write(content)


def synced(path):
    """Waits until a file, or the names in a folder, have reached the disk."""
    if os.name != "posix":  # Windows opens no folder
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_whole(path: PathLike, text: str, read: Iterable[PathLike] = ()) -> pathlib.Path:
    """Writes a text file that a user named, whole or not at all, and returns its path; see Output."""
    return Output(path, read).write(text)


def output_folder(folder: PathLike | None, usual: pathlib.Path) -> pathlib.Path:
    """The folder that a user named for several files, made where it is missing; None: the usual one, of a run.

    LogError: a run keeps it for itself; the usual one is a link, which whoever handed the run over may have
    laid anywhere.
    """
    path = pathlib.Path(folder or usual)
    if folder is None and path.is_symlink():
        raise LogError(f"{path}: is a link; -o FOLDER names another place")
    if is_kept_by_run(path.resolve()):
        raise LogError(f"{path}: a run or a sweep keeps files of its own there; choose another place")
    path.mkdir(parents=True, exist_ok=True)
    return path


def in_folder(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A file in an output_folder(), to be written or replaced. LogError: what is there is no regular file."""
    path = folder / name
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise LogError(f"{path}: cannot be written: what is there is no regular file; take it away first")
    return path
