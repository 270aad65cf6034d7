"""Trains every kind of heads on the same text with several seeds and prints one table (Markdown).

    scripts/studies/compare_heads [--kinds mha,moh] [--seeds 3] [--jobs 2] [--set train.steps=100] ...

Kinds are those with configs/char_<kind>.yaml. With an induction_<kind>.yaml beside it, that is
trained too, for the column `induction`. Seeds are 1337, 1338, ... Runs that --out already holds
are not repeated, and an interrupted one goes on; with --kept what a training ended with goes to a file,
too, and a training that the file holds is not repeated while its settings, its data and the source of its
kind are the same. Speed is measured apart: short trainings without statistics, in which the kinds take
turns, and of each the fastest. --picture draws loss against FLOPs. This made docs/kinds.md:

    scripts/studies/compare_heads --kept docs/comparisons.json --picture docs/kinds.png --page docs/kinds.md
"""

import argparse
import functools
import json
import pathlib
import re
import shutil
import statistics
import sys
import tempfile

import numpy as np

import headlab_log as hl
from headlab_program import FIRST_SEED, ROOT, ProgramError, headlab, spread
from kept import Kept, metrics, provenance

CONFIGS = ROOT / "configs"
# What a kind changes of multi-head attention.
GROUPS = {
    "plain": ["mha"],
    "shares projections": ["collaborative", "mohsa", "mla"],
    "other weights": ["entmax", "sigmoid", "sink", "softpick", "forgetting"],
    "mixes maps": ["talking", "reattention", "dcmha", "differential", "mta"],
    "routes or gates": ["moh", "switchhead", "gated"],
    "sees less": ["bigbird"],
}


def group_of(kind):
    return next((group for group, kinds in GROUPS.items() if kind in kinds), "of your own")


def end_of(run):
    """What a training ended with: its loss over the whole split, and its heads at the last logged step."""
    heads = hl.open_run(run).heads().isel(step=-1)  # NaN where there is no such head
    end = {"loss": [row["val/loss"] for row in metrics(run) if "val/loss" in row][-1],
           "entropy": float(np.nanmean(heads.entropy))}
    if "induction" in heads:
        end["induction"] = float(np.nanmax(heads.induction))
    return end


def train(arguments, kept, config, seed):
    overrides = ["train.threads=1", "log.stats=all", *arguments.set]
    return kept.trained(arguments, config, seed, overrides, end_of)


def steps_per_second(arguments, kinds):
    """Of each kind the fastest stretch of ten steps, in short trainings that take turns."""
    fastest = dict.fromkeys(kinds, 0.0)
    with tempfile.TemporaryDirectory() as out:
        for _ in range(arguments.speed_rounds):
            for kind in kinds:
                print(f"compare_heads: speed of {kind}", file=sys.stderr)
                settings = [f"seed={FIRST_SEED}", f"train.threads={arguments.threads}",
                            *arguments.set, "train.steps=60", "log.every=10", "log.stats_every=0",
                            "log.attention.every=0"]
                run = pathlib.Path(headlab(arguments.program, "run", CONFIGS / f"char_{kind}.yaml",
                                           *settings, "--out", out)["run"])
                speeds = [row["tokens_per_s"] * row["step"] / row["tokens"]
                          for row in metrics(run) if "tokens_per_s" in row]
                fastest[kind] = max(fastest[kind], *speeds)
                shutil.rmtree(run)
    return fastest


def compare(arguments, kinds):
    """The rows of the table, one a kind, and when and where they were trained."""
    kept = Kept(arguments.kept)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    tasks = {kind: [f"{task}_{kind}" for task in ("char", "induction")
                    if (CONFIGS / f"{task}_{kind}.yaml").exists()
                    and not (task == "induction" and arguments.no_induction)] for kind in kinds}
    asked = [(config, seed) for kind in kinds for config in tasks[kind] for seed in seeds]
    results = kept.all_trained(arguments.jobs, functools.partial(train, arguments, kept), asked)
    speeds = steps_per_second(arguments, kinds) if arguments.speed_rounds else {}
    rows = []
    for kind in kinds:
        costs = headlab(arguments.program, "validate", CONFIGS / f"char_{kind}.yaml", *arguments.set)
        of_text = [results[f"char_{kind}", seed]["end"] for seed in seeds]
        losses = [end["loss"] for end in of_text]
        row = {"kind": kind, "group": group_of(kind), "parameters": costs["parameters"],
               "flops_per_token": costs["flops_per_token"],
               "cache_bytes_per_token": costs.get("cache_bytes_per_token"),
               "steps_per_s": speeds.get(kind),
               "val_loss": statistics.fmean(losses), "losses": losses,
               "val_loss_std": statistics.stdev(losses) if len(losses) > 1 else None,
               "entropy": statistics.fmean(end["entropy"] for end in of_text)}
        if f"induction_{kind}" in tasks[kind]:
            row["induction_scores"] = [results[f"induction_{kind}", seed]["end"]["induction"]
                                       for seed in seeds]
            row["induction"] = statistics.fmean(row["induction_scores"])
        rows.append(row)
    return rows, provenance(results.values())


