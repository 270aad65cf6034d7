"""What the studies share: their options and their end, results that are kept, provenance, pages, pictures."""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import sys

import yaml

from headlab_log.files import LogError
from headlab_log.output import write_whole
from headlab_program import FIRST_SEED, ROOT, ProgramError, fresh_run, headlab, script, trained

OPTIONS = {  # that several studies have; each study names those that it has, with its defaults
    "seeds": {"type": int, "help": "trainings of each model (default: %(default)s)"},
    "random": {"type": int, "help": "random orders that are measured, too (default: %(default)s)"},
    "jobs": {"type": int, "help": "trainings at a time (default: %(default)s)"},
    "threads": {"type": int, "help": "threads of a training or measurement (default: %(default)s)"},
    "batches": {"type": int, "help": "validation batches of a measurement (default: %(default)s)"},
    "set": {"action": "append", "metavar": "KEY=VALUE", "help": "overrides the configs, e.g. train.epochs=1"},
}


def parser_of(description, out, **defaults):
    """The parser of a study that runs the program. out: its folder of runs; defaults: of the OPTIONS it has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default, **OPTIONS[name])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / out, help=f"folder of the runs (default: {out})")
    parser.add_argument("--program", help="the program (default: scripts/headlab)")
    return parser


def run(main):
    """Runs a study. An error of the program, or of a file, ends it with its message instead of a traceback."""
    try:
        main()
    except (LogError, ProgramError) as error:
        sys.exit(str(error))


def say(text):
    """A line on stderr: what the study does now."""
    print(f"{script()}: {text}\n", end="", file=sys.stderr, flush=True)  # whole, beside what other threads say


class Bench:
    """Runs the program for one study, into the folder OUT."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.out = arguments.out = arguments.out.absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.threads = ["--threads", str(arguments.threads)]
        self.program = self.headlab("version")

    @property
    def measured(self):
        """Options of a measurement."""
        return ["--batches", str(self.arguments.batches), *self.threads]

    @property
    def seeds(self):
        """Of the trainings of each model."""
        return range(FIRST_SEED, FIRST_SEED + self.arguments.seeds)

    def headlab(self, command, *options):
        """What one command prints, as JSON."""
        return headlab(self.arguments.program, command, *options)

    def trained(self, configs, jobs=1):
        """Run directories by (config, seed)."""
        settings = [f"train.threads={self.arguments.threads}", *self.arguments.set]
        return trained(self.arguments.program, configs, self.seeds, settings, self.out, jobs)

    def kept(self, run, command, what, measure):
        """What measure() found in a run: a dict, kept in OUT/measured. It is not measured again while command and
        program are the same. what: said where it is measured."""
        path = self.out / "measured" / f"{run.parent.name}-{run.name}.json"
        found = read(path).get(command)
        if not found or found["program"] != self.program:
            say(what)
            found = {"program": self.program, **measure()}
            path.parent.mkdir(exist_ok=True)
            write_whole(path, json.dumps({**read(path), command: found}, indent=1))
        return found

    def prune(self, run, *options):
        return self.headlab("prune", run, *self.measured, *options)

    def curve(self, run, rounds, what, *options):
        """Loss and accuracy by heads kept, and the order in which heads go, kept in OUT/measured. All of them go,
        or all that `--keep-per-layer 1` lets go."""
        run = pathlib.Path(run)
        amount = ["--fraction", "1", "--rounds", str(rounds)]
        if "--keep-per-layer" in options:
            model = yaml.safe_load((run / "config.yaml").read_text())["model"]
            heads = model["layers"] * model["heads"]
            gone = heads - model["layers"]
            amount = ["--count", str(gone), "--rounds", str(round(rounds * gone / heads))]
        options = [*amount, "--bench-batch", "1", *options]
        label = os.path.relpath(run, self.out)
        found = self.kept(run, " ".join(["prune", label, *self.measured, *options]), f"{label}: {what}",
                          lambda: curve_of(self.prune(run, *options)))
        return {**found, "loss": by_number(found["loss"]), "accuracy": by_number(found["accuracy"])}

    def fresh(self, name):
        return fresh_run(self.out / name)

    def heading(self):
        """When, on what machine and by which version was measured."""
        return f"{datetime.date.today()}, {machine()}; headlab {self.program['headlab']}"


def curve_of(report):
    rounds = report["rounds"]
    return {"loss": {str(r["kept"]): r["loss"] for r in rounds},
            "accuracy": {str(r["kept"]): r["accuracy"] for r in rounds},
            "order": [head for r in rounds for head in r["removed"]]}


def random_orders(count):
    """Options of `prune` by the name of the order: "random 0", ..."""
    return {f"random {n}": ["--by", "random", "--seed", str(n)] for n in range(count)}


def of_order(curves, order):
    """Those of the curves by name that are of one order: one, or of "random" one of each draw."""
    return [curve for name, curve in curves.items()
            if name == order or order == "random" and name.startswith("random ")]


def by_number(values):
    return {int(name): value for name, value in values.items()}


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def in_parallel(jobs, work, asked):
    """work(*one) of each one that is asked for, so many at a time -> by what was asked for."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:  # the work itself is in other processes
        running = {one: pool.submit(work, *one) for one in asked}
        try:
            return {one: future.result() for one, future in running.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def machine():
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def manifest(run):
    return json.loads((pathlib.Path(run) / "manifest.json").read_text())


def origin(run):
    """When, where and by which commit a run was trained that has just ended."""
    return {"commit": manifest(run)["git"]["commit"], "date": str(datetime.date.today()), "machine": machine()}


def provenance(origins):
    """Dates, machines and commits of runs in one line. origins: of each run what origin() found."""
    return "; ".join(", ".join(sorted({origin[key][:digits] for origin in origins}))
                     for key, digits in (("date", None), ("machine", None), ("commit", 8)))


def metrics(run):
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def marked(name):
    """What stands between the markers of a page, <!-- name --> and <!-- end of name -->."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->\n)", re.S)


def lacking(page, names):
    """Says which of the markers a page lacks first; "": none."""
    text = page.read_text(encoding="utf-8")
    return next((f"{page}: has no <!-- {name} --> with <!-- end of {name} -->"
                 for name in names if not marked(name).search(text)), "")


def write_page(page, tables):
    """Writes tables, {name: text}, between the markers of a page. ProgramError: it lacks some."""
    if wrong := lacking(page, tables):
        raise ProgramError(f"{script()}: {wrong}")
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = marked(name).sub(lambda _: table, text)
    write_whole(page, text)


def pyplot():
    """matplotlib.pyplot for pictures that go into files."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot
    return matplotlib.pyplot


def draw_band(axis, at, curves, colour, label):
    """The mean of several curves, and a band from the lowest to the highest of them."""
    values = list(zip(*curves))
    axis.plot(at, list(map(statistics.mean, values)), color=colour, label=label)
    axis.fill_between(at, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15, linewidth=0)
