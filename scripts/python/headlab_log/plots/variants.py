"""Models side by side: what pruning leaves, seeds of several kinds, their matrices."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from .style import COLOURS, axis_label


def pruning(orders: Mapping[str, Sequence[xr.Dataset]], quantity: str = "loss") -> Figure:
    """What pruning left, against heads kept: a line an order, a band where there are several runs.

    orders: name -> list of run.pruning, all of one model, a round a head. quantity: one of their
    variables, such as `loss` [nat], `accuracy`, `flops`. Of a tuned run the whole model after as
    many updates is dotted beside it. See 3_pruning.ipynb.
    """
    figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for n, (name, rounds) in enumerate(orders.items()):
        kept = rounds[0].kept
        values = np.stack([one[quantity].values for one in rounds])
        several = f", {len(rounds)} draws" if len(rounds) > 1 else ""
        axes.plot(kept, values.mean(0), "o-", ms=3, lw=1.2, label=name + several, color=COLOURS[n])
        axes.fill_between(kept, values.min(0), values.max(0), color=COLOURS[n], alpha=0.15, lw=0)
        if f"uncut_{quantity}" in rounds[0]:
            uncut = np.stack([one[f"uncut_{quantity}"].values for one in rounds]).mean(0)
            axes.plot(kept, uncut, "D:", ms=3, lw=1, mfc="none", label=f"{name}, uncut",
                      color=COLOURS[n])
    axes.set(xlabel="heads kept", ylabel=axis_label(rounds[0][quantity]))
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def seeds(values: xr.DataArray, by: str = "kind") -> Figure:
    """A value of each run, (run), by its kind or name: dots are seeds, the bar is their mean.

    >>> from headlab_log import plots
    >>> losses = hl.compare([run, run], "eval").val_loss.isel(step=-1)
    >>> [tick.get_text() for tick in plots.seeds(losses).axes[0].get_xticklabels()]
    ['mha']
    """
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    groups = list(dict.fromkeys(values[by].values))
    for place, group in enumerate(groups):
        found = values.values[values[by].values == group]
        axes.plot(place + np.linspace(-0.1, 0.1, len(found)), found, "o", ms=5, color=COLOURS[0])
        axes.hlines(found.mean(), place - 0.25, place + 0.25, color="black", lw=1.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(xlim=(-0.6, len(groups) - 0.4), ylabel=axis_label(values))
    axes.grid(axis="y", alpha=0.3)
    return figure


def matrices(by_title: Mapping[str, np.ndarray], xlabel: str, ylabel: str, label: str) -> Figure:
    """Signed matrices of one shape below each other, coloured around 0; title -> array.

    >>> from headlab_log import plots
    >>> figure = plots.matrices({"one": -np.eye(3)}, "column", "row", "value")
    >>> figure.axes[0].images[0].get_clim()
    (-1.0, 1.0)
    """
    rows, columns = next(iter(by_title.values())).shape
    size = (7, len(by_title) * (0.14 * rows + 0.45) + 0.4)
    figure, stack = plt.subplots(len(by_title), 1, figsize=size, squeeze=False, sharex=True,
                                 layout="constrained")
    most = max(float(np.abs(matrix).max()) for matrix in by_title.values())
    for axes, (title, matrix) in zip(stack[:, 0], by_title.items()):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto",
                            interpolation="nearest")
        axes.set(title=title, ylabel=ylabel, yticks=range(rows))
    axes.set_xlabel(xlabel)
    figure.colorbar(image, ax=list(stack.flat), aspect=40, label=label)
    return figure
