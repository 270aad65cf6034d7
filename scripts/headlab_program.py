"""Runs the program headlab, for the scripts that train and measure with it, and writes their tables."""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_SEED = 1337  # of several trainings; the others count on from it


def spread(values, digits=3):
    """Mean and standard deviation over seeds, "1.899 ± 0.004"; of one seed the value alone."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def markdown(head, rows, rule=None):
    """A table in Markdown. A cell is a text, or None: empty. rule: the line that aligns the columns; without one
    numbers stand behind a first column of text."""
    def line(cells):
        return "".join(f"| {cell} " if cell is not None else "| " for cell in cells) + "|\n"

    rule = rule or "|---|" + "--:|" * (len(head) - 1)
    return line(head) + f"{rule}\n" + "".join(map(line, rows))


def script():
    """The name of the script that runs."""
    return pathlib.Path(sys.argv[0]).stem


class ProgramError(RuntimeError):
    """The program failed; the message holds what it said."""


def said(program, command, *options, progress=False):
    """What one command prints. program: its path, or None for scripts/headlab. progress: what it says while
    it works is shown as it comes."""
    line = [str(program or ROOT / "scripts/headlab"), command, *map(str, options)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=None if progress else subprocess.PIPE,
                          text=True)
    if done.returncode != 0:
        raise ProgramError(f"{done.stderr or ''}{script()}: `{' '.join(line)}` failed with code {done.returncode}")
    return done.stdout


def headlab(program, command, *options):
    """What one command prints, as JSON."""
    return json.loads(said(program, command, *options, "--json"))


def fresh_run(path):
    """The path, where a run is made anew: an older one goes, and nothing else that lies there does."""
    path = pathlib.Path(path)
    if path.is_symlink() or path.exists() and not (path / "config.yaml").is_file():
        raise ProgramError(f"{script()}: {path}: is there and no run; take it away first, or name another --out")
    if path.exists():
        shutil.rmtree(path)
    return path


def trained(program, configs, seeds, settings, out, jobs=1):
    """Run directories by (config, seed): a sweep over both, which trains what `out` does not hold yet.
    configs: names of files in configs/; jobs: trainings at a time."""
    sweep = {"base": [str(ROOT / f"configs/{config}.yaml") for config in configs],
             "grid": {"seed": list(seeds)}}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "trainings.yaml"
        file.write_text(json.dumps(sweep))  # which is YAML, too
        done = json.loads(said(program, "sweep", file, *settings, "--jobs", jobs, "--out", out,
                               "--json", progress=True))
    return {(point["name"], point["seed"]): point["run"] for point in done["points"]}
