"""Trains every kind of heads by one protocol (docs/compare.md) and prints its tables (Markdown).

    scripts/studies/compare_heads [COMPARE.yaml] [a.b=v ...] [--jobs 2] [--results FILE] ...
    scripts/studies/compare_heads RESULTS.json [--page FILE] [--picture FILE]

The first runs `headlab compare` (default: configs/compare/kinds.yaml), which trains nothing twice and goes on
where it stopped, and measures speeds: short trainings without statistics, in which the arms take turns, and
of each the fastest. --results keeps all of it in a file; with --task one task is compared alone, and what
the file has of the others stays. The second writes tables and picture of such a file anew. This made
docs/kinds.md:

    scripts/studies/compare_heads --task char --results docs/kinds.json
    scripts/studies/compare_heads --task mqar --speed-rounds 0 --results docs/kinds.json
    scripts/studies/compare_heads docs/kinds.json --page docs/kinds.md --picture docs/kinds.png
"""

import itertools
import json
import pathlib
import shutil
import tempfile

import matplotlib.ticker

import comparison
import study
from headlab_log import plots
from headlab_log.measures import LOSS
from headlab_log.output import Output, plain_path, write_whole
from headlab_program import FIRST_SEED, ROOT, ProgramError, headlab

# What a kind changes of multi-head attention.
GROUPS = {
    "plain": ["mha"],
    "shares projections": ["collaborative", "mohsa", "mla"],
    "other weights": ["entmax", "sigmoid", "sink", "softpick", "forgetting"],
    "mixes maps": ["talking", "reattention", "dcmha", "differential", "mta"],
    "routes or gates": ["moh", "switchhead", "gated"],
    "sees less": ["bigbird", "linformer"],
}


def group_of(arm):
    """Of an arm, which begins with the name of its kind: "dcmha", "dcmha paper"."""
    kind = arm.split(" ")[0]
    return next((group for group, kinds in GROUPS.items() if kind in kinds), "of your own")


def by_group(arms):
    order = [*GROUPS, group_of("")]
    return sorted(arms, key=lambda arm: (order.index(group_of(arm["name"])), arm["name"]))


def fastest_steps(arguments, runs):
    """Updates a second of each run's config: the fastest ten updates of short trainings that take turns."""
    fastest = dict.fromkeys(runs, 0.0)
    settings = [f"seed={FIRST_SEED}", f"train.threads={arguments.threads}", "train.steps=60", "log.every=10",
                "log.stats_every=0", "log.attention.every=0"]
    with tempfile.TemporaryDirectory() as out:
        for _, (arm, run) in itertools.product(range(arguments.speed_rounds), runs.items()):
            study.say(f"speed of {arm}")
            short = headlab(arguments.program, "run", run / "config.yaml", *settings, "--out", out)["run"]
            speeds = [row["tokens_per_s"] * row["step"] / row["tokens"]
                      for row in study.metrics(pathlib.Path(short)) if "tokens_per_s" in row]
            fastest[arm] = max(fastest[arm], *speeds)
            shutil.rmtree(short)
    return fastest


def results_of(arguments):
    """The comparison's report, with `cache_bytes_per_token` and `steps_per_s` of the first task's arms, and
    what every task was trained by."""
    only = ["--task", arguments.task] if arguments.task else []
    report, runs = comparison.compared(arguments, arguments.file, *arguments.overrides, *only)
    trained, command = report.pop("trained"), report.pop("command")
    for task in report["tasks"]:
        task |= {"trained": trained, "command": command}
    task = report["tasks"][0]
    runs = {arm: found[0] for (name, arm), found in runs.items() if name == task["name"]}
    speeds = fastest_steps(arguments, runs) if arguments.speed_rounds else {}
    for arm in task["arms"]:
        if run := runs.get(arm["name"]):
            costs = headlab(arguments.program, "validate", run / "config.yaml")
            arm["cache_bytes_per_token"] = costs.get("cache_bytes_per_token")
            arm["steps_per_s"] = speeds.get(arm["name"])
    return report