def table(rows):
    """Markdown, by groups. Speed is beside mha's where that is one of the kinds."""
    plain = next((row["steps_per_s"] for row in rows if row["kind"] == "mha"), None)
    lines = ["| kind | what it changes | parameters | FLOPs a token | cache a token [bytes] | "
             "speed against mha | validation loss [nat] | induction | entropy [nat] |",
             "|---|---|" + "--:|" * 7]
    for row in rows:
        speed = f"{row['steps_per_s'] / plain:.2f}" if plain else ""
        cache = f"{row['cache_bytes_per_token']:,.0f}" if row["cache_bytes_per_token"] else ""
        induction = spread(row["induction_scores"], 2) if "induction" in row else ""
        lines.append(f"| `{row['kind']}` | {row['group']} | {row['parameters']:,} | "
                     f"{row['flops_per_token'] / 1e6:.2f} M | {cache} | {speed} | "
                     f"{spread(row['losses'])} | {induction} | {row['entropy']:.2f} |")
    return "\n".join(lines)


def draw(rows, path):
    """Mean loss and its standard deviation over the seeds against FLOPs, one mark a kind."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from headlab_log import plots

    plt.rcParams.update(plots.STYLE)
    figure, axis = plt.subplots(figsize=(9, 5.5), layout="constrained")
    colours = dict(zip([*GROUPS, "of your own"], plt.get_cmap("tab10").colors))
    for row in rows:
        axis.errorbar(row["flops_per_token"] / 1e6, row["val_loss"], yerr=row["val_loss_std"], fmt="o",
                      capsize=3, color=colours[row["group"]], label=row["group"])
    # Names stand to the right; where several kinds are, by turns left and right, none on the one below.
    free = {"left": -np.inf, "right": -np.inf}
    near = np.ptp([row["flops_per_token"] for row in rows]) / 30
    for n, row in enumerate(sorted(rows, key=lambda row: row["val_loss"])):
        crowd = sum(abs(row["flops_per_token"] - other["flops_per_token"]) <= near for other in rows)
        side = "left" if crowd > 3 and n % 2 else "right"
        at = row["flops_per_token"] / 1e6, row["val_loss"]
        height = max(at[1], free[side])
        free[side] = height + np.ptp([row["val_loss"] for row in rows]) / 35
        axis.annotate(row["kind"], at, xytext=(-14 if side == "left" else 14, height), fontsize=8,
                      textcoords=("offset points", "data"), va="center",
                      ha="right" if side == "left" else "left",
                      arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "grey"})
    axis.margins(x=0.1)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(*zip(*dict(zip(labels, zip(handles, labels))).values()), fontsize=8)
    seeds = len(rows[0]["losses"])
    axis.set_xlabel("forward FLOPs a token [million]")
    axis.set_ylabel(f"validation loss [nat], mean and standard deviation of {seeds} seeds")
    figure.savefig(path, dpi=120)


MARKED = re.compile(r"(?<=<!-- side by side -->\n).*?(?=<!-- end of side by side -->\n)", re.S)


def write_into(page, text):
    """Puts the table between the markers of a page."""
    old = page.read_text(encoding="utf-8")
    page.write_text(MARKED.sub(lambda _: f"{text}\n", old), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", help="some of them, with commas between (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--jobs", type=int, default=2,
                        help="trainings at a time, of one thread each (default: 2)")
    parser.add_argument("--threads", type=int, default=2,
                        help="where speed is measured (default: 2)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="overrides the configs, e.g. train.steps=100")
    parser.add_argument("--speed-rounds", type=int, default=3,
                        help="short trainings of each kind that measure its speed; 0: leave the "
                             "column empty (default: 3)")
    parser.add_argument("--no-induction", action="store_true", help="leave that column out")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/compare",
                        help="folder of the runs (default: runs/compare)")
    parser.add_argument("--kept", type=pathlib.Path, metavar="FILE",
                        help="JSON of what trainings ended with: read, and added to")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE",
                        help="draw loss against FLOPs")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE",
                        help="write the table between the markers of this page, too")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    parser.add_argument("--program", help=argparse.SUPPRESS)  # a built headlab, for the tests
    arguments = parser.parse_args()
    there = sorted(path.stem.removeprefix("char_") for path in CONFIGS.glob("char_*.yaml"))
    kinds = arguments.kinds.split(",") if arguments.kinds else there
    if wrong := [kind for kind in kinds if kind not in there]:
        parser.error(f"no configs/char_{wrong[0]}.yaml; kinds are {', '.join(there)}")
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if arguments.speed_rounds < 0:
        parser.error("--speed-rounds must be at least 0")
    if arguments.page and not MARKED.search(arguments.page.read_text(encoding="utf-8")):
        parser.error(f"{arguments.page}: has no <!-- side by side --> with <!-- end of side by side -->")
    order = [*GROUPS, group_of("")]
    kinds.sort(key=lambda kind: (order.index(group_of(kind)), kind))
    rows, trained = compare(arguments, kinds)
    if arguments.picture:
        draw(rows, arguments.picture)
    text = f"{trained}\n\n{table(rows)}"
    if arguments.page:
        write_into(arguments.page, text)
    print(json.dumps(rows) if arguments.json else text)


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(str(error))
