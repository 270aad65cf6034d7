"""Which heads of a translation model can go: BLEU by site and number of heads removed.

    scripts/studies/sites RUN ... [--tune 217] [--out runs/study_sites]

RUN: finished trainings of one config with several seeds. Heads of one site after the other go, those of least
importance first; all sites together; at random; every head of a layer but its best. BLEU is greedy, of
the test split. --tune: updates after which the models with half of a site's heads are measured again
(0: none). In miniature what Voita et al. (2019) and Michel, Levy, Neubig (2019) asked. What OUT holds
already is not measured again while command and program say the same.
"""

import collections
import json
import pathlib
import random

import study
from headlab_program import markdown, spread

ALL = "all three"


class Knife:
    """Cuts one run and measures what is left."""

    def __init__(self, bench, run):
        self.bench, self.run = bench, pathlib.Path(run).absolute()

    def kept(self, what, words, measure):
        return self.bench.kept(self.run, " ".join(map(str, words)), f"{self.run.name}: {what}", measure)

    def importance(self):
        """Head -> importance; all of its site and layer."""
        return self.kept("importance", ["importance"], self.measure_importance)["heads"]

    def measure_importance(self):
        sites = self.bench.headlab("analyze", self.run, "--importance", "--split", "train",
                                   *self.bench.measured)["sites"]
        return {"heads": {f"{site}/{layer}:{head}": value
                          for site, one in sites.items()
                          for layer, values in enumerate(one["statistics"]["importance_paper"])
                          for head, value in enumerate(values) if value is not None}}

    def without(self, what, heads, tune=0):
        """BLEU and loss without these heads. tune: updates behind the cut."""
        return self.kept(what, ["cut", tune, *heads], lambda: self.measure_without(heads, tune))

    def measure_without(self, heads, tune):
        left = self.run
        if heads:
            left = self.bench.fresh("cut")
            more = ["--tune", tune] if tune else []
            self.bench.prune(self.run, "--heads", *heads, "--out", left, "--bench-batch", 1, *more)
        test = self.bench.headlab("eval", left, "--split", "test", "--beam", 1, *self.bench.threads)
        validation = self.bench.headlab("eval", left, *self.bench.threads)
        return {"bleu": test["bleu"], "loss": validation["loss"]}


def site_of(head):
    return head.split("/")[0]


def layer_of(head):
    return head.split(":")[0]


def study_run(bench, run):
    knife = Knife(bench, run)
    values = knife.importance()
    order = sorted(values, key=values.get)
    sites = list(dict.fromkeys(map(site_of, values)))
    whole = knife.without("whole", [])
    parts, tune = bench.arguments.parts, bench.arguments.tune
    cells = collections.defaultdict(dict)  # (row, column) -> measure
    for site in [*sites, ALL]:
        heads = [head for head in order if site in (ALL, site_of(head))]
        for part in range(1, parts + (site != ALL)):  # not all heads of the model
            cells[f"{part}/{parts}"][site] = knife.without(f"{site} {part}/{parts}", heads[:len(heads) * part // parts])
        half = len(heads) // 2
        draws = [random.Random(n).sample(sorted(heads), half) for n in range(bench.arguments.random)]
        cells["half, at random"][site] = [knife.without(f"{site} at random", sorted(gone)) for gone in draws]
        if tune:
            cells["half, then tuned"][site] = knife.without(f"{site} half, tuned", heads[:half], tune)
    layers = {}
    for layer in sorted(set(map(layer_of, order))):
        *gone, best = [head for head in order if layer_of(head) == layer]
        layers[layer] = {"best": best, **knife.without(f"{best} alone", gone)}
    return {"run": str(run), "sites": sites, "whole": whole, "cells": cells, "layers": layers,
            "heads": {site: sum(site in (ALL, site_of(head)) for head in order) for site in [*sites, ALL]}}


def print_sites(studies):
    columns, counts = [*studies[0]["sites"], ALL], studies[0]["heads"]
    for name, what, digits in (("bleu", "BLEU", 1), ("loss", "validation loss [nat]", 3)):
        of_whole = spread([one["whole"][name] for one in studies], digits)
        rows = [["none", *[of_whole] * len(columns)]]
        for row in studies[0]["cells"]:
            cells = []
            for site in columns:
                found = [one["cells"][row].get(site, []) for one in studies]  # a measure, or one of each random draw
                values = [measure[name] for one in found for measure in (one if isinstance(one, list) else [one])]
                cells.append(spread(values, digits) if values else "")
            rows.append([row, *cells])
        print(f"\n{what}:\n")
        print(markdown(["heads removed", *(f"{site}, of {counts[site]}" for site in columns)], rows), end="")


def print_layers(studies):
    sites = studies[0]["sites"]
    rows = []
    for layer in sorted({layer.split("/")[1] for layer in studies[0]["layers"]}, key=int):
        rows.append([layer, *(spread([one["layers"][f"{site}/{layer}"]["bleu"] for one in studies], 1)
                              for site in sites)])
    print("\nBLEU where one layer keeps only its most important head:\n")
    print(markdown(["layer", *sites], rows), end="")


def main():
    parser = study.parser_of(__doc__, "runs/study_sites", random=3, threads=1)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--tune", type=int, default=217, help="updates; 217 are an epoch of Multi30k")
    parser.add_argument("--parts", type=int, default=6, help="in which a site's heads go")
    parser.add_argument("--batches", type=int, default=20,
                        help="training batches that importance is measured on; 0: all of them")
    arguments = parser.parse_args()
    bench = study.Bench(arguments)
    studies = [study_run(bench, run) for run in arguments.runs]
    (arguments.out / "study.json").write_text(json.dumps(studies, indent=1))
    print(f"{bench.heading()}; {len(studies)} trainings")
    print_sites(studies)
    print_layers(studies)


if __name__ == "__main__":
    study.run(main)
