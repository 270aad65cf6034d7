"""Draws the roofline of what `headlab bench --json` measured.

    scripts/log roofline BENCH.json -o FILE.png|FILE.svg
"""

import argparse
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .command import told_plainly
from .extras import needed
from .files import LogError, PathLike
from .output import Output, plain_path
from .program import program_name
from .text import printable


class Point(NamedTuple):
    """A pass of a layer."""

    label: str  # "mha, auto"
    shape: str  # "12x64x128x4"
    both: bool  # forward and backward; else forward alone
    intensity: float  # FLOPs a byte that is moved
    speed: float  # FLOP/s


class Roofline(NamedTuple):
    flops: float  # FLOP/s of matrix products
    bytes: float  # bytes/s of a copy
    points: list[Point]


def read_roofline(path: PathLike) -> Roofline:
    """What a file of `headlab bench --json` holds. LogError: it is no such file, or nothing in it can be drawn."""
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        points = [point for shape in found["shapes"] for row in shape["rows"] for point in points_of(shape, row)]
        roofline = Roofline(float(found["peak"]["flops"]), float(found["peak"]["bytes"]), points)
    except (ValueError, KeyError, TypeError) as error:
        raise LogError(f"{path}: is no file of `{program_name()} bench --json` "
                       f"({type(error).__name__}: {error})") from None
    if not points:
        raise LogError(f"{path}: no pass in it has both a time and a count of FLOPs")
    if not all(math.isfinite(value) and value > 0 for value in roofline[:2]):
        raise LogError(f"{path}: its peak is no positive number")
    return roofline


def points_of(shape: dict, row: dict) -> Iterator[Point]:
    for name in "forward", "both":
        figure = row.get(name, {})
        if figure.get("flops") and figure.get("moved_bytes"):
            yield Point(f"{row['label']}, {row['path']}", shape["shape"], name == "both",
                        figure["flops"] / figure["moved_bytes"], figure["flops"] / (figure["ms"]["least"] / 1e3))


def write_roofline(path: PathLike, out: PathLike) -> pathlib.Path:
    """Draws the file of `headlab bench --json` at `path` (see plots.roofline) and returns `out`, .png or .svg."""
    plt = needed("matplotlib.pyplot", "plots")
    from . import plots

    output, found = Output(out, read=[path]), read_roofline(path)
    with plt.rc_context({**plots.STYLE, "savefig.dpi": 200, "svg.hashsalt": "headlab"}):
        figure = plots.roofline(found)
        about = {"metadata": {"Date": None}} if output.path.suffix == ".svg" else {}  # the same figures, the same file
        output.write(lambda file: figure.savefig(file, format=output.path.suffix[1:], **about))
        plt.close(figure)
    return output.path


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="roofline", description="Draws what `headlab bench --json` measured: FLOP/s over FLOPs a byte, below "
        "the roof of the machine's matrix products and copies.")
    parser.add_argument("bench", metavar="BENCH.json", help="what `headlab bench --json` printed")
    parser.add_argument("-o", metavar="FILE", type=plain_path, required=True, help="a .png or .svg")
    options = parser.parse_args(arguments)
    if options.o.suffix not in (".png", ".svg"):
        parser.error(f"-o {options.o}: must end in .png or .svg")
    with told_plainly("roofline"):
        needed("matplotlib", "plots").use("Agg")
        print(printable(write_roofline(options.bench, options.o)))