def with_others(report, path):
    """The report with the tasks that the file has beside its own, in their places there."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    for key in ("baseline", "seeds", "choose_seeds"):
        if kept[key] != report[key]:
            raise ProgramError(f"{path}: has other {key}, {kept[key]} instead of {report[key]}, so that its tables "
                               "cannot stand beside these; name another file")
    new = {task["name"]: task for task in report["tasks"]}
    tasks = [new.pop(task["name"], task) for task in kept["tasks"]]
    return {**report, "tasks": [*tasks, *new.values()]}


def costs_table(report):
    """What the arms take. Speed is beside the baseline's."""
    task = report["tasks"][0]
    plain = next(arm.get("steps_per_s") for arm in task["arms"] if arm["name"] == report["baseline"])
    rows = []
    for arm in by_group(task["arms"]):
        cells = [f"`{arm['name']}`", group_of(arm["name"])]
        if arm["state"] == "impossible":
            rows.append([*cells, *["-"] * 5])
            continue
        cache, speed = arm.get("cache_bytes_per_token"), arm.get("steps_per_s")
        flops = arm["flops_per_token"]  # None: the kind does not say
        rows.append([*cells, comparison.parameters(arm), arm["d_ff"], f"{flops / 1e6:.2f} M" if flops else "-",
                     f"{cache:,.0f}" if cache else "-", f"{speed / plain:.2f}" if speed and plain else "-"])
    return comparison.table(["kind", "what it changes", "parameters", "d_ff", "FLOPs a token",
                             "cache a token [bytes]", f"speed against {report['baseline']}"], rows)


def task_table(report, task):
    """By the difference of the task's metric; a task that is solved or not by the seeds that solved it."""
    metric = comparison.measures(task)[0]
    if comparison.is_solved_or_not(task):
        own = ["seeds that solved it", "p, Fisher and Holm", "updates until then, median", "p, log-rank and Holm"]
        cells = comparison.solved
    else:
        own = [f"less {report['baseline']}'s [95 %]", "could be told", "effective speedup"]

        def cells(arm):
            return [comparison.difference(arm, metric), comparison.tellable(arm, metric), comparison.speedup(arm)]
    return comparison.table(["kind", "rate", comparison.titled(metric), *own, *comparison.HEADS], [
        [f"`{arm['name']}`", comparison.rate(arm), comparison.mean(arm, metric), *cells(arm), *comparison.heads(arm)]
        for arm in by_group(task["arms"])])


def lengths_table(task):
    """The losses after shares of the steps; "": of the whole alone."""
    losses = comparison.losses_by_length(task)
    lengths = sorted({length for of_arm in losses.values() for length in of_arm})
    if len(lengths) < 2:
        return ""
    rows = [[f"`{arm['name']}`", *(comparison.losses_of(losses[arm["name"]].get(length)) for length in lengths)]
            for arm in by_group(task["arms"])]
    head = ["kind", *(f"{comparison.reported_loss(task)} [nat] after {length:g} of the steps" for length in lengths)]
    return f"\nEach length is a training of its own, whose schedule ends there.\n\n{comparison.table(head, rows)}"


def told(report):
    """The tables and what they were measured on."""
    seeds = ", ".join(map(str, report["seeds"]))
    text = costs_table(report)
    for task in report["tasks"]:
        on = task["measured_on"]
        text += (f"\n{comparison.settled(task)}\n\n{task['trained']}; `scripts/{task['command']}`, "
                 f"{comparison.hours({'tasks': [task]}):.1f} hours of one thread, and {task['choosing_hours']:.1f} to "
                 f"choose rates\n\n{task['name']}: {on['split']} split, {on['examples']:,.0f} examples, "
                 f"{on['tokens']:,.0f} scored targets; seeds {seeds}, mean ± standard deviation; "
                 f"{comparison.rates(task)}; *: below .05 after Holm's correction.\n\n{task_table(report, task)}")
        notes = [*task["notices"], *(f"{arm['name']}: {arm['reason']}" for arm in task["arms"] if arm.get("reason"))]
        text += "".join(f"\n- {note}" for note in notes) + ("\n" if notes else "") + lengths_table(task)
    return text


