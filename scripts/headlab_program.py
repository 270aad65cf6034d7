"""Runs the program headlab, for the scripts that train and measure with it."""

import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_SEED = 1337  # of several trainings; the others count on from it


def spread(values, digits=3):
    """Mean and standard deviation over seeds, "1.899 ± 0.004"; of one seed the value alone."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


class ProgramError(RuntimeError):
    """The program failed; the message holds what it said."""


def said(program, command, *options):
    """What one command prints. program: its path, or None for scripts/headlab."""
    line = [str(program or ROOT / "scripts/headlab"), command, *map(str, options)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        script = pathlib.Path(sys.argv[0]).stem
        raise ProgramError(f"{done.stderr}{script}: `{' '.join(line)}` failed with code "
                           f"{done.returncode}")
    return done.stdout


def headlab(program, command, *options):
    """What one command prints, as JSON."""
    return json.loads(said(program, command, *options, "--json"))
