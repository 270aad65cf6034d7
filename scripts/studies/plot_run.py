#!/usr/bin/env python3
"""Shows a run: prints a table of its heads at the last step, and draws them over training.

    scripts/venv scripts/studies/plot_run.py RUN [-o PICTURE.png] [--site self]

RUN is a run directory, finished or still training; it is read with the packages of
scripts/requirements.txt. The table is Markdown. Without -o nothing is drawn.
"""

import argparse
import itertools
import sys

import matplotlib
import numpy as np

import headlab_log as hl
from headlab_log import plots
from headlab_log.command import taken, told_plainly
from headlab_log.output import Output, plain_path
from headlab_program import markdown

STATISTICS = ("entropy", "mean_distance", "prev_token", "self_token", "first_token")  # tabulated


def table(scalars, evaluations, heads):
    """The heads at the last step in Markdown, below the losses. A pruned head has no numbers."""
    last = heads.isel(step=-1)
    shown = [name for name in STATISTICS if name in heads]
    losses = f"step {int(scalars.step[-1])}: training loss {float(scalars.train_loss[-1]):.3f} nat"
    if evaluations.sizes["step"]:
        losses += f", validation loss {float(evaluations.val_loss[-1]):.3f} nat"
    rows = []
    for layer, head in itertools.product(last["layer"].values, last["head"].values):  # not last.head: that is a method
        values = [float(last[name].sel(layer=layer, head=head)) for name in shown]
        rows.append([layer, head, *("" if np.isnan(value) else f"{value:.2f}" for value in values)])
    titles = ["layer", "head", *(plots.name_and_unit(heads[name]) for name in shown)]
    return f"{losses}\n\n{markdown(titles, rows, '|--:' * len(titles) + '|')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("-o", metavar="PICTURE", type=plain_path, help="PNG, PDF or SVG to write")
    parser.add_argument("--site", default="self", help="which attention (default: self)")
    options = parser.parse_args()
    with told_plainly("plot_run"):
        show(options)


def show(options):
    picture = Output(options.o) if options.o else None
    run = hl.open_run(taken("plot_run", options.run))
    heads = run.heads(options.site)
    if heads.sizes["step"] == 0:
        sys.exit(f"plot_run: {run.path / 'log.h5'}: no records in heads/{options.site}")
    print(table(run.scalars, run.evaluations, heads), end="")
    if picture:
        matplotlib.use("Agg")
        matplotlib.rcParams.update(plots.STYLE)
        figure = plots.overview(run, options.site)
        picture.write(lambda file: figure.savefig(file, format=options.o.suffix[1:] or "png"))


if __name__ == "__main__":
    main()
