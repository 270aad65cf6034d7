"""Several runs side by side: variants, seeds, settings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import xarray as xr

from .files import LogError, LogWarning, PathLike
from .opening import open_run
from .run import Run

if TYPE_CHECKING:
    import pandas as pd


def compare(runs: Run | PathLike | Iterable[Run | PathLike], group: str = "scalars") -> xr.Dataset:
    """One group of several runs as one Dataset with a new dimension `run`.

    runs: open runs or paths. group: `scalars`, `eval`, `heads`, `analysis`, ... (`heads/cross` in
    models of several sites). NaN
    where a run has no such step, layer, head or variable. Coordinates on `run`: its label (with
    the directory's name where two are alike), name, kind, seed and code (a LogWarning tells where
    one kind has several); so means over seeds are `.groupby("name").mean()`. Of `eval` the variable
    `measured` says what each loss was measured on; a LogWarning tells where runs differ in it at
    the same step. Raises LogError naming a run that has no such group.

    >>> hl.compare([run, run], "eval").val_loss.dims
    ('run', 'step')
    """
    given = [runs] if isinstance(runs, (Run, str, os.PathLike)) else runs
    opened = [run if isinstance(run, Run) else open_run(run) for run in given]
    if not opened:
        raise LogError("compare: no run is given")
    parts = [run.evaluations.reset_coords("measured") if group == "eval" and "eval" in run
             else run.group(group) for run in opened]
    joined = xr.concat(parts, dim="run", join="outer", data_vars="all", coords="minimal",
                       compat="override", combine_attrs="override")
    warn_of_code(opened)
    if group == "eval":
        warn_of_measures(joined, labels(opened))
    return joined.assign_coords(
        run=labels(opened), name=("run", [run.name for run in opened]),
        kind=("run", [run.kind for run in opened]), seed=("run", [run.seed for run in opened]),
        code=("run", [run.code for run in opened]))


def warn_of_code(runs: Sequence[Run]) -> None:
    """A LogWarning for each name and kind whose runs were made by different code of their heads."""
    for said in differing_code(runs):
        warnings.warn(said, LogWarning, stacklevel=3)


def differing_code(runs: Sequence[Run]) -> list[str]:
    """A sentence for each name and kind whose runs were made by different code of their heads."""
    made_by, found = {}, []
    for run in runs:
        made_by.setdefault((run.name, run.kind), {}).setdefault(run.code, []).append(run.path.name)
    for (name, kind), codes in made_by.items():
        if len(codes) > 1:
            said = "; ".join(f"{code or 'not known'}: {', '.join(names)}"
                             for code, names in codes.items())
            found.append(f"runs of {name} ({kind}) differ in the code of their heads: {said}")
    return found


def warn_of_measures(joined: xr.Dataset, names: Sequence[str]) -> None:
    """A LogWarning of the last step at which losses of several runs were measured differently."""
    for n in reversed(range(joined.sizes["step"])):
        there = joined.val_loss.isel(step=n).notnull().values if "val_loss" in joined else ()
        words = {name: word for name, word, is_there
                 in zip(names, joined.measured.isel(step=n).values, there) if is_there}
        if len(set(words.values())) > 1:
            said = "; ".join(f"{name}: {word}" for name, word in words.items())
            warnings.warn(f"losses of step {int(joined.step[n])} do not compare, since they were "
                          f"measured on different examples: {said}", LogWarning, stacklevel=3)
            return


def labels(runs: Sequence[Run]) -> list[str]:
    """A text for each run that tells it from the others.

    That is its label, with the directory's name where labels are alike; and with the path where
    these are, too, as of one config that was run into two folders.
    """
    texts = [run.label for run in runs]
    for more in (lambda run: run.path.name, lambda run: run.path):
        texts = [f"{run.label} {more(run)}" if texts.count(text) > 1 else text
                 for run, text in zip(runs, texts)]
    return texts


def differences(runs: Iterable[Run | PathLike]) -> pd.DataFrame:
    """The settings in which runs differ: a DataFrame, a row a setting, a column a run.

    runs: open runs or paths. Settings are named as overrides name them (`model.heads`); None where
    a run has no such setting.

    >>> hl.differences([run, run]).empty
    True
    """
    import pandas as pd

    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    rows = differing_settings(opened)
    return pd.DataFrame(list(rows.values()), index=list(rows), columns=labels(opened), dtype=object)


def differing_settings(runs):
    """{setting: [value of each run, None where it has none]} of those that are not all equal."""
    flat = [settings(run.config) for run in runs]
    every = {key: [config.get(key) for config in flat] for config in flat for key in config}
    return {key: values for key, values in every.items() if any(v != values[0] for v in values)}


def settings(config, prefix=""):
    """A config as one level, {"model.heads": 4, ...}; lists stay lists."""
    flat = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        flat |= settings(value, f"{key}.") if isinstance(value, dict) and value else {key: value}
    return flat
