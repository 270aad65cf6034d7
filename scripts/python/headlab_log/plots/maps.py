"""Attention maps: one with its tokens, all heads of a model, some side by side."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, PowerNorm
from matplotlib.figure import Figure

from ..text import visible

MARKS = (0, 0.05, 0.2, 0.5, 1, 2, 5)  # on the colour bar of maps, which grows as the square root


def weight_scale(values):
    """Colours of attention weights: growing as the root; around 0 where some are negative."""
    most = max(1.0, float(np.nanmax(np.abs(values))))
    if not (np.asarray(values) < 0).any():
        return {"cmap": "cividis", "norm": PowerNorm(0.5, 0, most)}
    root = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * np.square(x))
    return {"cmap": "RdBu_r", "norm": FuncNorm(root, -most, most)}


def weight_bar(image, axes, label="attention weight"):
    """A colour bar beside axes with images of weight_scale()."""
    least, most = image.norm.vmin, image.norm.vmax
    marks = [mark for mark in MARKS if mark < 0.9 * most] + [float(f"{most:.3g}")]
    if least < 0:
        marks = [mark for mark in marks if mark == 0 or mark >= 0.2]  # there is half the room
        marks = [-mark for mark in marks[:0:-1]] + marks
    bar = image.figure.colorbar(image, ax=axes, ticks=marks, aspect=40)
    bar.ax.set_yticklabels([f"{mark:g}".replace("-", "−") for mark in marks])
    bar.ax.minorticks_off()
    bar.set_label(label)


def attention_map(weights: xr.DataArray, axes: Axes | None = None) -> Figure:
    """One map with its tokens: queries are rows, keys columns.

    weights: (query, key) with coordinates query_text, key_text, as run.map() gives it; cut it to
    the positions of interest with `.isel(query=slice(...), key=slice(...))`.

    >>> from headlab_log import plots
    >>> plots.attention_map(run.map(layer=1, head=0)).axes[0].get_title()
    'layer 1, head 0'
    """
    rows, columns = weights.shape
    if axes is None:
        size = (0.13 * columns + 1.8, 0.13 * rows + 1.2)
        axes = plt.figure(figsize=size, layout="constrained").subplots()
    image = axes.imshow(weights.values, interpolation="nearest", **weight_scale(weights.values))
    longest = 0
    for axis, texts in (("y", weights.query_text.values), ("x", weights.key_text.values)):
        shown = [visible(text) for text in texts]
        longest = max(longest, *map(len, shown))
        axes.tick_params(axis=axis, length=0)
        getattr(axes, f"set_{axis}ticks")(range(len(shown)), shown, fontsize=6.5)
    axes.tick_params(axis="x", rotation=90 if longest > 1 else 0, top=False)
    layer, head = int(weights.layer), int(weights["head"])
    axes.set(xlabel="key [token]", ylabel="query [token]", title=f"layer {layer}, head {head}")
    weight_bar(image, axes)
    return axes.figure


def all_maps(weights: xr.DataArray) -> Figure:
    """Small maps of all heads, a row a layer: weights (layer, head, query, key).

    >>> from headlab_log import plots
    >>> weights = run.attention().weights.isel(step=-1, probe=0)
    >>> len(plots.all_maps(weights).axes)  # two layers of three heads, and the colour bar
    7
    """
    layers, heads = weights.sizes["layer"], weights.sizes["head"]
    size = (1.45 * heads + 1, 1.6 * layers + 0.5)
    figure, grid = plt.subplots(
        layers, heads, figsize=size, squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    scale = weight_scale(weights.values)
    for row, layer in zip(grid, weights["layer"].values):
        for axes, head in zip(row, weights["head"].values):
            one = weights.sel(layer=layer, head=head).values
            image = axes.imshow(one, interpolation="nearest", **scale)
            axes.set_title(f"layer {layer}, head {head}")
    figure.supxlabel("key [token]", fontsize="medium")
    figure.supylabel("query [token]", fontsize="medium")
    weight_bar(image, list(grid.flat))
    return figure


def maps_in_a_row(maps: Sequence[xr.DataArray], titles: Sequence[str]) -> Figure:
    """Some maps (query, key) side by side with one colour bar, a title each.

    >>> from headlab_log import plots
    >>> figure = plots.maps_in_a_row([run.map(step=0), run.map()], ["before", "after"])
    >>> figure.axes[1].get_title()
    'after'
    """
    size = (1.9 * len(maps) + 1, 2.4)
    figure, row = plt.subplots(
        1, len(maps), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    scale = weight_scale(np.stack([one.values for one in maps]))
    for axes, one, title in zip(row[0], maps, titles):
        image = axes.imshow(one.values, interpolation="nearest", **scale)
        axes.set(title=title, xlabel="key [token]")
    row[0, 0].set_ylabel("query [token]")
    weight_bar(image, list(row[0]))
    return figure
