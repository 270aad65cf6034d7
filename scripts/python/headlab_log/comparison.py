"""What `headlab compare` found: the arms of every task as labelled arrays, and the runs behind them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from .comparison_file import KEPT, column, damaged, file_of_comparison, is_number, leaves, plain, require
from .files import LogError, PathLike, read_text
from .measures import LOSS
from .opening import is_run, open_run
from .program import program_name
from .run import Run, read_json

UNITS = {"val_loss": "nat", "test_loss": "nat", "flops": "FLOP", "flops_per_token": "FLOP", "wall_s": "s", "heads_entropy": "nat"}
# Shorter than a quantity's place in compare.json.
NAMES = {"rate_chosen": "rate", "effective_speedup_factor": "effective_speedup"}
OF_DIFFERENCE = ("difference", "low", "high", "p", "p_holm", "reported")  # there without any, too
ORDER_NOT_KNOWN = "Whether the order of the arms has settled is not known: this comparison does not say it."  # of older versions


def open_comparison(path: PathLike) -> Comparison:
    """Opens what `headlab compare` found.

    path: the folder of a comparison (`headlab compare` names it), its compare.json, or a folder with one
    comparison below its comparisons/. Raises LogError where there is no comparison, where it has not
    ended, and where its file is damaged.

    >>> import json, pathlib
    >>> arm = {"name": "mha", "state": "compared", "metrics": {"val/loss": {"values": [1.66]}}}
    >>> kept = {"baseline": "mha", "seeds": [1], "tasks": [{"name": "char", "arms": [arm]}]}
    >>> _ = pathlib.Path("compare.json").write_text(json.dumps(kept))  # as `headlab compare` writes it
    >>> hl.open_comparison(".")["char"].losses.sel(arm="mha", seed=1).item()
    1.66
    """
    return Comparison(file_of_comparison(pathlib.Path(path)))


class Comparison:
    """What `open_comparison` returns: a ComparedTask by its name. Iterating gives the names."""

    path: pathlib.Path  # the folder
    baseline: str
    seeds: list[int]

    def __init__(self, file: PathLike) -> None:
        self.file = pathlib.Path(file)
        self.path = self.file.parent
        try:
            self.kept = json.loads(read_text(self.file))
        except (ValueError, RecursionError) as error:
            raise damaged(self.file, f"it is no JSON: {' '.join(str(error).split())}") from error
        require(self.file, self.kept, "", dict)
        self.baseline = require(self.file, self.kept.get("baseline"), "baseline", str)
        self.seeds = require(self.file, self.kept.get("seeds"), "seeds", list)
        for seed in self.seeds:
            require(self.file, seed, "seeds", int)
        tasks = require(self.file, self.kept.get("tasks"), "tasks", list)
        self._tasks = {task.name: task for task in (ComparedTask(self, n, kept) for n, kept in enumerate(tasks))}
        if not tasks or len(self._tasks) < len(tasks):
            raise damaged(self.file, "tasks: there is none" if not tasks else "tasks: two have one name")

    @property
    def name(self) -> str:
        """What its folder is called: the name of the comparison's file and the hash of what it compares."""
        return pathlib.PurePath(str(self.kept.get("comparison") or self.path.resolve())).name

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def task(self, name: str | None = None) -> ComparedTask:
        """One task. name: None is the only one that there is. LogError: there is no such task, or there are several."""
        if name is None and len(self._tasks) == 1:
            return next(iter(self._tasks.values()))
        if name not in self._tasks:
            said = f"there are {len(self._tasks)} tasks" if name is None else f"no task is called {name!r}"
            raise LogError(f"{self.file}: {said}; name one of them: {', '.join(self._tasks)}")
        return self._tasks[name]

    def __getitem__(self, name: str) -> ComparedTask:
        return self.task(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __repr__(self) -> str:
        return f"<headlab comparison {self.name}: {', '.join(self._tasks)}; baseline {self.baseline}>"


class ComparedTask:
    """The arms of a comparison on one task.

    Every array has the dimension `arm`, in the order of the comparison's file. An arm without
    statistics is NaN there, and `reasons` says why.
    """

    def __init__(self, comparison: Comparison, place: int, kept: object) -> None:
        self.comparison, self.file = comparison, comparison.file
        self.place = f"tasks[{place}]"
        self.kept = require(self.file, kept, self.place, dict)
        self.name: str = require(self.file, self.kept.get("name"), f"{self.place}.name", str)
        self._arms: dict[str, dict] = {}
        for n, arm in enumerate(require(self.file, self.kept.get("arms"), f"{self.place}.arms", list)):
            where = f"{self.place}.arms[{n}]"
            require(self.file, arm, where, dict)
            name = require(self.file, arm.get("name"), f"{where}.name", str)
            if name in self._arms:
                raise damaged(self.file, f"{where}: two arms have the name {name}")
            arm = self._arms[name] = dict(arm)
            for key, kind in (("metrics", dict), ("curve", list), ("runs", list), ("notices", list), ("rate", dict),
                              ("solved", dict), ("lengths", list)):
                arm[key] = require(self.file, kind() if arm.get(key) is None else arm[key], f"{where}.{key}", kind)

    @property
    def baseline(self) -> str:
        return self.comparison.baseline

    @property
    def reasons(self) -> dict[str, str]:
        """Why an arm has no statistics, by its name; only of those that have none."""
        return {name: str(arm.get("reason") or arm.get("state") or "not known why")
                for name, arm in self._arms.items() if not arm.get("metrics")}

    @property
    def notices(self) -> list[str]:
        """What a reader of the figures must know: of single arms, then of the task."""
        own = [f"{name}: {said}" for name, arm in self._arms.items() for said in arm.get("notices", [])]
        return [*own, *map(str, self.kept.get("notices") or [])]

    @property
    def measured_on(self) -> dict[str, Any]:
        """On what the metrics were measured: split, examples, tokens, whether that is the whole split."""
        found = self.kept.get("measured_on")
        return found if isinstance(found, dict) else {}

    @property
    def arms(self) -> xr.Dataset:
        """What an arm has one of, (arm): parameters, rate, flops, wall_s, state, reason, ...

        Names are those of compare.json with `_` for what is inside of what: `heads_entropy`.
        """
        rows = [leaves(arm) for arm in self._arms.values()]
        names = dict.fromkeys(name for row in ({"parameters": 0, "rate_chosen": 0}, *rows) for name in row)
        return self._dataset({NAMES.get(name, name): ("arm", column([row.get(name) for row in rows]))
                              for name in names if name != "name"})

    @property
    def metrics(self) -> xr.Dataset:
        """The metrics at the ends of the trainings, (arm, seed): val_loss, val_accuracy, ...; test_loss, ...
        where the data have a test part (`data.test`), by which nothing was chosen."""
        return self._dataset({plain(metric): (("arm", "seed"), np.array(
            [self._of_seeds(name, self._metric(name, metric).get("values")) for name in self._arms]))
            for metric in self._metrics()}, seed=self.comparison.seeds)

    @property
    def loss(self) -> str:
        """The name of the loss among the metrics: val_loss, or test_loss where the data have a test part."""
        return plain(self._loss)

    @property
    def losses(self) -> xr.DataArray:
        """The loss at the ends of the trainings, (arm, seed) [nat], of the split that `measured_on` names."""
        found = self.metrics
        if self.loss not in found:
            raise LogError(f"{self.file}: {self.name}: no arm has a loss: "
                           + "; ".join(f"{arm}: {why}" for arm, why in self.reasons.items()))
        return found[self.loss]

    @property
    def solved(self) -> xr.Dataset:
        """Of a task that a training solves or does not, (arm, seed): `solved`, and the `updates` until then, NaN
        where it was not; empty of other tasks. `arms.solved_count`, `.solved_fisher_p_holm`, ... are of the arms."""
        found = {name: arm["solved"] for name, arm in self._arms.items()}
        if not any(found.values()):
            return self._dataset({}, seed=self.comparison.seeds)
        rows = {key: [self._of_seeds(name, [float(value) if isinstance(value, bool) else value
                                            for value in one.get(key) or []]) for name, one in found.items()]
                for key in ("seeds", "updates")}
        return self._dataset({name: (("arm", "seed"), np.array(rows[key]))
                              for name, key in (("solved", "seeds"), ("updates", "updates"))},
                             seed=self.comparison.seeds)

    @property
    def differences(self) -> xr.Dataset:
        """The paired differences to the baseline, (metric, arm): `difference` is their mean, `low` and `high`
        its 95 % interval, p, p_holm, reported, ...; `of_seed` (metric, arm, seed) has each of them.

        NaN of the baseline itself, and of arms without statistics; `reported` is False there.
        """
        metrics = self._metrics()
        found = {(metric, arm): self._metric(arm, metric).get("difference") or {}
                 for metric in metrics for arm in self._arms}
        for (metric, arm), one in found.items():
            require(self.file, one, f"{self.place}: {arm}: {metric}: difference", dict)
        rows = {at: leaves({{"mean": "difference"}.get(key, key): value for key, value in one.items()})
                for at, one in found.items()}
        names = dict.fromkeys(name for row in (dict.fromkeys(OF_DIFFERENCE), *rows.values()) for name in row)
        shape = len(metrics), len(self._arms)
        variables = {name: (("metric", "arm"), column([row.get(name) for row in rows.values()],
                                                      bool if name == "reported" else None).reshape(shape))
                     for name in names}
        variables["of_seed"] = (("metric", "arm", "seed"), np.array(
            [self._of_seeds(arm, one.get("values")) for (_, arm), one in found.items()]
        ).reshape(*shape, len(self.comparison.seeds)))
        return self._dataset(variables, metric=[plain(name) for name in metrics], seed=self.comparison.seeds)

    @property
    def curves(self) -> xr.Dataset:
        """Means over the seeds during training, (arm, step): val_loss, its 95 % interval `low` and `high`,
        flops and wall_s of training until then; NaN where an arm was not measured."""
        points = {(name, require(self.file, point.get("step"), f"{self.place}: {name}: curve: step", int)):
                  leaves(point) for name in self._arms for point in self._list(name, "curve")}
        steps = sorted({step for _, step in points})
        names = dict.fromkeys(["val_loss", "low", "high"])
        names |= dict.fromkeys(name for point in points.values() for name in point if name != "step")
        return self._dataset({name: (("arm", "step"), column(
            [points.get((arm, step), {}).get(name) for arm in self._arms for step in steps])
            .reshape(len(self._arms), len(steps))) for name in names}, step=steps)

    @property
    def lengths(self) -> xr.DataArray:
        """The loss after shares of the steps, (arm, length, seed) [nat]: of trainings whose schedule ends there,
        measured as `losses` are. NaN where there is none; of length 0 where the file has no `lengths`."""
        found = {}
        for name in self._arms:
            for one in self._list(name, "lengths"):
                share = self._number(one.get("length"), f"{name}: lengths: length")
                found[name, share] = self._of_seeds(name, one.get(self._loss))
        shares, seeds = sorted({share for _, share in found}), self.comparison.seeds
        nothing = [np.nan] * len(seeds)
        values = np.array([found.get((name, share), nothing) for name in self._arms for share in shares])
        return self._dataset({self.loss: (("arm", "length", "seed"), values.reshape(
            len(self._arms), len(shares), len(seeds)))}, length=shares, seed=seeds)[self.loss]

    @property
    def settled(self) -> dict[str, Any]:
        """Whether the order of the arms has settled: `text`, the sentence of compare.md; `settled` (None: not
        known), and where it is known Kendall's `tau`, its 95 % `interval`, and `why` it has not settled.
        Empty of comparisons of older versions."""
        found = self.kept.get("settled")
        return found if isinstance(found, dict) else {}

    @property
    def tried(self) -> xr.DataArray:
        """The losses by which rates were chosen, (arm, rate) [nat]; NaN where an arm diverged, or was not tried."""
        found = {(name, self._number(one.get("rate"), f"{name}: rate.tried")): one.get(LOSS)
                 for name, arm in self._arms.items() for one in arm["rate"].get("tried") or []
                 if isinstance(one, dict)}
        rates = sorted({rate for _, rate in found})
        values = column([found.get((arm, rate)) for arm in self._arms for rate in rates])
        return self._dataset({"val_loss": (("arm", "rate"), values.reshape(len(self._arms), len(rates)))},
                             rate=rates)["val_loss"]

    @property
    def references(self) -> xr.Dataset:
        """What needs no training reaches, (reference): the metrics of chance, a unigram and a bigram model, by
        the names that `metrics` has; of the comparison, else of the manifest of a run of the baseline; empty
        where neither has any."""
        found = self.kept.get("references") or self._references_of_runs()
        require(self.file, found, f"{self.place}.references", dict)
        rows = {str(name): {key if key.startswith(("val_", "test_")) else f"val_{key}": value
                            for key, value in leaves(one).items() if is_number(value)}
                for name, one in found.items() if isinstance(one, dict) and name not in ("units", "measured_on")}
        names = dict.fromkeys(name for one in rows.values() for name in one)
        return xr.Dataset({name: ("reference", column([one.get(name) for one in rows.values()]))
                           for name in names}, coords={"reference": list(rows)})

    def _references_of_runs(self):
        try:
            known = self.paths(self.baseline)
        except LogError:
            return {}
        found = (read_json(path / "manifest.json").get("references") for path in known.values() if is_run(path))
        return next((one for one in found if isinstance(one, dict)), {})

    def paths(self, arm: str) -> dict[int, pathlib.Path]:
        """Where the runs of an arm are, by their seeds: below the folder of runs that the comparison is in,
        else where they were trained. Empty: it has none.

        LogError: there is no such arm, or the file does not say where its runs are.
        """
        found = {}
        self._arm(arm)
        for run in self._list(arm, "runs"):
            path, seed = run.get("run"), require(self.file, run.get("seed"), f"{self.place}: {arm}: runs: seed", int)
            if not isinstance(path, str):
                raise LogError(f"{self.file}: does not say where the runs of {arm} are; open the {KEPT} that "
                               f"`{program_name()} compare` wrote")
            beside = self.comparison.path.resolve().parent.parent.joinpath(*pathlib.PurePath(path).parts[-2:])
            found[seed] = beside if beside.is_dir() else pathlib.Path(path)
        return found

    def run(self, arm: str, seed: int | None = None) -> Run:
        """Opens the run of an arm; seed: None is the first. LogError: there is no such run any more."""
        found = self.paths(arm)
        if not found:
            raise LogError(f"{self.file}: {self.name}: {arm} has no runs: {self.reasons.get(arm, 'not known why')}")
        seed = next(iter(found)) if seed is None else seed
        if seed not in found:
            raise LogError(f"{self.file}: {self.name}: {arm} has no run of seed {seed}; there are "
                           + ", ".join(map(str, found)))
        if not is_run(found[seed]):
            raise LogError(f"{found[seed]}: the run is no longer there; the same `{program_name()} compare` "
                           "trains it again")
        return open_run(found[seed])

    def runs(self, arm: str) -> list[Run]:
        """Opens the runs of an arm, a seed each."""
        return [self.run(arm, seed) for seed in self.paths(arm)]

    def arm(self, name: str) -> dict[str, Any]:
        """All that compare.json says of an arm. LogError: there is no such arm."""
        return self._arm(name)

    def __repr__(self) -> str:
        return f"<headlab comparison on {self.name}: {', '.join(self._arms)}; baseline {self.baseline}>"

    def _arm(self, name):
        if name not in self._arms:
            raise LogError(f"{self.file}: {self.name}: no arm is called {name!r}; there are: {', '.join(self._arms)}")
        return self._arms[name]

    def _list(self, arm, key):
        """The mappings of a list of an arm."""
        return [require(self.file, one, f"{self.place}: {arm}: {key}", dict) for one in self._arms[arm][key]]

    @property
    def _loss(self):
        return f"{self.measured_on.get('split', 'val')}/loss"

    def _metrics(self):
        """The loss first."""
        names = dict.fromkeys(name for arm in self._arms.values() for name in arm.get("metrics", {}))
        return sorted(names, key=lambda name: name != self._loss)

    def _metric(self, arm, name):
        return require(self.file, self._arms[arm].get("metrics", {}).get(name, {}),
                       f"{self.place}: {arm}: metrics: {name}", dict)

    def _of_seeds(self, arm, values):
        """Values of an arm as they lie on the seeds of the comparison; NaN where there is none."""
        seeds = self.comparison.seeds
        where = f"{self.place}: {arm}: values"
        values = require(self.file, [] if values is None else values, where, list)
        own = [run.get("seed") for run in self._list(arm, "runs")]
        own = own if len(own) == len(values) else seeds
        if values and len(values) != len(own):
            raise damaged(self.file, f"{where}: there are {len(values)} of {len(seeds)} seeds")
        given = dict(zip(own, values))
        return [self._number(given.get(seed), where) for seed in seeds]

    def _number(self, value, where):
        if value is None:
            return np.nan
        if not is_number(value):
            raise damaged(self.file, f"{where}: {value!r} is no number")
        return float(value)

    def _dataset(self, variables, **axes):
        found = xr.Dataset(variables, coords={"arm": list(self._arms), **axes})
        for name, variable in found.variables.items():
            if name in UNITS:
                variable.attrs["units"] = UNITS[name]
        found.attrs |= {"task": self.name, "baseline": self.baseline}
        found.encoding["source"] = str(self.file)
        return found
