"""Trains what the papers' claims are tried on and writes the tables of docs/claims.md.

    scripts/studies/claims [NAME ...] [--jobs 2] [--dry-run] [--results docs/claims.json] [--page docs/claims.md]

NAMEs are those of files in configs/compare/claims and configs/sweeps/claims (default: all). Nothing is trained
twice, and what was cut short goes on; what is found is added to --results, whose tables go between the page's
markers. With --tables the page is written anew from the results, without a training.
"""

import json

import numpy as np

import claims_measured
import comparison
import headlab_log as hl
import study
from headlab_log.output import Output, plain_path, write_whole
from headlab_program import ROOT, said, spread

COMPARISONS = {path.stem: path for path in sorted((ROOT / "configs/compare/claims").glob("*.yaml"))}
# Statistics of the kinds that a claim is about: means over heads and seeds at the last logged step.
STATISTICS = {"01_heads": ["js"], "03_mohsa": ["js"], "04_moh": ["load_max", "dead_heads"],
              "05_dcmha": ["composed_cosine", "softmax_cosine"], "06_talking": ["js", "post_off_diagonal"],
              "07_reattention": ["layer_cosine"], "08_entmax": ["alpha", "support_share", "js"],
              "09_gated": ["gate"]}


def statistics_of(runs, names):
    """Means over heads and runs; those that a kind has not are left out."""
    last = [hl.open_run(run).heads().isel(step=-1) for run in runs]
    return {name: float(np.mean([np.nanmean(heads[name]) for heads in last]))
            for name in names if all(name in heads for heads in last)}


def compared(arguments, name):
    report, runs = comparison.compared(arguments, COMPARISONS[name], "train.threads=1")
    for task in report["tasks"]:
        for arm in task["arms"]:
            arm.pop("curve", None)
            found = runs[task["name"], arm["name"]]
            arm["statistics"] = statistics_of(found, STATISTICS.get(name, []))
            arm["measured"] = claims_measured.of_arm(arguments, name, arm["name"], found)
    return report


def measured(arguments, name):
    """What a claim's name stands for, trained and measured."""
    if name in COMPARISONS:
        return compared(arguments, name)
    return claims_measured.SWEEPS[name](arguments)


def figure(found):
    """A mean, or mean and standard deviation of one number a run."""
    return spread(found) if isinstance(found, list) else comparison.number(found, 3)


def beside(arm):
    """What was found of an arm for this claim alone."""
    return {**arm.get("statistics", {}), **arm.get("measured", {})}


def table(report):
    """Arms, differences, what the heads did; beside them what was measured for this claim alone."""
    text = f"{report['trained']}; `scripts/{report['command']}`, {comparison.hours(report):.1f} hours of one thread\n"
    for task in report["tasks"]:
        metrics = comparison.measures(task)[::-1]  # the loss first
        arms = [arm for arm in task["arms"] if arm["state"] != "impossible"]
        names = list(dict.fromkeys(name for arm in arms for name in beside(arm)))
        head, rows = ["arm", "parameters", "rate"], []
        for metric in metrics:
            head += [comparison.titled(metric), f"less {report['baseline']}'s [95 %]", "p, Holm"]
        head += ["effective speedup", *comparison.HEADS, *(name.replace("_", " ") for name in names)]
        for arm in arms:
            cells = [arm["name"], comparison.parameters(arm), comparison.rate(arm)]
            for metric in metrics:
                cells += [comparison.mean(arm, metric), comparison.difference(arm, metric),
                          comparison.p_holm(comparison.difference_of(arm, metric))]
            rows.append([*cells, comparison.speedup(arm), *comparison.heads(arm),
                         *(figure(beside(arm).get(name)) for name in names)])
        text += "\n" + comparison.table(head, rows)
    return text


def told(name, report):
    """What stands on the page between the markers of a claim."""
    return table(report) if name in COMPARISONS else claims_measured.table(name, report)


def show_what_it_takes(arguments, names):
    """A line for each claim: the last one of what the program says its trainings would take."""
    for name in names:
        file = COMPARISONS.get(name) or claims_measured.file_of(name)
        command = "compare" if name in COMPARISONS else "sweep"
        lines = said(arguments.program, command, file, "train.threads=1", "--jobs", arguments.jobs,
                     "--out", arguments.out, "--dry-run").splitlines()
        print(f"{name}: {lines[-1]}", flush=True)


def main():
    there = [*COMPARISONS, *claims_measured.SWEEPS]
    parser = study.parser_of(__doc__, "runs", jobs=2)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(sorted(there))}")
    parser.add_argument("--dry-run", action="store_true", help="what the trainings would take")
    parser.add_argument("--results", type=plain_path, metavar="FILE", default=ROOT / "docs/claims.json")
    parser.add_argument("--page", type=plain_path, metavar="FILE", default=ROOT / "docs/claims.md")
    parser.add_argument("--tables", action="store_true", help="train nothing: write the page alone")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in there]:
        parser.error(f"no claim is called {unknown[0]}; there are {', '.join(sorted(there))}")
    names = sorted(arguments.names or there)
    if arguments.dry_run:
        show_what_it_takes(arguments, names)
        return
    for path in (arguments.results, arguments.page):
        Output(path)  # before the trainings
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    for name in [] if arguments.tables else names:
        results[name] = measured(arguments, name)
        write_whole(arguments.results, json.dumps(dict(sorted(results.items())), ensure_ascii=False, indent=1) + "\n")
    study.write_page(arguments.page, {name: told(name, report) for name, report in results.items()})


if __name__ == "__main__":
    study.run(main)
