"""What studies of pruning share: the program run with one study's settings, and what it measured."""

import datetime
import json
import os
import pathlib
import platform
import sys

import yaml

from headlab_program import ROOT, fresh_run, headlab, trained


class Bench:
    """Runs the program for one study, into the folder OUT."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.out = arguments.out = arguments.out.absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.name = pathlib.Path(sys.argv[0]).stem
        self.measured = ["--batches", str(arguments.batches), "--threads", str(arguments.threads)]
        self.program = self.headlab("version")

    def headlab(self, command, *options):
        return headlab(self.arguments.program, command, *options)

    def say(self, text):
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def trained(self, configs, seeds, jobs=1):
        """Run directories by (config, seed)."""
        settings = [f"train.threads={self.arguments.threads}", *self.arguments.set]
        return trained(self.arguments.program, configs, seeds, settings, self.out, jobs)

    def prune(self, run, *options):
        return self.headlab("prune", run, *self.measured, *options)

    def curve(self, run, rounds, what, *options):
        """Loss and accuracy by heads kept while all go, or all that `--keep-per-layer 1` lets go.
        Kept in OUT/measured: not measured again while command and program say the same."""
        name = os.path.relpath(run, self.out)
        amount = ["--fraction", "1", "--rounds", str(rounds)]
        if "--keep-per-layer" in options:
            model = yaml.safe_load((pathlib.Path(run) / "config.yaml").read_text())["model"]
            left, heads = model["layers"], model["layers"] * model["heads"]
            amount = ["--count", str(heads - left),
                      "--rounds", str(round(rounds * (heads - left) / heads))]
        options = [*amount, "--bench-batch", "1", *options]
        path = self.out / "measured" / f"{name.replace('/', '-')}.json"
        command = " ".join(["prune", name, *self.measured, *options])
        kept = read(path).get(command)
        if not kept or kept["program"] != self.program:
            self.say(f"{name}: {what}")
            kept = {"program": self.program, **curve_of(self.prune(run, *options))}
            write(path, {**read(path), command: kept})
        return {**kept, "loss": by_number(kept["loss"]), "accuracy": by_number(kept["accuracy"])}

    def fresh(self, name):
        return fresh_run(self.out / name)

    def when(self):
        return f"{datetime.date.today()}, {machine()}; headlab {self.program['headlab']}"

    def heading(self):
        """When, on what and of what was measured."""
        return f"{self.when()}; first {self.arguments.batches} validation batches"


def curve_of(report):
    rounds = report["rounds"]
    return {
        "loss": {str(r["kept"]): r["loss"] for r in rounds},
        "accuracy": {str(r["kept"]): r["accuracy"] for r in rounds},
        "order": [head for r in rounds for head in r["removed"]],
    }


def by_number(values):
    return {int(name): value for name, value in values.items()}


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def write(path, values):
    """All or nothing, should the study be stopped in it."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(values, indent=1))
    new.replace(path)


def machine():
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def add_options(parser):
    """Options that every study has."""
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each model")
    parser.add_argument("--random", type=int, default=3, help="random orders of each model")
    parser.add_argument("--threads", type=int, default=1, help="of a training or measurement")
    parser.add_argument("--batches", type=int, default=8, help="validation batches of a measurement")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="an override of the configs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/study_pruning")
    parser.add_argument("--program", help="the program (default: scripts/headlab)")
