"""A run over its training: loss, statistics of heads, and all that at a glance."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ..measures import by_measure
from ..run import Run
from .maps import weight_bar, weight_scale
from .style import axis_label, line_of

DRAWN = ("entropy", "mean_distance", "prev_token", "first_token")  # by overview()


def overview(run: Run, site: str = "self") -> Figure:
    """Loss, statistics of every head over training, and the last maps of two heads a layer.

    >>> from headlab_log import plots
    >>> len(plots.overview(run).subfigs)
    3
    """
    heads = run.heads(site)
    shown = [name for name in DRAWN if name in heads]
    width, height = figure_size(heads, shown)
    heights = [1.8, height]
    logged = f"attention/{site}" in run and run.attention(site).sizes["step"]
    if logged and heads.entropy[-1].notnull().any():
        heights.append(4.9)
    figure = plt.figure(figsize=(width, sum(heights)), layout="constrained")
    top, middle, *bottom = figure.subfigures(len(heights), 1, height_ratios=heights)
    axes = top.subplots()
    draw_losses(axes, run)
    axes.set_xlabel("step")
    draw_statistics(middle, heads, shown)
    if bottom:
        draw_two_maps_a_layer(bottom[0], run, site)
    return figure


def draw_two_maps_a_layer(figure, run, site):
    """The last maps of the first probe: in each layer the sharpest head and the farthest."""
    maps = run.attention(site)  # maybe not of every head
    last = run.heads(site).isel(step=-1).sel(layer=maps["layer"], head=maps["head"])
    shown = {}  # by row, column
    for column, layer in enumerate(last["layer"].values):
        if last.entropy.sel(layer=layer).isnull().all():
            continue  # every head of this layer is pruned
        for row, what in enumerate((-last.entropy, last.mean_distance)):
            head = int(what.sel(layer=layer).idxmax("head"))
            shown[row, column] = run.map(layer=layer, head=head, site=site)
    grid = figure.subplots(2, last.sizes["layer"], squeeze=False)
    scale = weight_scale(np.stack([weights.values for weights in shown.values()]))
    for place, weights in shown.items():
        image = grid[place].imshow(weights.values, interpolation="nearest", **scale)
        grid[place].set_title(f"layer {int(weights.layer)}, head {int(weights['head'])}")
        grid[place].label_outer()
    for axes in grid[-1]:
        axes.set_xlabel("key [token]")
    grid[0, 0].set_ylabel("least entropy\nquery [token]")
    grid[1, 0].set_ylabel("farthest\nquery [token]")
    weight_bar(image, list(grid.flat))
    figure.suptitle(f"attention at step {int(maps.step[-1])}, first probe")


def losses(run: Run) -> Figure:
    """Loss of training batches and of the validation split, [nat] a token, over steps.

    What was measured on the whole split stands apart from what was on its first batches.

    >>> from headlab_log import plots
    >>> [line.get_label() for line in plots.losses(run).axes[0].lines]
    ['training batch', 'validation']
    """
    figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
    draw_losses(axes, run)
    axes.set_xlabel("step")
    return figure


def draw_losses(axes, run):
    scalars = run.scalars
    axes.plot(scalars.step, scalars.train_loss, color="#999999", lw=0.8, label="training batch")
    if "eval" in run:
        parts = by_measure(run.evaluations)
        for n, (words, rows) in enumerate(parts):
            label = "validation" if len(parts) == 1 else f"validation, {words.split(', ')[0]}"
            marker = "o-" if n == 0 else "D"  # of another measure, which no line joins to the first
            axes.plot(rows.step, rows.val_loss, marker, color="#0072B2", ms=4, label=label)
    axes.set(ylabel="loss [nat/token]", title="loss")
    axes.legend(frameon=False)


def statistics(heads: xr.Dataset, names: Sequence[str] = DRAWN) -> Figure:
    """Statistics of heads over steps: a row each, a column a layer, a line a head.

    heads: run.heads(), variables (step, layer, head). Dotted: the mean before training.

    >>> from headlab_log import plots
    >>> len(plots.statistics(run.heads(), ["entropy", "max_weight"]).axes)  # of two layers
    4
    """
    figure = plt.figure(figsize=figure_size(heads, names), layout="constrained")
    draw_statistics(figure, heads, names)
    return figure


def figure_size(heads, names):
    return max(2.3 * heads.sizes["layer"], 6), 1.5 * len(names) + 0.4


def draw_statistics(figure, heads, names):
    shape = len(names), heads.sizes["layer"]
    grid = figure.subplots(*shape, sharex=True, sharey="row", squeeze=False)
    for row, name in zip(grid, names):
        draw_statistic(row, heads[name])
    for axes, layer in zip(grid[0], heads["layer"].values):
        axes.set_title(f"layer {layer}")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    lines, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside upper center", ncols=8, frameon=False)


def draw_statistic(row, variable):
    for axes, layer in zip(row, variable["layer"].values):
        axes.axhline(float(variable[0].mean()), color="black", lw=0.8, ls=":")
        for n, head in enumerate(variable["head"].values):
            values = variable.sel(layer=layer, head=head)
            axes.plot(variable.step, values, lw=1.2, label=f"head {head}", **line_of(n))
    row[0].set_ylabel(axis_label(variable))


def against_loss(run: Run, names: Sequence[str], site: str = "self") -> Figure:
    """The loss, and below it statistics of all heads over the same steps, a colour a layer.

    >>> from headlab_log import plots
    >>> plots.against_loss(run, ["prev_token"]).axes[1].get_ylabel()
    'on previous token'
    """
    heads = run.heads(site)
    size = (6, 1.6 * len(names) + 1.9)
    figure, (top, *rest) = plt.subplots(
        1 + len(names), figsize=size, sharex=True, layout="constrained"
    )
    draw_losses(top, run)
    for axes, name in zip(rest, names):
        for n, layer in enumerate(heads["layer"].values):
            lines = axes.plot(heads.step, heads[name].sel(layer=layer), lw=1.2, **line_of(n))
            lines[0].set_label(f"heads of layer {layer}")
        axes.set_ylabel(axis_label(heads[name]))
        axes.legend(frameon=False)
    rest[-1].set_xlabel("step")
    return figure