def drawn(report, task, group):
    """The arms of a group with a curve, and the baseline, which every column shows."""
    return [arm for arm in task["arms"]
            if arm.get("curve") and (arm["name"] == report["baseline"] or group_of(arm["name"]) == group)]


def draw_arms(axis, report, arms):
    colours = itertools.cycle(plots.COLOURS)
    for arm in arms:
        points = [point for point in arm["curve"] if point["flops"]]
        if not points:  # the kind does not say its FLOPs
            continue
        colour = "grey" if arm["name"] == report["baseline"] else next(colours)
        flops = [point["flops"] for point in points]
        axis.plot(flops, [point[LOSS] for point in points], lw=1, color=colour, label=arm["name"],
                  ls="--" if arm["name"].endswith(" paper") else "-")
        bands = [point["interval"] or (point[LOSS],) * 2 for point in points]
        axis.fill_between(flops, *zip(*bands), color=colour, alpha=0.2, lw=0)
    if axis.lines:
        axis.legend(fontsize=7)
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def draw(report, path):
    """Mean loss against FLOPs of training with its 95 % interval: a row a task, a column a group of kinds,
    the baseline in grey in all of them."""
    plt = study.pyplot()
    plt.rcParams.update(plots.STYLE)
    tasks = report["tasks"]
    groups = [group for group in [*GROUPS, group_of("")]
              if any(arm["name"] != report["baseline"] for task in tasks for arm in drawn(report, task, group))]
    figure, axes = plt.subplots(len(tasks), len(groups), sharey="row", squeeze=False,
                                figsize=(2.6 * len(groups), 2.9 * len(tasks)), layout="constrained")
    for row, task in zip(axes, tasks):
        for axis, group in zip(row, groups):
            draw_arms(axis, report, drawn(report, task, group))
            axis.set_title(f"{task['name']}: {group}")
        row[0].set_ylabel(f"validation loss [nat], mean and 95 % of {len(report['seeds'])} seeds")
    for axis in axes[-1]:
        axis.set_xlabel("FLOPs of training")
    Output(path).write(lambda file: figure.savefig(file, dpi=110))
    plt.close(figure)


def main():
    parser = study.parser_of(__doc__, "runs", jobs=2)
    parser.add_argument("file", nargs="?", type=pathlib.Path, metavar="COMPARE.yaml|RESULTS.json",
                        default=ROOT / "configs/compare/kinds.yaml")
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help="of every task")
    parser.add_argument("--task", help="the only one of the file's tasks that is meant")
    parser.add_argument("--threads", type=int, default=2, help="where speed is measured (default: 2)")
    parser.add_argument("--speed-rounds", type=int, default=3,
                        help="short trainings of each arm that measure its speed; 0: leave the column "
                             "empty (default: 3)")
    parser.add_argument("--results", type=plain_path, metavar="FILE",
                        help="write everything to this JSON file; with --task the other tasks in it stay")
    parser.add_argument("--picture", type=plain_path, metavar="FILE", help="draw loss against FLOPs")
    parser.add_argument("--page", type=plain_path, metavar="FILE",
                        help="write the tables between the markers of this page, too")
    arguments = parser.parse_args()
    if arguments.jobs < 1 or arguments.speed_rounds < 0:
        parser.error("--jobs must be at least 1, --speed-rounds at least 0")
    if arguments.page and (wrong := study.lacking(arguments.page, ["side by side"])):
        parser.error(wrong)
    for path in filter(None, (arguments.results, arguments.picture, arguments.page)):
        Output(path)  # before the trainings
    if arguments.file.suffix == ".json":
        report = json.loads(arguments.file.read_text(encoding="utf-8"))
    else:
        report = results_of(arguments)
    if arguments.results:
        if arguments.task and arguments.results.exists():
            report = with_others(report, arguments.results)
        write_whole(arguments.results, json.dumps(report, ensure_ascii=False) + "\n")
    text = told(report)
    if arguments.picture:
        draw(report, arguments.picture)
    if arguments.page:
        study.write_page(arguments.page, {"side by side": f"{text}\n"})
    print(text)


if __name__ == "__main__":
    study.run(main)
