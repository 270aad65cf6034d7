"""What `headlab compare` found, kept for pages and pictures without the paths of the machine that trained."""

import collections
import json
import pathlib

from headlab_log.comparison import ORDER_NOT_KNOWN
from headlab_program import ROOT, markdown, said, spread
from study import origin, provenance


def compared(arguments, file, *overrides):
    """Trains what a comparison's file says -> its report, and the runs by (task, arm), a seed each.
    arguments: program, folder `out` of the runs, and jobs."""
    words = [str(file), *overrides]
    report = json.loads(said(arguments.program, "compare", *words, "--jobs", arguments.jobs, "--out",
                             arguments.out, "--json", progress=True))
    runs = collections.defaultdict(list)
    for task in report["tasks"]:
        for arm in task["arms"]:
            for run in (run for one in arm.get("lengths", []) for run in one.get("runs", [])):
                run.pop("run", None)
            for run in arm.get("runs", []):
                runs[task["name"], arm["name"]].append(pathlib.Path(run.pop("run")))
        task["config"] = pathlib.Path(task["config"]).name
        task["choosing_hours"] = choosing_hours(pathlib.Path(report["comparison"]), task["name"])
    file = pathlib.Path(file).resolve()
    words[0] = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name)
    report["comparison"] = pathlib.Path(report["comparison"]).name
    report["command"] = f"headlab compare {' '.join(words)}"
    report["trained"] = provenance([origin(run) for found in runs.values() for run in found])
    return report, runs


def choosing_hours(folder, task):
    """Of the trainings that chose the rates of a task, one after another; 0: there was nothing to choose."""
    summary = folder / "choose/summary.json"
    points = json.loads(summary.read_text(encoding="utf-8"))["points"] if summary.exists() else []
    return sum(point["wall_s"] or 0 for point in points if point["point"].startswith(f"task={task} ")) / 3600


def hours(report):
    """Of the trainings that are compared, one after another."""
    return sum(run["wall_s"] or 0 for task in report["tasks"] for arm in task["arms"]
               for run in arm.get("runs", [])) / 3600


def measures(task):
    """The names of the metrics that a task is measured by, the one that says most first."""
    names = {name for arm in task["arms"] for name in arm.get("metrics", {})}
    return sorted(names, key=lambda name: (name.endswith("/loss"), name))  # the task's own before the loss


def titled(metric):
    """With its unit, if it has one."""
    return f"{metric} [nat]" if metric.endswith("/loss") else metric


def mean(arm, metric):
    """Mean and standard deviation over the seeds, as a cell; a dash where there are none."""
    found = arm.get("metrics", {}).get(metric)
    return f"{found['mean']:.3f} ± {found['std']:.3f}" if found else "-"


def difference_of(arm, metric):
    return arm.get("metrics", {}).get(metric, {}).get("difference")


def p_holm(found):
    """p after Holm's correction of a test or a difference, as a cell."""
    if not found or found["p_holm"] is None:
        return "-"
    return "< .001" if found["p_holm"] < 0.001 else f"{found['p_holm']:.3f}"


def star(found):
    """Marks what is reported."""
    return " *" if found and found["reported"] else ""


def difference(arm, metric):
    """To the baseline: mean [95 % interval], and * where it is reported."""
    found = difference_of(arm, metric)
    if not found:
        return "-"
    low, high = found["interval"]
    return f"{found['mean']:+.3f} [{low:+.3f}, {high:+.3f}]{star(found)}"


def tellable(arm, metric):
    """The smallest difference that the seeds could have told, as a cell."""
    return number((difference_of(arm, metric) or {}).get("tellable"), 3)


def reported_loss(task):
    """The name of the loss that the task reports: val/loss, or test/loss of a test part."""
    return f"{task['measured_on']['split']}/loss"


def losses_by_length(task):
    """{arm: {share of the steps: losses of the seeds}}"""
    loss = reported_loss(task)
    return {arm["name"]: {one["length"]: one[loss] for one in arm.get("lengths", [])} for arm in task["arms"]}


def is_solved_or_not(task):
    """Whether a training solves the task or does not, so that a mean over seeds says nothing."""
    return bool((task.get("statistics") or {}).get("solved"))


def solved(arm):
    """Seeds that solved the task and the updates they took, each with its test, as cells."""
    found = arm.get("solved")
    if not found:
        return ["-"] * 4
    median = found["median"]
    fisher, log_rank = (p_holm(test) + star(test) for test in (found["fisher"], found["log_rank"]))
    return [f"{found['count']} of {found['of']}", fisher,
            f"{median:,.0f}" if median is not None else "not half of them", log_rank]


def rates(task):
    """How the rates of a task were chosen."""
    search = task.get("search")
    if search:
        return f"rates by a search from {search['from']:g} by factors of {search['factor']:g}"
    return f"rates of {', '.join(f'{rate:g}' for rate in task['rates'])}"


def settled(task):
    """Whether the order of the arms has settled, in the sentence of compare.md."""
    return (task.get("settled") or {}).get("text") or ORDER_NOT_KNOWN


def losses_of(values):
    """Mean and standard deviation, as a cell."""
    return spread(values) if values else "-"


def speedup(arm):
    found = arm.get("effective_speedup")
    if not found:
        return "-"
    sign = {"at": "", "above": "> ", "below": "< "}[found["bound"]]
    return f"{sign}{found['factor']:.2f}"


def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def heads(arm):
    """Entropy, largest logit, first-token share, heads that survive pruning, as cells."""
    found = arm.get("heads", {})
    surviving = found.get("surviving")
    return [number(found.get("entropy"), 2), number(found.get("max_logit"), 1), number(found.get("first_token"), 3),
            "-" if surviving is None else f"{surviving:.1f} of {found['built']}"]


TEXT = ("kind", "arm", "what it changes")  # columns that are no numbers
HEADS = ["entropy [nat]", "largest logit", "first-token share", "heads that survive"]


def parameters(arm):
    """With the excess over the baseline's, as a cell."""
    return f"{arm['parameters']:,} ({100 * arm['excess']:+.1f} %)"


def rate(arm):
    chosen = arm.get("rate")
    return f"{chosen['chosen']:g}{' (edge)' if chosen['at_edge'] else ''}" if chosen else "-"


def table(head, rows):
    """In Markdown. Columns are aligned by their names."""
    return markdown(head, rows, f"| {' | '.join('---' if name in TEXT else '--:' for name in head)} |")
