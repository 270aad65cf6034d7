"""All runs of a sweep at once, labelled with what its axes say of each."""

from __future__ import annotations

import contextlib
import json
import pathlib
import warnings

import xarray as xr

from .compare import compare
from .files import LogError, LogWarning, PathLike
from .opening import open_run

POINTS = "points.json"


def open_sweep(path: PathLike, group: str = "scalars", grid: bool = False) -> xr.Dataset:
    """One group of every run of a sweep as one Dataset, loaded.

    path: the folder of a sweep (`headlab sweep` names it), or one with a single sweep below its
    sweeps/. group: as compare() takes it. The dimension `run` has a coordinate for each setting that
    the axes change, named as overrides name it (`model.attention.kind`). grid: these settings as
    dimensions in place of `run`; of those of `zip`, which go together, the first is one. Steps are
    joined: NaN where a run has none. Points that have not begun are left out, and a LogWarning says
    how many. Raises LogError where there is no sweep, or none of its points has begun.

    >>> import json, pathlib
    >>> points = [{"run": str(run.path), "settings": {"seed": 1337}}]  # as a sweep writes them
    >>> _ = pathlib.Path("points.json").write_text(json.dumps({"points": points}))
    >>> hl.open_sweep(".", "eval").seed.item()
    1337
    """
    folder = sweep_of(path)
    asked = points_of(folder)
    points = [point for point in asked if has_log(point)]
    missing = len(asked) - len(points)
    if not points:
        raise LogError(f"{folder}: none of its {missing} points has begun")
    if missing:
        warnings.warn(f"{folder}: {missing} of its {len(asked)} points have not begun",
                      LogWarning, stacklevel=2)
    with contextlib.ExitStack() as opened:
        runs = [opened.enter_context(open_run(point["run"])) for point in points]
        joined = compare(runs, group).load()
    settings = {key: [point["settings"].get(key) for point in points]
                for key in points[0]["settings"]}
    if not grid:
        return joined.assign_coords({key: ("run", values) for key, values in settings.items()})
    return on_grid(joined, settings)


def on_grid(joined, settings):
    """The Dataset with the settings as dimensions in place of `run`."""
    kept = {}
    for key, values in settings.items():
        if not any(follows(values, earlier) for earlier in kept.values()):
            kept[key] = values
    if not kept:
        return joined
    plain = joined.drop_vars([name for name in ("run", "name", "kind", "seed", "code")
                              if name in joined.coords])
    if len(kept) == 1:
        (key, values), = kept.items()
        return plain.assign_coords({key: ("run", values)}).swap_dims(run=key)
    plain = plain.assign_coords({key: ("run", values) for key, values in kept.items()})
    return plain.set_index(run=list(kept)).unstack("run")


def follows(values, earlier):
    """Whether a setting that changes is told by another one that does: a list of `zip`."""
    told = {}
    return len(set(values)) > 1 and all(
        told.setdefault(before, value) == value for before, value in zip(earlier, values))


def sweep_of(path: PathLike) -> pathlib.Path:
    """The folder of the sweep that a path means. Raises LogError where there is none."""
    folder = pathlib.Path(path)
    if (folder / POINTS).is_file():
        return folder
    found = sorted(inside.parent for inside in folder.glob(f"sweeps/*/{POINTS}"))
    if len(found) == 1:
        return found[0]
    if found:
        raise LogError(f"{folder}: holds {len(found)} sweeps; name one of them: "
                       + ", ".join(map(str, found)))
    raise LogError(f"{folder}: no sweep (no {POINTS}); `headlab sweep` names its folder")


def points_of(folder: pathlib.Path) -> list[dict]:
    """What a sweep keeps of its points: run, config, name, seed and settings of each."""
    try:
        return json.loads((folder / POINTS).read_text(encoding="utf-8"))["points"]
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(f"{folder / POINTS}: is damaged; start the sweep again") from error


def runs_of(path: PathLike) -> list[PathLike]:
    """The runs of a sweep that have begun; of any other path itself."""
    folder = pathlib.Path(path)
    if not (folder / POINTS).is_file():
        return [path]
    found = [point["run"] for point in points_of(folder) if has_log(point)]
    if not found:
        raise LogError(f"{folder}: none of its points has begun")
    return found


def has_log(point):
    return (pathlib.Path(point["run"]) / "log.h5").is_file()
