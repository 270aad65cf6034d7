"""The log of headlab.watch: log.h5 in the layout that headlab's own program writes (docs/log_format.md).

Rows are appended in SWMR mode, so that readers see them while training goes on and a killed process
loses none that was flushed.
"""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import time

import h5py
import numpy as np

try:
    import fcntl
except ImportError:  # Windows, where headlab does not run
    fcntl = None

BOUNDS = ("v110", "v110")  # readers of HDF5 1.10 open it
CHUNK_BYTES = 16 << 10  # a part-filled chunk is rewritten at each flush
WAITING_ROWS, WAITING_SECONDS = 10, 1.0  # rows that come faster go to the file together
UPDATES = ("1", "optimizer updates finished",
           "row n is the n-th logged update: its micro-batches pooled, train mode, the weights before it; row 0 is "
           "before training")
SCALARS = {
    "train_loss": ("nat", "training loss", "mean of what log(loss=) was given for the update"),
    "lr": ("1", "learning rate", "what log(lr=) was given"),
    "grad_norm": ("1", "norm of the gradient", "what log(grad_norm=) was given"),
    "tokens": ("token", "tokens seen", "sum of what log(tokens=) was given"),
}
AXES = {"layer": ("1", "layer", "counted from 0 at the input"),
        "head": ("1", "head", "original index, before any pruning"),
        "head2": ("1", "the other head of a pair", "original index, before any pruning")}
HEAD_MASK = ("1", "which heads there are", "0: pruned, or the layer has fewer heads; its statistics are NaN")


def run_directory(path) -> pathlib.Path:
    """The directory of a run that a path means: itself, or that of its log.h5."""
    path = pathlib.Path(path)
    if path.name == "log.h5":
        return path.parent
    if path.suffix in (".h5", ".hdf5"):
        raise ValueError(f"{path}: the log of a run is named log.h5, in a directory of its own: say "
                         f"{path.with_suffix('')} or {path.with_suffix('') / 'log.h5'}")
    return path


class Log:
    """The log of one training. It is made with its first row, when it is known what there is to log.

    FileExistsError: there is a log already, and overwrite is not said. BlockingIOError: another
    process writes it.
    """

    def __init__(self, path, overwrite: bool) -> None:
        self.directory = run_directory(path)
        self.path = self.directory / "log.h5"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        if self.path.exists() and not overwrite:
            self.unlock()
            raise FileExistsError(f"{self.path} is there already: name another directory, or say overwrite=True, which "
                                  "replaces it")
        self._file, self._tables = None, {}
        self._waiting, self._flushed = 0, -WAITING_SECONDS

    @property
    def made(self) -> bool:
        return self._file is not None

    def make(self, sites: dict[str, tuple[int, int]], statistics: list[tuple], scalars: list[str], config: dict,
             manifest: dict) -> None:
        """sites: {name: (layers, heads)}; statistics: rows of headlab._C.statistic_table()."""
        fresh = self.directory / "log.h5.new"  # under its own name a log is never half made
        fresh.unlink(missing_ok=True)
        with h5py.File(fresh, "w", libver=BOUNDS, track_order=True) as file:
            _describe(file, self.directory.resolve().name, config, manifest)
            _make_group(file, "scalars", {}, _scalar_columns(scalars))
            for site, (layers, heads) in sites.items():
                sizes = {"layer": layers, "head": heads}
                if any(row[5] for row in statistics):
                    sizes["head2"] = heads
                _make_group(file, f"heads/{site}", sizes, _head_columns(statistics))
        self._write_text("manifest.json", json.dumps(manifest, indent=2) + "\n")
        self.say("running")
        os.replace(fresh, self.path)
        self._file = _edited(self.path)
        for name in ("scalars", *(f"heads/{site}" for site in sites)):
            self._tables[name] = _Table(self._file[name])
        self._file.swmr_mode = True

    def add(self, group: str, step: int, row: dict[str, np.ndarray | float]) -> None:
        """A row of a group; what it lacks is NaN. Steps of a group increase. It waits for commit()."""
        self._tables[group].add(step, row)
        self._waiting += 1

    def commit(self) -> None:
        """The rows so far go to the file, unless the last ones went only just now."""
        enough = self._waiting >= WAITING_ROWS * len(self._tables)
        if enough or time.monotonic() - self._flushed >= WAITING_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Whole rows first, their steps in a flush of their own: whenever a step is in the file, its row is."""
        if not self._waiting:
            return
        for table in self._tables.values():
            table.write_rows()
        self._file.flush()
        for table in self._tables.values():
            table.write_steps()
        self._file.flush()
        self._waiting, self._flushed = 0, time.monotonic()

    def close(self, status: str, reason: str = "") -> None:
        """status: finished, stopped or failed."""
        try:
            if self._file is not None:
                self.flush()
                self._tables = {}
                self._file.close()  # attributes cannot be changed under SWMR
                with _edited(self.path) as file:
                    file.attrs.modify("status", status)
                self.say(status, reason)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the file, with what its disk still takes."""
        if self._file is not None:
            with contextlib.suppress(Exception):
                self.flush()
            with contextlib.suppress(Exception):
                self._file.close()
        self._file, self._tables = None, {}
        self.unlock()

    def unlock(self) -> None:
        if self._lock is not None:
            os.unlink(f"{self.path}.lock")
            os.close(self._lock)
            self._lock = None

    def say(self, status: str, reason: str = "") -> None:
        self._write_text("status.json", json.dumps({
            "status": status, "reason": reason, "updated_utc": _utc(), "host": platform.node(), "pid": os.getpid()},
            indent=2) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        fresh = self.directory / f"{name}.new"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.directory / name)


