"""What a file of HDF5 from someone else may not do: lead out of itself, or load code."""

import os

import h5py

from .text import printable

PLUGINS = 256  # filters from here on are no part of HDF5: it looks for a library of that number
OF_H5PY = {32000}  # lzf, which h5py brings along
WROTE = "which no headlab writes; ask its sender for the file that headlab wrote"


_own: dict[str, tuple[int, ...]] = {}  # path: its stamp when nothing led out of it


def complaint(file: h5py.File, path: str | os.PathLike[str]) -> str:
    """`foreign(file)`, once for each state of the file at `path`."""
    at = os.stat(path)
    stamp = at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns
    if _own.get(str(path)) == stamp:
        return ""
    said = foreign(file)
    if not said:
        _own[str(path)] = stamp
    return said


def foreign(file: h5py.File) -> str:
    """What leads out of an open file, in a sentence that names the place; "": nothing does.

    Links and how a dataset is stored are looked at, and nothing is read: HDF5 opens another file
    only then.
    """
    seen, groups = set(), [file["/"]]
    while groups:
        group = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:  # a group that lies in itself
            continue
        seen.add(address)
        for name in group:
            place = printable(f"{group.name.rstrip('/')}/{name}")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                return f"{place} is a link to what lies elsewhere, {WROTE}"
            try:
                item = group[name]
            except (KeyError, OSError, RuntimeError):  # damaged: whoever reads it says so
                continue
            if isinstance(item, h5py.Group):
                groups.append(item)
            elif isinstance(item, h5py.Dataset) and (how := stored_elsewhere(item)):
                return f"{place} {how}, {WROTE}"
    return ""


def stored_elsewhere(data):
    """How a dataset gets its numbers, where not from its own file by HDF5 alone; "" otherwise."""
    try:
        made = data.id.get_create_plist()
        if made.get_layout() == h5py.h5d.VIRTUAL:
            return "takes its numbers from other files (a virtual dataset)"
        if made.get_external_count():
            return f"takes its numbers from {os.fsdecode(made.get_external(0)[0])} (external storage)"
        for n in range(made.get_nfilters()):
            number = made.get_filter(n)[0]
            if number >= PLUGINS and number not in OF_H5PY:
                return f"needs a library for filter {number} to unpack its numbers"
    except (OSError, RuntimeError, ValueError):  # damaged
        pass
    return ""
