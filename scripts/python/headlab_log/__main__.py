"""Opens logs from the command line: python -m headlab_log watch|serve|report|figure|roofline|csv|tensorboard ..."""

import argparse
import importlib
import sys
from collections.abc import Sequence

# The module whose main() a command is, and what it does.
COMMANDS = {
    "watch": ("watch", "shows a run in the terminal while it trains"),
    "serve": ("serve", "serves the report of runs, which follows them"),
    "report": ("report.command", "makes one HTML page from one or several runs"),
    "figure": ("figure", "draws what a comparison found as PNG and SVG"),
    "roofline": ("roofline", "draws what `headlab bench` measured below the machine's roof"),
    "csv": ("exports", "writes what a run logged as CSV files"),
    "tensorboard": ("tensorboard", "turns runs into event files for TensorBoard"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; arguments: its name and what it takes (default: those of the process)."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in COMMANDS:
        module = importlib.import_module(f".{COMMANDS[given[0]][0]}", __package__)
        module.main(given[1:])
        return
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="headlab_log", description="Opens logs of headlab. COMMAND --help says what each "
        "takes.", formatter_class=argparse.RawDescriptionHelpFormatter, epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()))
    parser.add_argument("command", metavar="|".join(COMMANDS), choices=list(COMMANDS))
    parser.parse_args(given[:1])  # of no such command it says which there are


if __name__ == "__main__":
    main()
