#!/usr/bin/env python3
"""Shows a run: prints a table of its heads at the last step, and draws them over training.

    plot_run.py RUN [-o PICTURE.png] [--site self]

RUN is a run directory, finished or still training; only its log.h5 is read, with the
packages of scripts/requirements.txt. The table is Markdown. Without -o nothing is drawn.
"""

import argparse
import pathlib
import sys

import h5netcdf
import numpy as np
import xarray as xr

STATISTICS = ("entropy", "mean_distance", "prev_token", "self_token", "first_token")  # tabulated
DRAWN = ("entropy", "mean_distance", "prev_token", "first_token")
MARKS = (0, 0.05, 0.2, 0.5, 1)  # on the colour bar of maps, which grows as the square root
NAMES = {
    "entropy": "entropy",
    "mean_distance": "mean distance",
    "prev_token": "on previous token",
    "self_token": "on itself",
    "first_token": "on first token",
}
# Okabe and Ito's colours, which colour-blind readers can tell apart; then the same, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def open_group(path, group):
    """One group of a log, None where it is not there. swmr: beside a writer, and without one."""
    file = h5netcdf.File(path, "r", swmr=True)
    if group not in file:
        return None
    return xr.open_dataset(xr.backends.H5NetCDFStore(file, group=group))


def label(variable):
    """Name and unit of a statistic, e.g. `entropy [nat]`; a share has no unit."""
    unit = variable.attrs["units"]
    return NAMES[variable.name] + ("" if unit == "1" else f" [{unit}]")


def table(scalars, evaluations, heads):
    """The heads at the last step as Markdown lines, losses first. A pruned head has no numbers."""
    last = heads.isel(step=-1)
    shown = [name for name in STATISTICS if name in heads]
    lines = [f"step {int(scalars.step[-1])}: training loss {float(scalars.train_loss[-1]):.3f} nat"]
    if evaluations.sizes["step"]:
        lines[0] += f", validation loss {float(evaluations.val_loss[-1]):.3f} nat"
    lines += ["", "| layer | head | " + " | ".join(label(heads[s]) for s in shown) + " |"]
    lines += ["|--:" * (2 + len(shown)) + "|"]
    for layer in last["layer"].values:
        for head in last["head"].values:  # not last.head: that is a method
            values = [float(last[s].sel(layer=layer, head=head)) for s in shown]
            cells = ["" if np.isnan(v) else f"{v:.2f}" for v in values]
            lines.append(f"| {layer} | {head} | " + " | ".join(cells) + " |")
    return lines


def draw_losses(axes, scalars, evaluations):
    axes.plot(scalars.step, scalars.train_loss, color="#999999", lw=0.8, label="training batch")
    axes.plot(
        evaluations.step, evaluations.val_loss, "o-", color="#0072B2", ms=4, label="validation"
    )
    axes.set(xlabel="step", ylabel="loss [nat/token]", title="loss")
    axes.legend(frameon=False)


def draw_statistic(row, variable):
    """One panel a layer, one line a head; the dotted line is the mean before training."""
    for axes, layer in zip(row, variable["layer"].values):
        axes.axhline(float(variable[0].mean()), color="black", lw=0.8, ls=":")
        for head in variable["head"].values:
            axes.plot(
                variable.step,
                variable.sel(layer=layer, head=head),
                color=COLOURS[head % len(COLOURS)],
                ls="-" if head < len(COLOURS) else "--",
                lw=1.2,
                label=f"head {head}",
            )
    row[0].set_ylabel(label(variable))


def draw_maps(grid, heads, maps):
    """The last maps of the first probe: in each layer the sharpest head and the farthest."""
    last = heads.isel(step=-1)
    length = int(maps.query_length[0])
    for column, layer in zip(grid.T, maps["layer"].values):
        if last.entropy.sel(layer=layer).isnull().all():
            continue  # every head of this layer is pruned
        for axes, what in zip(column, (-last.entropy, last.mean_distance)):
            head = int(what.sel(layer=layer).idxmax("head"))
            weights = maps.weights.isel(step=-1, probe=0).sel(layer=layer, head=head)
            image = axes.imshow(
                weights[:length, :length] ** 0.5,
                cmap="cividis",
                vmin=0,
                vmax=1,
                interpolation="nearest",
            )
            axes.set_title(f"layer {layer}, head {head}")
            axes.label_outer()
        column[-1].set_xlabel("key [token]")
    grid[0, 0].set_ylabel("least entropy\nquery [token]")
    grid[1, 0].set_ylabel("farthest\nquery [token]")
    bar = grid[0, 0].figure.colorbar(image, ax=list(grid.flat), ticks=np.sqrt(MARKS), aspect=40)
    bar.ax.set_yticklabels([str(mark) for mark in MARKS])
    bar.set_label("attention weight")


def draw(path, scalars, evaluations, heads, maps):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 8, "axes.titlesize": 9})
    shown = [name for name in DRAWN if name in heads]
    layers = heads.sizes["layer"]
    heights = [1.8, 1.5 * len(shown) + 0.4] + ([4.9] if maps else [])
    size = (max(2.3 * layers, 6), sum(heights))
    figure = plt.figure(figsize=size, layout="constrained")
    top, middle, *bottom = figure.subfigures(len(heights), 1, height_ratios=heights)

    draw_losses(top.subplots(), scalars, evaluations)

    grid = middle.subplots(len(shown), layers, sharex=True, sharey="row", squeeze=False)
    for row, name in zip(grid, shown):
        draw_statistic(row, heads[name])
    for axes, layer in zip(grid[0], heads["layer"].values):
        axes.set_title(f"layer {layer}")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    lines, names = grid[0, 0].get_legend_handles_labels()
    middle.legend(lines, names, loc="outside upper center", ncols=8, frameon=False)

    if maps:
        grid = bottom[0].subplots(2, maps.sizes["layer"], squeeze=False)
        draw_maps(grid, heads, maps)
        bottom[0].suptitle(f"attention at step {int(maps.step[-1])}, first probe")
    figure.savefig(path, dpi=95)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("-o", metavar="PICTURE", help="PNG, PDF or SVG to write")
    parser.add_argument("--site", default="self", help="which attention (default: self)")
    options = parser.parse_args()
    log = pathlib.Path(options.run) / "log.h5"
    try:
        heads = open_group(log, f"heads/{options.site}")
    except OSError as e:
        sys.exit(f"plot_run: {log}: {e}")
    if heads is None or heads.sizes["step"] == 0:
        sys.exit(f"plot_run: {log}: no records in /heads/{options.site}")
    scalars, evaluations = open_group(log, "scalars"), open_group(log, "eval")
    print("\n".join(table(scalars, evaluations, heads)))
    if options.o:
        maps = open_group(log, f"attention/{options.site}")
        has_maps = maps is not None and maps.sizes["step"] > 0
        draw(options.o, scalars, evaluations, heads, maps if has_maps else None)


if __name__ == "__main__":
    main()
