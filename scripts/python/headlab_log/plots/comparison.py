"""What `headlab compare` found on a task: curves with their bands, and differences to the baseline."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ..comparison import ComparedTask
from ..comparison_curves import range_of_losses, reference_losses, with_bands
from .style import COLOURS

DASHES = ("-", "--", ":", "-.")  # of seven lines each
BASELINE = "#666666"


def comparison(task: ComparedTask) -> Figure:
    """Left the validation loss over steps, a line an arm with its 95 % band; right the paired differences to the
    baseline with their intervals, the reported ones filled and with a star. Of a task that a training
    solves or does not, right is how many seeds solved it.

    task: of `hl.open_comparison(...)`. The right side is the legend: every arm has its colour and dashes
    there, the lowest loss on top. Of more than eight arms the baseline alone has a band. Horizontal lines
    are the losses of chance and of n-grams, where the comparison has them.

    >>> import json, pathlib
    >>> from headlab_log import plots
    >>> arm = {"name": "mha", "metrics": {"val/loss": {"values": [1.66]}},
    ...        "curve": [{"step": 8, "val/loss": 2.0}, {"step": 16, "val/loss": 1.66}]}
    >>> kept = {"baseline": "mha", "seeds": [1], "tasks": [{"name": "char", "arms": [arm]}]}
    >>> _ = pathlib.Path("compare.json").write_text(json.dumps(kept))
    >>> figure = plots.comparison(hl.open_comparison(".").task())
    >>> [axes.get_title() for axes in figure.axes]
    ['char', 'less the loss of mha']
    """
    order = by_loss(task)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.2, max(2.6, 0.9 + 0.19 * len(order))), width_ratios=(1.1, 1), layout="constrained")
    names = sorted(map(str, task.arms["arm"].values), key=lambda name: name != task.baseline)
    styles = {name: style_of(n, name == task.baseline) for n, name in enumerate(names)}  # the same on every task
    draw_curves(left, task, styles)
    draw_names(right, order, styles)
    if "solved" in task.solved:
        draw_solved(right, task, order, styles)
    else:
        draw_differences(right, task, order, styles)
    return figure


def by_loss(task):
    """Names of the arms, the lowest mean loss first; those without any last."""
    found = task.metrics
    names = [str(name) for name in task.arms["arm"].values]
    means = dict.fromkeys(names, np.nan)
    if task.loss in found:
        means = dict(zip(names, found[task.loss].mean("seed", skipna=False).values))
    return sorted(names, key=lambda name: (np.isnan(means[name]), means[name]))


def style_of(number, is_baseline):
    """The baseline, number 0, is grey and thick."""
    if is_baseline:
        return {"color": BASELINE, "ls": "-", "lw": 2.2}
    return {"color": COLOURS[(number - 1) % len(COLOURS)], "ls": DASHES[(number - 1) // len(COLOURS) % len(DASHES)],
            "lw": 1.1}


def draw_curves(axes, task, styles):
    curves = task.curves
    shown = [name for name in styles if curves.val_loss.sel(arm=name).notnull().any()]
    bands = with_bands(task, shown)
    for name in shown:
        one = curves.sel(arm=name).dropna("step", subset=["val_loss"])
        style = styles[name]
        axes.plot(one.step, one.val_loss, zorder=3 if name == task.baseline else 2, **style)
        if name in bands:
            axes.fill_between(one.step, one.low, one.high, color=style["color"], alpha=0.18, lw=0)
    if shown:
        axes.set_ylim(range_of_losses(task))
    for name, loss in reference_losses(task).items():
        axes.axhline(loss, color="black", lw=0.7, ls=(0, (1, 2)))
        axes.annotate(name, (1, loss), (-2, 1), xycoords=("axes fraction", "data"), textcoords="offset points",
                      ha="right", va="bottom", fontsize="small")
    axes.set(title=task.name, xlabel="step", ylabel="validation loss [nat]")
    axes.grid(alpha=0.3)


def draw_names(axes, order, styles):
    """The names of the arms from the top, each with the line of its curve: a legend."""
    for place, name in enumerate(order):
        axes.plot([-0.09, -0.02], [place] * 2, transform=axes.get_yaxis_transform(), clip_on=False, **styles[name])
    axes.set_yticks(range(len(order)), order)
    axes.tick_params(axis="y", length=0, pad=20)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)


def draw_differences(axes, task, order, styles):
    found = task.differences
    there = task.loss in found["metric"].values
    for place, name in enumerate(order):
        colour = styles[name]["color"]
        one = found.sel(metric=task.loss, arm=name) if there else None
        if name == task.baseline:
            axes.plot([0], [place], "|", color=colour, ms=9)
        elif one is None or np.isnan(one.difference):
            say_nothing(axes, task, name, place)
        else:
            mean, low, high = (float(one[part]) for part in ("difference", "low", "high"))
            axes.plot([low, high], [place] * 2, color=colour, lw=1.2)
            mark(axes, mean, place, colour, bool(one.reported), np.nanmax([mean, high]))
    axes.axvline(0, color=BASELINE, lw=0.8)
    on = "" if task.loss == "val_loss" else f" on {task.measured_on['split']}"
    axes.set(title=f"less the loss of {task.baseline}{on}", xlabel="difference [nat], 95 % of the seeds' pairs")


def draw_solved(axes, task, order, styles):
    solved, seeds = task.solved.solved.sum("seed", skipna=False), len(task.comparison.seeds)
    arms = task.arms
    for place, name in enumerate(order):
        count, reported = float(solved.sel(arm=name)), False
        if "solved_fisher_reported" in arms:
            reported = bool(arms.solved_fisher_reported.sel(arm=name))
        if np.isnan(count):
            say_nothing(axes, task, name, place)
        else:
            mark(axes, count, place, styles[name]["color"], reported, count)
    axes.set(title=f"seeds that solved it, of {seeds}", xlabel="seeds", xlim=(-0.3, seeds + 0.5),
             xticks=range(0, seeds + 1, max(1, seeds // 5)))


def mark(axes, value, place, colour, reported, star_at):
    axes.plot([value], [place], "o", ms=4.5, color=colour, mfc=colour if reported else "white")
    if reported:
        axes.annotate("*", (star_at, place), (3, -3), textcoords="offset points", va="center")


def say_nothing(axes, task, name, place):
    axes.annotate("no statistics" if name in task.reasons else "no difference", (0.02, place),
                  xycoords=("axes fraction", "data"), va="center", fontsize="small", color="#555555",
                  bbox={"fc": "white", "ec": "none", "pad": 1})
