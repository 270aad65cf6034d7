"""Makes one HTML page from one or several runs, or from a comparison.

    scripts/report RUN|SWEEP... [-o report.html]
    scripts/report COMPARISON [-o report.html]
"""

import argparse
from collections.abc import Sequence

from ..command import taken, tell, told_plainly
from ..output import Output, plain_path
from ..text import printable
from . import MAX_BYTES, compose


def options_of(arguments):
    parser = argparse.ArgumentParser(
        prog="report", description="Makes one HTML page from one or several runs: losses, "
        "statistics of every head, attention maps, roles, pruning; from a comparison also its tables, curves and "
        "differences. It needs no network.",
        epilog="example: scripts/report runs/char_mha/* runs/char_gated/* -o report.html")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directory, or the folder of a sweep or of a comparison")
    parser.add_argument("-o", dest="out", metavar="FILE", default="report.html", type=plain_path,
                        help="page to write (default: report.html)")
    parser.add_argument("--max-mb", type=float, default=MAX_BYTES / 1e6, metavar="MB",
                        help="size that the page may have; maps are left out to stay below it "
                        "(default: %(default)g)")
    parser.add_argument("--title", help="heading of the page (default: names of the runs)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    with told_plainly("report"):
        page = Output(options.out)
        html, left_out = compose([taken("report", run) for run in options.runs], options.title, int(options.max_mb * 1e6))
        page.write(html)
        for sentence in left_out:
            tell("report", sentence)
        print(printable(f"{options.out}  {len(html.encode()) / 1e6:.1f} MB"))
