"""All heads at once: a number each, their roles, which ones are alike."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from .style import COLOURS, name_and_unit


def head_grid(values: xr.DataArray, title: str | None = None, digits: int = 2,
              interval: xr.DataArray | None = None) -> Figure:
    """A number for each head, (layer, head), as coloured cells; an absent head's is empty.

    Signed values are coloured around 0. interval: half of each number's, such as
    `run.ablation().loss_delta_interval` of `loss_delta`; numbers that differ by less than the
    larger of theirs share a colour, and so do those linked through others between them.

    >>> from headlab_log import plots
    >>> len(plots.head_grid(run.ablation().kl.sel(mode="zero")).axes[0].texts)  # one a head
    6
    """
    rows, columns = values.shape
    size = (max(0.5 * columns + 1.7, 3), 0.3 * rows + 1)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    numbers = values.values.astype(float)
    least, most = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    cmap, norm = "cividis", Normalize(min(least, 0), most)
    if least < 0:
        widest = max(-least, most)
        cmap, norm = "RdBu_r", Normalize(-widest, widest)
    shown = numbers if interval is None else told_apart(numbers, interval.values.astype(float))
    image = axes.imshow(shown, cmap=cmap, norm=norm, aspect="auto")
    for (layer, head), number in np.ndenumerate(numbers):
        if not np.isnan(number):
            red, green, blue, _ = image.cmap(norm(shown[layer, head]))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            axes.text(head, layer, f"{number:.{digits}f}", ha="center", va="center",
                      fontsize=7, color="white" if dark else "black")
    axes.set_yticks(range(rows), values["layer"].values)
    axes.set_xticks(range(columns), values["head"].values)
    axes.set(xlabel="head", ylabel="layer", title=title or name_and_unit(values))
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, aspect=12, format=f"%.{digits}f")
    bar.set_ticks(np.linspace(norm.vmin, norm.vmax, 5))  # with both ends
    return figure


def told_apart(numbers, intervals):
    """The numbers that cells are coloured by: the mean of those that are not told apart."""
    shown = numbers.copy()
    order = np.flatnonzero(~np.isnan(numbers))
    order = order[np.argsort(numbers.flat[order], kind="stable")]
    known = np.nan_to_num(intervals).flat[order]
    far = np.diff(numbers.flat[order]) >= np.maximum(known[1:], known[:-1])
    for alike in np.split(order, np.flatnonzero(far) + 1):
        if len(alike):
            shown.flat[alike] = numbers.flat[alike].mean()
    return shown


def head_roles(roles: xr.Dataset) -> Figure:
    """Which heads have which role: run.roles(), one column a head, the layers side by side.

    Roles that no head has are left out.

    >>> from headlab_log import plots
    >>> [axes.get_title() for axes in plots.head_roles(run.roles()).axes]
    ['layer 0', 'layer 1']
    """
    held = [name for name in roles if name != "head_mask" and (roles[name] == 1).any()]
    layers, heads = roles.sizes["layer"], roles.sizes["head"]
    size = (0.11 * layers * max(heads + 1, 12) + 1.2, 0.2 * len(held) + 0.9)
    figure, row = plt.subplots(1, layers, figsize=size, squeeze=False, sharey=True,
                               layout="constrained")
    for axes, layer in zip(row[0], roles["layer"].values):
        for place, name in enumerate(held):
            has = np.flatnonzero(roles[name].sel(layer=layer) == 1)
            axes.plot(has, [place] * len(has), "s", color=COLOURS[0], ms=5)
        axes.set(title=f"layer {layer}", xlim=(-0.7, heads - 0.3),
                 xticks=range(0, heads, 1 if heads <= 8 else 3))
        axes.set_yticks(range(len(held)), held)
        axes.set_ylim(len(held) - 0.5, -0.5)
        axes.grid(color="#dddddd", lw=0.5)
        axes.tick_params(length=0)
    figure.supxlabel("head", fontsize="medium")
    return figure


def head_plane(analysis: xr.Dataset) -> Figure:
    """The heads in a plane where near ones attend alike (head_map), a colour a layer.

    Labels layer:head, from the outside in, where there is room.

    >>> from headlab_log import plots
    >>> plots.head_plane(run.analysis()).axes[0].get_xlabel()
    'first coordinate [nat]'
    """
    places = analysis.head_map.values  # (layer, head, 2)
    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(places)))
    for layer, shade, of_layer in zip(analysis["layer"].values, shades, places):
        axes.plot(*of_layer.T, "o", ms=5, color=shade, label=f"layer {layer}")
    axes.set(xlabel="first coordinate [nat]", ylabel="second coordinate [nat]",
             title="heads that attend alike lie close")
    axes.set_aspect("equal", "datalim")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.draw_without_rendering()  # sets the axes, so that pixels are known
    label_points(axes, places, analysis["layer"].values, analysis["head"].values)
    return figure


def label_points(axes, places, layers, heads):
    flat = places.reshape(-1, 2)
    pixels = axes.transData.transform(flat)
    names = [f"{layer}:{head}" for layer in layers for head in heads]
    taken = np.empty((0, 2))
    distance = np.linalg.norm(flat - np.nanmean(flat, axis=0), axis=1)
    for n in np.argsort(-np.nan_to_num(distance)):
        centre = pixels[n] + (0, 11)
        away = np.abs(np.vstack([taken, np.delete(pixels, n, axis=0)]) - centre)
        if np.isnan(distance[n]) or ((away[:, 0] < 22) & (away[:, 1] < 11)).any():
            continue
        axes.annotate(names[n], flat[n], (0, 4), textcoords="offset points", ha="center",
                      fontsize=6.5)
        taken = np.vstack([taken, centre])
