"""Makes one HTML page from one or several runs.

    scripts/report RUN... [-o report.html]
"""

import argparse
import os
import pathlib
import sys
import tempfile

from ..command import told_plainly
from ..files import LogError
from . import MAX_BYTES, compose


def arguments():
    parser = argparse.ArgumentParser(
        prog="report", description="Makes one HTML page from one or several runs: losses, "
        "statistics of every head, attention maps, roles, pruning. It needs no network.",
        epilog="example: scripts/report runs/char_mha/* runs/char_gated/* -o report.html")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directory")
    parser.add_argument("-o", dest="out", metavar="FILE", default="report.html", type=pathlib.Path,
                        help="page to write (default: report.html)")
    parser.add_argument("--max-mb", type=float, default=MAX_BYTES / 1e6, metavar="MB",
                        help="size that the page may have; maps are left out to stay below it "
                        "(default: %(default)g)")
    parser.add_argument("--title", help="heading of the page (default: names of the runs)")
    return parser.parse_args()


def write(path, text):
    """Writes a file whole or not at all."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False,
                                         encoding="utf-8", newline="\n") as file:
            try:
                file.write(text)
                file.flush()
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(file.name, 0o666 & ~mask)  # temporary files are their owner's only
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise LogError(f"{path}: cannot be written: {error.strerror}") from None


def main():
    options = arguments()
    with told_plainly("report"):
        html, left_out = compose(options.runs, options.title, int(options.max_mb * 1e6))
        write(options.out, html)
        for sentence in left_out:
            print(f"report: {sentence}", file=sys.stderr)
        print(f"{options.out}  {len(html.encode()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
