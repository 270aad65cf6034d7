"""HDF5 files of headlab as labelled datasets: finished, growing, or left by a killed writer."""

import os
import pathlib
import tempfile
from typing import Any, TypeAlias

import h5py
import numpy as np
import xarray as xr

from .program import program_name

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PathLike: TypeAlias = str | os.PathLike[str]

SCHEMA = 1  # the major version that this package reads
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
        with open(f"{path}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file: nobody writes
        return False
    return False


def open_h5(path: PathLike) -> h5py.File:
    """The open h5py.File of `path`, readable beside a writer.

    SWMR also opens what a killed writer left, and finished files; files written without it
    (`log.swmr: false`) are too old a format for that and open plainly.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise LogError(f"{path}: there is no such file")
    try:
        return h5py.File(path, "r", swmr=True)
    except OSError as first:
        try:
            return h5py.File(path, "r")
        except OSError:
            if is_git_lfs_pointer(path):
                raise LogError(f"{path}: is a pointer of Git LFS, not the file itself; `git lfs pull`, "
                               "run in its repository, fetches the file") from None
            remedy = ("its writer has only just made it; try again" if is_locked(path) else
                      f"if its writer was killed, `{program_name()} repair {path}` makes it so")
            raise LogError(f"{path}: not readable as HDF5 ({reason(first)}); {remedy}") from None


def is_git_lfs_pointer(path):
    """Whether a clone that did not fetch the file left a text in its place."""
    with open(path, "rb") as file:
        return file.read(42).startswith(b"version https://git-lfs.github.com/spec/v1")


def reason(error):
    """What HDF5 says, without its chain of causes."""
    return str(error).split("(", 1)[-1].rstrip(")")


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
    """Names of the groups of an open h5py.File that hold variables, such as `heads/self`."""
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Group)
                    and any(isinstance(x, h5py.Dataset) for x in item.values()) else None)
    return tuple(found)


def open_group(path: PathLike, group: str, lazy: bool = False) -> xr.Dataset:
    """One group of an HDF5 file as a Dataset.

    path: a log.h5, analysis.h5, ablation.h5 or pruning.h5. Of a growing file, the records that are
    complete. A unit of 1 is left out of `attrs`, since pictures would show it as "[1]". lazy:
    values are read when they are used, which needs the file to stay where it is.
    LogError: the file has no such group.

    >>> hl.open_group(run.path / "log.h5", "scalars").train_loss.dims
    ('step',)
    """
    with open_h5(path) as file:
        if group not in file:
            raise LogError(f"{path} has no {group}; it has: {', '.join(groups(file))}")
        if file.swmr_mode:  # HDF5 shows a file that is still open for lazy values as it was
            for variable in datasets_in(file[group]).values():
                variable.refresh()
        # A record's step is written last. xarray takes the longest variable for the length instead.
        complete = len(file[group]["step"]) if "step" in file[group] else None
        if not lazy:
            read = read_group(file[group], complete)
            read.encoding["source"] = str(path)  # as xarray's engines do
            return without_units_of_one(read)
        swmr = file.swmr_mode
    dataset = xr.open_dataset(path, group=group, engine="h5netcdf",
                              driver_kwds={"swmr": True} if swmr else None)
    return without_units_of_one(dataset.isel(step=slice(complete)))


def without_units_of_one(dataset):
    for variable in dataset.variables.values():
        if variable.attrs.get("units") == "1":
            del variable.attrs["units"]
    return dataset


def datasets_in(group):
    return {name: item for name, item in group.items() if isinstance(item, h5py.Dataset)}


def read_group(group, complete):
    """An open h5py.Group in memory, as xarray's engines read it.

    They look up every variable's length at every access to one, which for the statistics of a log
    takes ten times as long.
    """
    variables = {}
    for name, data in datasets_in(group).items():
        dims = [name] if data.is_scale else [axis[0].name.split("/")[-1] for axis in data.dims]
        part = slice(complete) if dims[:1] == ["step"] else ()
        text = h5py.check_string_dtype(data.dtype)
        values = data.asstr()[part].astype(str) if text else data[part]
        attributes = {key: value[0] if np.shape(value) == (1,) else value
                      for key, value in data.attrs.items() if key not in HDF5_ONLY}
        variables[name] = (dims, values, attributes)
    return xr.decode_cf(xr.Dataset(variables), decode_times=False)


def write_whole(path: PathLike, text: str) -> pathlib.Path:
    """Writes a text file whole or not at all, and returns its path.

    LogError: there is no such folder; OSError: it cannot be written.
    """
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise LogError(f"{path}: cannot be written: there is no folder {path.parent}")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = pathlib.Path(folder) / path.name
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    return path


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
