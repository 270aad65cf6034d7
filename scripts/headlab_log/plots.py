"""Figures of heads with Matplotlib: over training, of maps, of all heads at once, of pruning.

Functions take what the reader gives and return the Figure; in a notebook, end the line with `;`.

    from headlab_log import plots
    plots.overview(hl.open_run("runs/char_mha")).savefig("run.png")
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import FuncNorm, Normalize, PowerNorm

from .text import visible

# Okabe and Ito's colours, which colour-blind readers can tell apart; behind them the same, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE = {"font.size": 8, "axes.titlesize": 9, "figure.titlesize": 9, "savefig.dpi": 95}
DRAWN = ("entropy", "mean_distance", "prev_token", "first_token")  # by overview()
NAMES = {  # shorter than the log's long names
    "entropy": "entropy",
    "mean_distance": "mean distance",
    "prev_token": "on previous token",
    "self_token": "on itself",
    "first_token": "on first token",
    "induction": "on what followed\nan earlier copy",
}
MARKS = (0, 0.05, 0.2, 0.5, 1, 2, 5)  # on the colour bar of maps, which grows as the square root


def name_and_unit(variable):
    """Name and unit of a variable, e.g. `entropy [nat]`; a share has no unit."""
    name = NAMES.get(variable.name, variable.attrs.get("long_name", variable.name))
    unit = variable.attrs.get("units", "1")
    return name + ("" if unit == "1" else f" [{unit}]")


def line_of(number):
    """Colour and dashes of the n-th line."""
    return {"color": COLOURS[number % len(COLOURS)], "ls": "-" if number < len(COLOURS) else "--"}


# A whole run


def overview(run, site="self"):
    """Loss, statistics of every head over training, and the last maps of two heads a layer."""
    heads, maps = run.heads(site), run.attention(site)
    shown = [name for name in DRAWN if name in heads]
    width, height = figure_size(heads, shown)
    heights = [1.8, height]
    if maps is not None and maps.sizes["step"]:
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
    last = run.heads(site).isel(step=-1)
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
    step = int(run.attention(site).step[-1])
    figure.suptitle(f"attention at step {step}, first probe")


# Over training


def losses(run):
    """Loss of training batches and of the validation split, [nat] a token, over steps."""
    figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
    draw_losses(axes, run)
    axes.set_xlabel("step")
    return figure


def draw_losses(axes, run):
    scalars, evaluations = run.scalars, run.evaluations
    axes.plot(scalars.step, scalars.train_loss, color="#999999", lw=0.8, label="training batch")
    if evaluations is not None:
        axes.plot(
            evaluations.step, evaluations.val_loss, "o-", color="#0072B2", ms=4, label="validation"
        )
    axes.set(ylabel="loss [nat/token]", title="loss")
    axes.legend(frameon=False)


def statistics(heads, names=DRAWN):
    """Statistics of heads over steps: a row each, a column a layer, a line a head.

    heads: run.heads(), variables (step, layer, head). Dotted: the mean before training.
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
    row[0].set_ylabel(name_and_unit(variable))


def against_loss(run, names, site="self"):
    """The loss, and below it statistics of all heads over the same steps, a colour a layer."""
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
        axes.set_ylabel(name_and_unit(heads[name]))
        axes.legend(frameon=False)
    rest[-1].set_xlabel("step")
    return figure


# Maps


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
    marks = [mark for mark in MARKS if mark <= most]
    marks = [-mark for mark in marks[:0:-1] if -mark >= least] + marks
    bar = image.figure.colorbar(image, ax=axes, ticks=marks, aspect=40)
    bar.ax.set_yticklabels([f"{mark:g}".replace("-", "−") for mark in marks])
    bar.ax.minorticks_off()
    bar.set_label(label)


def attention_map(weights, axes=None):
    """One map with its tokens: queries are rows, keys columns.

    weights: (query, key) with coordinates query_text, key_text, as run.map() gives it; cut it to
    the positions of interest with `.isel(query=slice(...), key=slice(...))`.
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


def all_maps(weights, titles="layer {layer}, head {head}"):
    """Small maps of all heads, a row a layer: weights (layer, head, query, key)."""
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
            axes.set_title(titles.format(layer=layer, head=head))
    figure.supxlabel("key [token]", fontsize="medium")
    figure.supylabel("query [token]", fontsize="medium")
    weight_bar(image, list(grid.flat))
    return figure


def maps_in_a_row(maps, titles):
    """Some maps (query, key) side by side with one colour bar, a title each."""
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


# All heads at once


def head_grid(values, title=None, digits=2):
    """A number for each head, (layer, head), as coloured cells; an absent head's is empty.

    Signed values are coloured around 0.
    """
    rows, columns = values.shape
    size = (max(0.5 * columns + 1.7, 3), 0.3 * rows + 1)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    numbers = values.values.astype(float)
    least, most = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    cmap, norm = "cividis", Normalize(min(least, 0), most)
    if least < 0:
        size = max(-least, most)
        cmap, norm = "RdBu_r", Normalize(-size, size)
    image = axes.imshow(numbers, cmap=cmap, norm=norm, aspect="auto")
    for (layer, head), number in np.ndenumerate(numbers):
        if not np.isnan(number):
            red, green, blue, _ = image.cmap(norm(number))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            axes.text(head, layer, f"{number:.{digits}f}", ha="center", va="center",
                      fontsize=7, color="white" if dark else "black")
    axes.set_yticks(range(rows), values["layer"].values)
    axes.set_xticks(range(columns), values["head"].values)
    axes.set(xlabel="head", ylabel="layer", title=title or name_and_unit(values))
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, aspect=12)
    return figure


def head_roles(roles):
    """Which heads have which role: run.roles(), one column a head, the layers side by side."""
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


def head_plane(analysis):
    """The heads in a plane where near ones attend alike (head_map), a colour a layer.

    Labels layer:head, from the outside in, where there is room.
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


def matrices(by_title, xlabel, ylabel, label):
    """Signed matrices of one shape below each other, coloured around 0."""
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


# Pruning, and variants side by side


def pruning(orders, quantity="loss"):
    """What pruning left, against heads kept: a line an order, a band where there are several runs.

    orders: name -> list of run.pruning, all of one model, a round a head.
    """
    figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for n, (name, rounds) in enumerate(orders.items()):
        kept = rounds[0].kept
        values = np.stack([one[quantity].values for one in rounds])
        several = f", {len(rounds)} draws" if len(rounds) > 1 else ""
        axes.plot(kept, values.mean(0), "o-", ms=3, lw=1.2, label=name + several, color=COLOURS[n])
        axes.fill_between(kept, values.min(0), values.max(0), color=COLOURS[n], alpha=0.15, lw=0)
    axes.set(xlabel="heads kept", ylabel=name_and_unit(rounds[0][quantity]))
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def seeds(values, by="kind"):
    """A value of each run, (run), by its kind or name: dots are seeds, the bar is their mean."""
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    groups = list(dict.fromkeys(values[by].values))
    for place, group in enumerate(groups):
        found = values.values[values[by].values == group]
        axes.plot(place + np.linspace(-0.1, 0.1, len(found)), found, "o", ms=5, color=COLOURS[0])
        axes.hlines(found.mean(), place - 0.25, place + 0.25, color="black", lw=1.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(xlim=(-0.6, len(groups) - 0.4), ylabel=name_and_unit(values))
    axes.grid(axis="y", alpha=0.3)
    return figure
