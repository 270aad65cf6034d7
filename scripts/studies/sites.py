"""Which heads of a translation model can go: BLEU by site and number of heads removed.

    scripts/studies/sites RUN ... [--tune 217] [--out runs/study_sites]

RUN: finished trainings of one config with several seeds. Heads of one site after the other go, those of least
importance first; all sites together; at random; every head of a layer but its best. BLEU is greedy, of
the test split. --tune: updates after which the models with half of a site's heads are measured again
(0: none). In miniature what Voita et al. (2019) and Michel, Levy, Neubig (2019) asked. What OUT holds
already is not measured again while command and program say the same.
"""

import argparse
import collections
import json
import pathlib
import random
import sys

from headlab_program import ROOT, ProgramError, spread
from study import Bench, read, write

ALL = "all three"


class Knife:
    """Cuts one run and measures what is left."""

    def __init__(self, bench, run):
        self.bench, self.run = bench, pathlib.Path(run).absolute()
        self.kept = bench.out / "measured" / f"{self.run.parent.name}-{self.run.name}.json"

    def measured(self, what, command, *options):
        """What one command says of the run, kept."""
        key = " ".join([command, *map(str, options)])
        found = read(self.kept).get(key)
        if not found or found["program"] != self.bench.program:
            self.bench.say(f"{self.run.name}: {what}")
            found = {"program": self.bench.program, **getattr(self, command)(*options)}
            write(self.kept, {**read(self.kept), key: found})
        return found

    def importance(self):
        """Head -> importance; all of its site and layer."""
        sites = self.bench.headlab("analyze", self.run, "--importance", "--split", "train",
                                   *self.bench.measured)["sites"]
        return {"heads": {f"{site}/{layer}:{head}": value
                          for site, one in sites.items()
                          for layer, values in enumerate(one["statistics"]["importance_paper"])
                          for head, value in enumerate(values) if value is not None}}

    def cut(self, tune, *heads):
        """BLEU and loss without these heads."""
        left = self.run
        if heads:
            left = self.bench.fresh("cut")
            more = ["--tune", tune] if tune else []
            self.bench.headlab("prune", self.run, "--heads", *heads, "--out", left, "--bench-batch",
                               1, *more, *self.bench.measured)
        threads = ["--threads", self.bench.arguments.threads]
        test = self.bench.headlab("eval", left, "--split", "test", "--beam", 1, *threads)
        validation = self.bench.headlab("eval", left, *threads)
        return {"bleu": test["bleu"], "loss": validation["loss"]}


def site_of(head):
    return head.split("/")[0]


def layer_of(head):
    return head.split(":")[0]


def study_run(bench, run):
    knife = Knife(bench, run)
    values = knife.measured("importance", "importance")["heads"]
    order = sorted(values, key=values.get)
    sites = list(dict.fromkeys(map(site_of, values)))
    whole = knife.measured("whole", "cut", 0)
    cells = collections.defaultdict(dict)  # (row, column) -> measure
    for site in [*sites, ALL]:
        heads = [head for head in order if site in (ALL, site_of(head))]
        parts = bench.arguments.parts
        for part in range(1, parts + (site != ALL)):  # not all heads of the model
            gone = heads[:len(heads) * part // parts]
            cells[f"{part}/{parts}"][site] = knife.measured(f"{site} {part}/{parts}", "cut", 0, *gone)
        half = len(heads) // 2
        draws = [random.Random(n).sample(sorted(heads), half) for n in range(bench.arguments.random)]
        cells["half, at random"][site] = [knife.measured(f"{site} at random", "cut", 0, *sorted(gone))
                                          for gone in draws]
        if bench.arguments.tune:
            cells["half, then tuned"][site] = knife.measured(
                f"{site} half, tuned", "cut", bench.arguments.tune, *heads[:half])
    layers = {}
    for layer in sorted(set(map(layer_of, order))):
        *gone, best = [head for head in order if layer_of(head) == layer]
        layers[layer] = {"best": best, **knife.measured(f"{best} alone", "cut", 0, *gone)}
    return {"run": str(run), "sites": sites, "whole": whole, "cells": cells, "layers": layers,
            "heads": {site: sum(site in (ALL, site_of(head)) for head in order)
                      for site in [*sites, ALL]}}


def as_list(measures):
    return measures if isinstance(measures, list) else [measures]


def print_sites(studies):
    columns = [*studies[0]["sites"], ALL]
    for name, what, digits in (("bleu", "BLEU", 1), ("loss", "validation loss [nat]", 3)):
        counts = studies[0]["heads"]
        print(f"\n{what}:\n")
        print("| heads removed | " + " | ".join(f"{site}, of {counts[site]}" for site in columns) + " |")
        print("|---|" + "--:|" * len(columns))
        of_whole = spread([study["whole"][name] for study in studies], digits)
        print(f"| none | {' | '.join([of_whole] * len(columns))} |")
        for row in studies[0]["cells"]:
            cells = []
            for site in columns:
                found = [measure[name] for study in studies if site in study["cells"][row]
                         for measure in as_list(study["cells"][row][site])]
                cells.append(spread(found, digits) if found else "")
            print(f"| {row} | {' | '.join(cells)} |")


def print_layers(studies):
    print("\nBLEU where one layer keeps only its most important head:\n")
    sites = studies[0]["sites"]
    print("| layer | " + " | ".join(sites) + " |\n|---|" + "--:|" * len(sites))
    for layer in sorted({layer.split("/")[1] for layer in studies[0]["layers"]}, key=int):
        cells = [spread([study["layers"][f"{site}/{layer}"]["bleu"] for study in studies], 1)
                 for site in sites]
        print(f"| {layer} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--tune", type=int, default=217, help="updates; 217 are an epoch of Multi30k")
    parser.add_argument("--parts", type=int, default=6, help="in which a site's heads go")
    parser.add_argument("--random", type=int, default=3, help="random orders of each site")
    parser.add_argument("--threads", type=int, default=1, help="of a measurement")
    parser.add_argument("--batches", type=int, default=20,
                        help="training batches that importance is measured on; 0: all of them")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/study_sites")
    parser.add_argument("--program", help=argparse.SUPPRESS)  # a built headlab, for the tests
    arguments = parser.parse_args()
    bench = Bench(arguments)
    studies = [study_run(bench, run) for run in arguments.runs]
    (arguments.out / "study.json").write_text(json.dumps(studies, indent=1))
    print(f"{bench.when()}; {len(studies)} trainings")
    print_sites(studies)
    print_layers(studies)


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(str(error))
