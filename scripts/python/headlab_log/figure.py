"""Draws what a comparison found, as PNG for pages and SVG for papers.

    scripts/log figure COMPARISON [-o FOLDER]
"""

import argparse
import pathlib
from collections.abc import Sequence

from .command import told_plainly
from .comparison import Comparison, open_comparison
from .extras import needed
from .files import PathLike
from .output import Output, in_folder, output_folder, plain_path
from .text import printable

FORMATS = ("png", "svg")


def write_figures(comparison: Comparison, folder: PathLike | None = None) -> list[pathlib.Path]:
    """Writes the figure of every task (see plots.comparison) as PNG and as SVG, and returns the paths.

    folder: default the comparison's. Of one task compare.png and compare.svg; of several compare_TASK.png
    and compare_TASK.svg each. A file takes the place of an earlier one.
    """
    plt = needed("matplotlib.pyplot", "plots")
    from . import plots

    folder, paths = output_folder(folder, comparison.path), []
    with plt.rc_context({**plots.STYLE, "savefig.dpi": 200, "svg.hashsalt": "headlab"}):
        for name in comparison:
            figure = plots.comparison(comparison[name])
            for kind in FORMATS:
                stem = "compare" if len(comparison) == 1 else f"compare_{file_word(name)}"
                # Without the date the same figures are the same file.
                about = {"metadata": {"Date": None}} if kind == "svg" else {}
                paths.append(Output(in_folder(folder, f"{stem}.{kind}")).write(
                    lambda path: figure.savefig(path, **about)))
            plt.close(figure)
    return paths


def file_word(name):
    """A task's name as a part of a file's."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="figure", description="Draws what `headlab compare` found: for every task the curves of the loss with "
        "their 95 % bands, and the differences to the baseline with their intervals. Writes PNG and SVG.")
    parser.add_argument("comparison", metavar="COMPARISON", help="folder of a comparison, or its compare.json")
    parser.add_argument("-o", metavar="FOLDER", type=plain_path, help="where to (default: the comparison's folder)")
    options = parser.parse_args(arguments)
    with told_plainly("figure"):
        needed("matplotlib", "plots").use("Agg")
        for path in write_figures(open_comparison(options.comparison), options.o):
            print(printable(path))
