"""What the page shows of a comparison: its tables, curves and differences, and which runs are whose."""

import contextlib
import re
from collections.abc import Sequence

import numpy as np

from ..comparison import ORDER_NOT_KNOWN, ComparedTask, Comparison, open_comparison
from ..comparison_curves import range_of_losses, reference_losses, with_bands
from ..comparison_file import is_comparison
from ..files import LogError, read_text
from ..opening import is_run, open_run
from ..program import program_name
from ..run import Run
from ..text import shell_word
from .data import number

MOST_RUNS = 40  # of a page: as many seeds of every arm, and at least one
SEPARATOR = re.compile(r":?-+:?")


def among(runs: Sequence) -> Comparison | None:
    """The comparison that is the only one of the paths; None: they are runs. LogError: it stands beside others."""
    found = [one for one in runs if not isinstance(one, Run) and is_comparison(one)]
    if found and len(runs) > 1:
        raise LogError(f"{found[0]}: a comparison has a page of its own; name it alone")
    return open_comparison(found[0]) if found else None


class Shown:
    """A comparison with those of its runs that are there, opened: `runs`, their `labels`, `left_out` in
    sentences, and `content`, what the page is told of the comparison."""

    def __init__(self, compared: Comparison, opened: contextlib.ExitStack) -> None:
        self.compared, self.runs, self.labels, self.colours, self.left_out = compared, [], [], [], []
        self._numbers, self._short = {}, ""
        tasks = [compared[name] for name in compared]
        with_runs = sum(bool(known_paths(task, arm)) for task in tasks for arm in task.arms["arm"].values)
        self._seeds = max(1, MOST_RUNS // max(with_runs, 1))
        pages = pages_of(compared)
        self.content = {
            "name": compared.name, "baseline": compared.baseline, "seeds": compared.seeds,
            "first": first_words(compared, pages), "tasks": [
                self._task(task, pages.get(task.name) or told(task), opened) for task in tasks]}
        first = next((run for task in self.content["tasks"] for arm in task["arms"]
                      if arm["name"] == compared.baseline for run, _ in arm["runs"]), 0)
        self.content["hidden"] = [n for n in range(len(self.runs)) if n != first]
        if self._short:
            self.left_out.append(self._short)
        if with_runs and not self.runs:
            self.left_out.append("The runs of this comparison are not here, neither beside it nor where they were "
                                 "trained: the page has its tables and figures alone.")

    def _task(self, task, blocks, opened):
        curves, arms = task.curves, [str(name) for name in task.arms["arm"].values]
        reasons = task.reasons
        return {
            "name": task.name, "blocks": blocks, "notices": task.notices,
            "arms": [{"name": name, "reason": reasons.get(name, ""), "runs": self._runs(task, name, n, opened),
                      **curve(curves.sel(arm=name))} for n, name in enumerate(arms)],
            "differences": differences(task), "solved": solved(task),
            "references": {name: number(loss) for name, loss in reference_losses(task).items()},
            "banded": with_bands(task, arms), "range": range_of_losses(task)}

    def _runs(self, task, arm, colour, opened):
        """[number on the page, seed] of the runs of an arm that are shown."""
        there = {seed: path for seed, path in known_paths(task, arm).items() if is_run(path)}
        shown = dict(list(there.items())[:self._seeds])
        if len(shown) < len(there):
            words = " ".join(shell_word(path) for path in there.values())
            self._short = self._short or (
                f"The page shows {len(shown)} of the {len(there)} seeds of every arm, since it holds {MOST_RUNS} runs "
                f"at most. `scripts/report RUN...` shows all of one: of {arm} `scripts/report {words}`.")
        found = []
        for seed, path in shown.items():
            if path not in self._numbers:
                try:
                    run = opened.enter_context(open_run(path))
                except LogError as error:
                    self.left_out.append(f"{task.name}: {arm}: seed {seed} is not shown: {error}")
                    continue
                self._numbers[path] = len(self.runs)
                self.runs.append(run)
                self.colours.append(colour)
                self.labels.append(f"{task.name + ': ' if len(self.compared) > 1 else ''}{arm} s{seed}")
            found.append([self._numbers[path], seed])
        return found


def known_paths(task, arm):
    """Where the runs of an arm are; empty where the file does not say that."""
    try:
        return task.paths(arm)
    except LogError:
        return {}


def curve(one):
    """The steps of an arm's curve and what it was there; None: not known."""
    one = one.dropna("step", subset=["val_loss"])
    return {"steps": [int(step) for step in one.step.values],
            **{name: [number(value) for value in one[name].values] for name in ("val_loss", "low", "high")}}


def differences(task):
    """{metric: [mean, low, high, reported] of each arm; None: it has none}"""
    found = task.differences
    return {str(metric): [
        None if np.isnan(one.difference) else [
            *(number(one[name]) for name in ("difference", "low", "high")), bool(one.reported)]
        for one in (found.sel(metric=metric, arm=arm) for arm in found["arm"].values)]
        for metric in found["metric"].values}


def solved(task):
    """[count, p after Holm, reported] of each arm; None: it has none. None: no such task."""
    if "solved" not in task.solved:
        return None
    tests = [task.arm(name)["solved"].get("fisher") or {} for name in task.arms["arm"].values]
    return [None if np.isnan(count) else [int(count), test.get("p_holm"), bool(test.get("reported"))]
            for count, test in zip(task.solved.solved.sum("seed", skipna=False).values, tests)]


# --- the tables ------------------------------------------------------------------------------------


def pages_of(compared):
    """compare.md as blocks, by the names of the tasks; "" is what stands before the first; empty where it
    is not there."""
    text = read_text(compared.path / "compare.md")
    return blocks_of(text) if text else {}


def blocks_of(text: str) -> dict[str, list[dict]]:
    """The parts of a page of Markdown by its titles: tables, lists and sentences in their order."""
    found, title, begun = {"": []}, "", False
    for line in map(str.strip, text.splitlines()):
        blocks = found[title]
        before = blocks[-1] if blocks and begun else {}
        if line.startswith("## "):
            title = line[3:].strip()
            found[title] = []
        elif line.startswith("| "):
            add_row(blocks, before, line[2:].removesuffix(" |").split(" | "))
        elif line.startswith("|"):  # |---|--:|
            pass
        elif line.startswith("- "):
            if "items" not in before:
                blocks.append({"items": []})
            blocks[-1]["items"].append(line[2:])
        elif line and "text" in before:
            before["text"] += f" {line}"
        elif line:
            blocks.append({"text": line})
        begun = bool(line)
    return found


def add_row(blocks, before, cells):
    if "head" not in before:
        blocks.append({"head": cells, "rows": []})
        return
    if all(SEPARATOR.fullmatch(cell) for cell in cells):
        return
    more = len(cells) - len(before["head"])  # of a name with a bar in it
    before["rows"].append([" | ".join(cells[:more + 1]), *cells[more + 1:]] if more > 0 else cells)


def first_words(compared, pages):
    """What the page begins with: whether the order of the arms has settled. Empty where a table begins so."""
    said = [block["text"] for block in pages.get("", []) if "text" in block]
    if said or any("settled" in block.get("text", "") for blocks in pages.values() for block in blocks):
        return said
    said = {name: compared[name].settled.get("text") or ORDER_NOT_KNOWN for name in compared}
    return [f"{name}: {one}" if len(said) > 1 else one for name, one in said.items()]


def told(task: ComparedTask) -> list[dict]:
    """A table of what compare.json has, where compare.md is not there or does not have the task."""
    metrics = [str(name) for name in task.differences["metric"].values]
    arms, found, values = task.arms, task.differences, task.metrics
    head = ["arm", "parameters", "rate"]
    for metric in metrics:
        head += [f"{metric}, mean ± sd", f"less {task.baseline}'s [95 %]"]
    rows = []
    for name in map(str, arms["arm"].values):
        row = [name, shown(arms.parameters.sel(arm=name), ",.0f"), shown(arms.rate.sel(arm=name), "g")]
        for metric in metrics:
            of_arm, one = values[metric].sel(arm=name).values, found.sel(metric=metric, arm=name)
            row.append("-" if np.isnan(of_arm).any() else f"{of_arm.mean():.4f}"
                       + (f" ± {of_arm.std(ddof=1):.4f}" if len(of_arm) > 1 else ""))
            row.append("-" if np.isnan(one.difference) else
                       f"{float(one.difference):+.4f} [{shown(one.low, '+.4f')}, {shown(one.high, '+.4f')}]"
                       + (" *" if one.reported else ""))
        rows.append(row)
    on = task.measured_on
    measured = ", ".join(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
                         for key, value in on.items())
    why = [f"{name}: no statistics: {reason}" for name, reason in task.reasons.items()]
    return [{"head": head, "rows": rows},
            {"text": f"Measured on: {measured or 'not known'}. From compare.json alone: compare.md, which the same "
                     f"{program_name()} compare writes, is not there."},
            *([{"items": [*why, *task.notices]}] if why or task.notices else [])]


def shown(value, form):
    return "-" if np.isnan(value) else format(float(value), form)