class _Table:
    """A group that grows by one row a record."""

    def __init__(self, group: h5py.Group) -> None:
        self._step = group["step"]
        self._columns = {name: data for name, data in group.items() if not data.is_scale}
        self._missing = {name: np.full(data.shape[1:], np.nan if data.dtype.kind == "f" else 0, data.dtype)
                         for name, data in self._columns.items()}
        self._rows = {name: [] for name in self._columns}
        self._steps = []

    def add(self, step: int, row: dict) -> None:
        for name, waiting in self._rows.items():
            waiting.append(np.broadcast_to(np.asarray(row.get(name, self._missing[name]), self._missing[name].dtype),
                                           self._missing[name].shape))
        self._steps.append(step)

    def write_rows(self) -> None:
        for name, waiting in self._rows.items():
            if waiting:
                _append(self._columns[name], np.stack(waiting))
                waiting.clear()

    def write_steps(self) -> None:
        if self._steps:
            _append(self._step, np.array(self._steps, "i8"))
            self._steps = []


def _edited(path: pathlib.Path) -> h5py.File:
    try:
        return h5py.File(path, "r+", libver=BOUNDS)
    except OSError:  # readers hold HDF5's own lock; other writers are kept out by log.h5.lock
        return h5py.File(path, "r+", libver=BOUNDS, locking=False)


def _append(data: h5py.Dataset, rows: np.ndarray) -> None:
    """By h5py's lower interface, which takes a third of the time of resize and an assignment."""
    begin = data.id.shape[0]
    data.id.set_extent((begin + len(rows), *rows.shape[1:]))
    space = data.id.get_space()
    space.select_hyperslab((begin, *(0 for _ in rows.shape[1:])), rows.shape)
    data.id.write(h5py.h5s.create_simple(rows.shape), space, np.ascontiguousarray(rows))


def _describe(file: h5py.File, title: str, config: dict, manifest: dict) -> None:
    import yaml

    attributes = {"Conventions": "CF-1.10", "title": str(config.get("name", title)), "source": "headlab",
                  "schema_name": "headlab", "schema_version": "1.0.0", "run_id": manifest["run_id"],
                  "created_utc": manifest["start_utc"],
                  "config_yaml": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
                  "manifest_json": json.dumps(manifest), "axis_order": "row-major", "status": "running"}
    for name, text in attributes.items():
        file.attrs[name] = text


def _scalar_columns(scalars: list[str]) -> dict[str, tuple]:
    columns = {"wall_time": ("f8", (), ("s", "seconds of training", "time since the watch began"))}
    for name in scalars:
        about = SCALARS.get(name, ("1", name.replace("_", " "), f"what log({name}=) was given"))
        columns[name] = ("i8" if name == "tokens" else "f4", (), about)
    return columns


def _head_columns(statistics: list[tuple]) -> dict[str, tuple]:
    columns = {name: ("f4", ("layer", "head", "head2") if pairs else ("layer", "head"), (units, long_name, formula))
               for name, units, long_name, formula, _, pairs, _ in statistics}
    columns["head_mask"] = ("u1", ("layer", "head"), HEAD_MASK)
    return columns


def _make_group(file: h5py.File, path: str, sizes: dict[str, int], columns: dict[str, tuple]) -> None:
    """columns: {name: (type, axes behind step, (units, long name, comment))}."""
    group = file
    for part in path.split("/"):
        group = group[part] if part in group else group.create_group(part, track_order=True)
    shapes = {name: tuple(sizes[axis] for axis in axes) for name, (_, axes, _) in columns.items()}
    largest = max(8, *(int(np.prod(shapes[name])) * np.dtype(kind).itemsize for name, (kind, _, _) in columns.items()))
    rows = min(max(CHUNK_BYTES // largest, 16), 1024)
    scales = {"step": group.create_dataset("step", (0,), "i8", maxshape=(None,), chunks=(rows,))}
    _about(scales["step"], UPDATES)
    for axis, size in sizes.items():
        scales[axis] = group.create_dataset(axis, data=np.arange(size, dtype="i4"))
        _about(scales[axis], AXES[axis])
    for axis, scale in scales.items():
        scale.make_scale(axis)
    for name, (kind, axes, about) in columns.items():
        data = group.create_dataset(name, (0, *shapes[name]), kind, maxshape=(None, *shapes[name]),
                                    chunks=(rows, *shapes[name]), fillvalue=np.nan if kind[0] == "f" else None)
        _about(data, about)
        if kind[0] == "f":
            data.attrs["_FillValue"] = np.array([np.nan], kind)
        if kind == "u1":
            data.attrs["flag_values"] = np.array([0, 1], "u1")
            data.attrs["flag_meanings"] = "pruned alive"
        for n, axis in enumerate(("step", *axes)):
            data.dims[n].attach_scale(scales[axis])


def _about(data: h5py.Dataset, about: tuple[str, str, str]) -> None:
    for name, text in zip(("units", "long_name", "comment"), about):
        data.attrs[name] = text


def _lock(path: pathlib.Path) -> int | None:
    """As the program locks a log that it writes: the kernel frees it when this process ends."""
    if fcntl is None:
        return None
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = " on ".join(os.pread(lock, 512, 0).decode(errors="replace").split()[:2])
        os.close(lock)
        raise BlockingIOError(f"{path}: is being written by process {holder}; wait for it or stop it") from None
    except OSError:  # a file system without such locks
        pass
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {platform.node()}\n".encode(), 0)
    return lock


def _utc() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
