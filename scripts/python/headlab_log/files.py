"""HDF5 files of headlab as labelled datasets: finished, growing, or left by a killed writer.

The engine "h5netcdf" of xarray, which comes with this package, reads a finished one, too; it waits
for ever at some damaged ones.
"""

import contextlib
import ctypes
import math
import os
import pathlib
import stat
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import h5py
import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from . import guard, received
from .program import program_name
from .text import shell_word

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PathLike: TypeAlias = str | os.PathLike[str]

SCHEMA = 1  # the major version that this package reads
DEEPEST = 8  # groups of a log nest two deep
MOST_TEXT = 16 << 20  # bytes of a config or a status that is read
DEFLATE = 1032  # bytes that one byte of a chunk can become
UNWRITTEN = 64 << 20  # bytes that may be read of what was never written
ATTEMPTS = 28  # of reading what a writer is just changing, after pauses that double: 0.3 s in all
# Attributes by which HDF5 and netCDF keep dimensions.
HDF5_ONLY = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid",
             "_Netcdf4Coordinates"}


class LogError(Exception):
    """A file that cannot be read as what it should be; the message names it and the remedy."""


class LogWarning(UserWarning):
    """Something about a run that its reader should know, such as a writer that was killed."""


def is_locked(path: PathLike) -> bool | None:
    """Whether a writer holds `path`: it locks PATH.lock, and the kernel frees that when it dies.

    None: not to be known here. Windows has no such locks, and headlab does not run there, but the
    file may lie where it does (WSL, a network drive).
    """
    if fcntl is None:
        return None
    try:
        lock = os.open(f"{path}.lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no such file: nobody writes
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without such locks
        return _is_locked_by_fcntl(lock)
    finally:
        os.close(lock)
    return False


def _is_locked_by_fcntl(lock: int) -> bool | None:
    """As WriterLock in C++ locks where there is no flock; None: there are no such locks, either."""
    # struct flock of 64-bit Linux: type, whence, start, length, process.
    form = "hhxxxxqqixxxx"
    try:
        found = fcntl.fcntl(lock, fcntl.F_OFD_GETLK,
                            struct.pack(form, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (AttributeError, OSError):
        return None
    return struct.unpack(form, found)[0] != fcntl.F_UNLCK


def open_h5(path: PathLike) -> h5py.File:
    """The open h5py.File of `path`, readable beside a writer.

    LogError: there is no such file, or none that HDF5 can read. A damaged one is surveyed in another
    process first, since it may crash the library.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise LogError(f"{path}: there is no such file")
    locked = bool(is_locked(path))
    if said := guard.complaint(path, locked, lambda: survey(opened(path, locked))):
        raise LogError(f"{path}: is damaged: {said}; take a copy from before")
    try:
        file = opened(path, locked)
    except OSError as error:
        if error.errno:
            raise LogError(f"{path}: cannot be read: {os.strerror(error.errno)}") from error
        if is_git_lfs_pointer(path):
            raise LogError(f"{path}: is a pointer of Git LFS, not the file itself; `git lfs pull`, "
                           "run in its repository, fetches the file") from None
        remedy = ("its writer has only just made it; try again" if locked else
                  f"if its writer was killed, `{program_name()} repair {shell_word(path)}` makes it so")
        raise LogError(f"{path}: not readable as HDF5 ({reason(error)}); {remedy}") from None
    except Exception as error:
        raise damage(path, "", error) from error
    with reading(path, "/"):
        if said := received.complaint(file, path):
            file.close()
            raise LogError(f"{path}: {said}")
    return file


def opened(path, locked):
    """As SWMR beside the writer that holds the lock, and where the file's own mark says that one
    writes: it was killed, or its lock, on another machine, cannot be seen. Any other plainly: SWMR
    would read damaged bytes again and again, in pauses without end.
    """
    if not locked:
        try:
            return h5py.File(path, "r")
        except OSError:
            if not marked_as_written(path):
                raise
    try:
        return open_live(path)
    except OSError:
        if not locked:
            raise
        return h5py.File(path, "r")  # `log.swmr: false` is too old a format for SWMR


def marked_as_written(path):
    """Whether the superblock says that a SWMR writer has the file open."""
    with open(path, "rb") as file:
        head = file.read(12)
    return len(head) == 12 and head[8] >= 3 and bool(head[11] & 4)


def open_live(path):
    """The file as a SWMR reader sees it; it gives up where HDF5 would retry a hundred times."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    try:  # a function that h5py does not offer, of the library that it has loaded
        limit = ctypes.CDLL(h5py.h5p.__file__).H5Pset_metadata_read_attempts
    except (AttributeError, OSError):  # where libraries hide what they load
        return h5py.File(path, "r", swmr=True)
    limit(ctypes.c_int64(access.id), ctypes.c_uint(ATTEMPTS))
    return h5py.File(h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ,
                                   access))


def survey(file):
    """Looks at all but large arrays of numbers, and of these at where they lie."""
    def look(_, item):
        try:
            dict(item.attrs)
            if isinstance(item, h5py.Dataset):
                require_backed(item, item.nbytes)
                if h5py.check_string_dtype(item.dtype) or item.nbytes < 1 << 20:
                    item[()]
                elif item.chunks:
                    item.id.get_num_chunks()
        except MemoryError:
            raise
        except Exception:  # who asks for it will be told
            pass

    with file:
        if not received.foreign(file):
            dict(file.attrs)
            file.visititems(look)


def damage(path, place, error):
    """The LogError of a file that was opened and does not read; place: "/heads/self/entropy"."""
    said = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {reason(error)}"
    remedy = ("its writer may be changing it; try again" if is_locked(path) else
              f"`{program_name()} repair {shell_word(path)}` mends what a killed writer left; else take a copy "
              "from before" if pathlib.Path(path).name == "log.h5" else
              "the command that made it makes it anew")
    where = f"{path}: {place}: " if place else f"{path}: "
    return LogError(f"{where}is damaged ({said}); {remedy}")


@contextlib.contextmanager
def reading(path: PathLike, place: str = "") -> Iterator[None]:
    """Whatever goes wrong inside is a LogError that names the file and the place in it.

    HDF5, h5py and xarray answer damaged bytes with exceptions of any kind.
    """
    try:
        yield
    except LogError:
        raise
    except Exception as error:
        raise damage(path, place, error) from error


def require_backed(data, size):
    """ValueError where `size` bytes of a dataset are more than its bytes in the file can become."""
    if size > UNWRITTEN and size > UNWRITTEN + DEFLATE * data.id.get_storage_size():
        raise ValueError(f"it claims {size:,} bytes, and {data.id.get_storage_size():,} are stored")


def read_text(path: pathlib.Path) -> str:
    """The text of a small file; "" where there is none. LogError: it cannot be one of a run."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LogError(f"{path}: is no regular file; the files of a run are")
            text = file.read(MOST_TEXT + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from None
    if len(text) > MOST_TEXT:
        raise LogError(f"{path}: has more than {MOST_TEXT >> 20} MiB, which no such file of a run has")
    with reading(path):
        return text.decode("utf-8")


def is_git_lfs_pointer(path):
    """Whether a clone that did not fetch the file left a text in its place."""
    with open(path, "rb") as file:
        return file.read(42).startswith(b"version https://git-lfs.github.com/spec/v1")


def reason(error):
    """What HDF5 says, without its chain of causes."""
    said = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return said.split("(", 1)[-1].rstrip(")") if said.startswith("Unable to") else said


def check_schema(path, attributes):
    """Refuses files that are not headlab's, or of a newer major schema than this package knows."""
    name, version = attributes.get("schema_name"), str(attributes.get("schema_version", ""))
    if name != "headlab" or not version.split(".")[0].isdigit():
        raise LogError(f"{path}: an HDF5 file, but not a log of headlab (no schema_name, "
                       "schema_version in its root)")
    if int(version.split(".")[0]) > SCHEMA:
        raise LogError(f"{path}: schema {version} is newer than this headlab_log, which reads "
                       f"{SCHEMA}.x; install the headlab_log of the headlab that wrote it")


def groups(file: h5py.File) -> tuple[str, ...]:
    """Names of the groups of an open h5py.File that hold variables, such as `heads/self`.

    LogError: one of them, or a variable, is damaged.
    """
    found = []

    def walk(group, depth):
        items = [(name, member(group, name)) for name in sorted(group)]
        if group.name != "/" and any(isinstance(item, h5py.Dataset) for _, item in items):
            found.append(group.name.strip("/"))
        for _, item in items:
            if isinstance(item, h5py.Group):
                if depth == DEEPEST:
                    raise LogError(f"{file.filename}: {item.name}: groups are nested too deep for a log")
                walk(item, depth + 1)

    with reading(file.filename, "/"):
        walk(file, 0)
    return tuple(found)


def member(group, name):
    """What lies in an open group under a name. LogError: it does not open."""
    with reading(group.file.filename, f"{group.name.rstrip('/')}/{name}"):
        return group[name]


def open_group(path: PathLike, group: str, lazy: bool = False) -> xr.Dataset:
    """One group of an HDF5 file as a Dataset.

    path: a log.h5, analysis.h5, ablation.h5 or pruning.h5. Of a growing file, the records that are
    complete. A unit of 1 is left out of `attrs`, since pictures would show it as "[1]". lazy:
    values are read when they are used, which needs the file to stay where it is.
    LogError: the file has no such group.

    >>> hl.open_group(run.path / "log.h5", "scalars").train_loss.dims
    ('step',)
    """
    with reading(path, f"/{group}"), open_h5(path) as file:
        if group not in file:
            raise LogError(f"{path} has no {group}; it has: {', '.join(groups(file))}")
        if file.swmr_mode:  # the lengths of all variables as of one moment, the step's first
            for variable in datasets_in(file[group]).values():
                variable.refresh()
        # A record's step is written last. xarray takes the longest variable for the length instead.
        complete = len(file[group]["step"]) if "step" in file[group] else None
        read = read_group(path, file[group], complete, lazy)
        read.encoding["source"] = str(path)  # as xarray's engines do
        return without_units_of_one(read)


def without_units_of_one(dataset):
    for variable in dataset.variables.values():
        if variable.attrs.get("units") == "1":
            del variable.attrs["units"]
    return dataset


def datasets_in(group):
    items = {name: member(group, name) for name in group}
    return {name: item for name, item in items.items() if isinstance(item, h5py.Dataset)}


def read_group(path, group, complete, lazy=False):
    """An open h5py.Group in memory, as xarray's engines read it; lazy: numbers that are on no axis
    of their own are read when they are used.

    The engines look up every variable's length at every access to one, which for the statistics of
    a log takes ten times as long.
    """
    variables = {}
    for name, data in datasets_in(group).items():
        with reading(path, data.name):
            dims = [name] if data.is_scale else [axis[0].name.split("/")[-1] for axis in data.dims]
            part = slice(complete) if dims[:1] == ["step"] else ()
            attributes = {key: plain(value) for key, value in data.attrs.items()
                          if key not in HDF5_ONLY}
            if h5py.check_string_dtype(data.dtype):
                values = texts_of(data, part)
            elif lazy and not data.is_scale:
                values = indexing.LazilyIndexedArray(Stored(path, data))
            else:
                rows = min(complete, len(data)) if part else 1
                require_backed(data, data.nbytes // max(len(data), 1) * rows if part else data.nbytes)
                values = data[part]
            variables[name] = xr.Variable(dims, values, attributes)
            if lazy and part:
                variables[name] = variables[name].isel(step=part)
    return xr.decode_cf(xr.Dataset(variables), decode_times=False)


def texts_of(data, part):
    """Texts as an array of the longest one's width."""
    require_backed(data, data.nbytes)
    found = data.asstr()[part]
    require_backed(data, 4 * np.size(found) * max(map(len, np.ravel(found)), default=0))
    return found.astype(str)


def plain(value):
    """An attribute's value, one of one number as the number. ValueError: a text is no UTF-8."""
    value = value[0] if np.shape(value) == (1,) else value
    if isinstance(value, str):
        value.encode()  # in which h5py put surrogates for other bytes
    return value


class Stored(BackendArray):
    """A dataset that xarray reads when its values are used, from the file as it is then."""

    def __init__(self, path, data):
        self.path, self.place, self.shape, self.dtype = path, data.name, data.shape, data.dtype

    def __getitem__(self, key):
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self.read)

    def read(self, key):
        counts = [len(range(*part.indices(size))) if isinstance(part, slice) else np.size(part)
                  for part, size in zip(key, self.shape)]
        with reading(self.path, self.place), open_h5(self.path) as file:
            data = file[self.place]
            require_backed(data, math.prod(counts) * self.dtype.itemsize)
            return data[key]


def pick(dataset: xr.Dataset | xr.DataArray, dim: str, value: int | None) -> Any:
    """The label that a user's value means on an axis; LogError says which there are.

    None is the last one, and so is -1, as in a list.

    >>> int(hl.pick(run.heads(), "head", -1)) + 1 == run.heads().sizes["head"]
    True
    """
    labels = dataset[dim].values
    if value in (None, -1) and len(labels):
        return labels[-1]
    if value not in labels:
        raise LogError(f"{dataset.encoding.get('source', 'log')}: {dim} {value} is not logged; "
                       f"there are {', '.join(map(str, labels)) or 'none'}")
    return value
