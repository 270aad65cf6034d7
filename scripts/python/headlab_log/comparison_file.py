"""The file of a comparison: where it lies, what its values must be, and how they become columns."""

import pathlib

import numpy as np

from .files import LogError, PathLike
from .program import program_name

KEPT, ASKED = "compare.json", "compare.yaml"
# Numbers that JSON cannot write; experiments/runs/run_metrics.cpp writes these texts.
NO_NUMBERS = {"NaN", "Infinity", "-Infinity"}


def file_of_comparison(path: pathlib.Path) -> pathlib.Path:
    """The file that a path means. LogError: there is none."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise LogError(f"{path}: there is no such comparison; `{program_name()} compare FILE` names its folder")
    if (path / KEPT).is_file():
        return path / KEPT
    if (path / ASKED).is_file():
        raise LogError(f"{path}: this comparison has not ended (no {KEPT}); the same `{program_name()} compare` "
                       "goes on with it")
    found = sorted(path.glob(f"comparisons/*/{KEPT}"))
    if len(found) == 1:
        return found[0]
    if found:
        raise LogError(f"{path}: holds {len(found)} comparisons; name one of them: "
                       + ", ".join(str(file.parent) for file in found))
    raise LogError(f"{path}: no comparison (no {KEPT}); `{program_name()} compare FILE` names its folder")


def is_comparison(path: PathLike) -> bool:
    """Whether a path is the folder or the file of a comparison, ended or not."""
    path = pathlib.Path(path)
    return path.name == KEPT or (path / KEPT).is_file() or (path / ASKED).is_file()


def damaged(file, said):
    return LogError(f"{file}: is damaged ({said}); the same `{program_name()} compare` makes it anew")


def require(file, value, place, kind):
    """The value. LogError: it is of another kind."""
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {dict: "mapping", list: "list", str: "text", int: "whole number"}
        raise damaged(file, f"{place or 'it'} is no {words[kind]}")
    return value


def plain(name):
    """A metric's name as a variable's, as logs have it."""
    return name.replace("/", "_")


def leaves(found, prefix=""):
    """Single values of a mapping and of those inside it; an interval as its two ends. Lists are left out."""
    flat = {}
    for key, value in found.items():
        name = f"{prefix}{plain(key)}"
        if key in ("metrics", "curve", "runs") or (isinstance(value, dict) and not value):
            continue
        if isinstance(value, dict):
            flat |= leaves(value, f"{name}_")
        elif key in ("interval", "bootstrap"):
            ends = value if isinstance(value, list) and len(value) == 2 else (None, None)
            before = "" if key == "interval" else f"{name}_"
            flat |= {f"{before}low": ends[0], f"{before}high": ends[1]}
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def is_number(value):
    """Whether a value of JSON is one; 10**400 is more than a float holds."""
    if isinstance(value, str):
        return value in NO_NUMBERS
    return isinstance(value, (int, float)) and not isinstance(value, bool) and (
        isinstance(value, float) or abs(value) < 2**1023)


def column(values, kind=None):
    """Values, some of them None, as an array of numbers, of truths (None: False), or of texts (None: "")."""
    there = [value for value in values if value is not None]
    if kind is bool or (there and all(isinstance(value, bool) for value in there)):
        return np.array([bool(value) for value in values])
    if all(map(is_number, there)):
        return np.array([np.nan if value is None else float(value) for value in values])
    return np.array(["" if value is None else str(value) for value in values], dtype=object)
