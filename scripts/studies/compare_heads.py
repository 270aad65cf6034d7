"""Trains every kind of heads on the same text with several seeds and prints one table (Markdown).

    scripts/studies/compare_heads [--kinds mha,moh] [--seeds 3] [--threads 2] [--set train.steps=100] ...

Kinds are those with configs/char_<kind>.yaml. With an induction_<kind>.yaml beside it, that is
trained too, for the column `induction`. Seeds are 1337, 1338, ... Runs that --out already holds
are not repeated, and an interrupted one goes on. Speed is measured apart: short trainings without
statistics, in which the kinds take turns, and of each the fastest.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

import numpy as np

import headlab_log as hl
from headlab_program import FIRST_SEED, ROOT, ProgramError, headlab, spread

CONFIGS = ROOT / "configs"


def train(arguments, task, kind, seed, out, *overrides):
    """Trains one config with one seed and returns its run directory."""
    config = CONFIGS / f"{task}_{kind}.yaml"
    settings = {"train.threads": arguments.threads, "seed": seed}
    for setting in (*arguments.set, *overrides):  # of two that name one key the latter counts
        key, value = setting.split("=", 1)
        settings[key] = value
    options = [f"{key}={value}" for key, value in settings.items()]
    return pathlib.Path(headlab(arguments.program, "run", config, *options, "--out", out)["run"])


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def train_and_keep(arguments, task, kind, seed):
    print(f"compare_heads: {task}_{kind} seed {seed}", file=sys.stderr)
    return train(arguments, task, kind, seed, arguments.out, "log.stats=all")


def last_heads(run):
    """Statistics of all heads at the last logged step, NaN where there is no such head."""
    return hl.open_run(run).heads().isel(step=-1)


def facts_of_run(run):
    """What the table says of one training."""
    losses = [row["val/loss"] for row in metrics(run) if "val/loss" in row]
    return {"loss": losses[-1], "entropy": float(np.nanmean(last_heads(run).entropy))}


def steps_per_second(arguments, kinds):
    """Of each kind the fastest stretch of ten steps, in short trainings that take turns."""
    fastest = dict.fromkeys(kinds, 0.0)
    with tempfile.TemporaryDirectory() as out:
        for _ in range(arguments.speed_rounds):
            for kind in kinds:
                print(f"compare_heads: speed of {kind}", file=sys.stderr)
                run = train(arguments, "char", kind, FIRST_SEED, out, "train.steps=60", "log.every=10",
                            "log.stats_every=0", "log.attention.every=0")
                speeds = [row["tokens_per_s"] * row["step"] / row["tokens"]
                          for row in metrics(run) if "tokens_per_s" in row]
                fastest[kind] = max(fastest[kind], *speeds)
                shutil.rmtree(run)
    return fastest


def induction_score(run):
    """Of the best head: the weight on the token after an earlier copy of this one."""
    return float(np.nanmax(last_heads(run).induction))


def compare(arguments, kinds):
    """The rows of the table, one a kind."""
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    runs = {(kind, seed): facts_of_run(train_and_keep(arguments, "char", kind, seed))
            for seed in seeds for kind in kinds}
    speeds = steps_per_second(arguments, kinds)
    rows = []
    for kind in kinds:
        config = CONFIGS / f"char_{kind}.yaml"
        costs = headlab(arguments.program, "validate", config, *arguments.set)
        facts = [runs[kind, seed] for seed in seeds]
        losses = [fact["loss"] for fact in facts]
        row = {"kind": kind, "parameters": costs["parameters"],
               "flops_per_token": costs["flops_per_token"],
               "steps_per_s": speeds[kind],
               "val_loss": statistics.fmean(losses), "losses": losses,
               "val_loss_std": statistics.stdev(losses) if len(losses) > 1 else None,
               "entropy": statistics.fmean(fact["entropy"] for fact in facts)}
        if (CONFIGS / f"induction_{kind}.yaml").exists() and not arguments.no_induction:
            row["induction"] = statistics.fmean(
                induction_score(train_and_keep(arguments, "induction", kind, seed))
                for seed in seeds)
        rows.append(row)
    return rows


def table(rows):
    """Markdown. Speed is beside mha's where that is one of the kinds."""
    plain = next((row["steps_per_s"] for row in rows if row["kind"] == "mha"), None)
    lines = ["| kind | parameters | FLOPs a token | steps/s | speed against mha | validation loss "
             "[nat] | induction | entropy [nat] |", "|---|" + "--:|" * 7]
    for row in rows:
        speed = f"{row['steps_per_s'] / plain:.2f}" if plain else ""
        induction = f"{row['induction']:.2f}" if "induction" in row else ""
        lines.append(f"| `{row['kind']}` | {row['parameters']:,} | "
                     f"{row['flops_per_token'] / 1e6:.2f} M | "
                     f"{row['steps_per_s']:.1f} | {speed} | "
                     f"{spread(row['losses'])} | {induction} | "
                     f"{row['entropy']:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", help="some of them, with commas between (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="of each training (default: 2)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="overrides the configs, e.g. train.steps=100")
    parser.add_argument("--speed-rounds", type=int, default=3,
                        help="short trainings of each kind that measure its speed (default: 3)")
    parser.add_argument("--no-induction", action="store_true", help="leave that column out")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/compare",
                        help="folder of the runs (default: runs/compare)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    parser.add_argument("--program", help=argparse.SUPPRESS)  # a built headlab, for the tests
    arguments = parser.parse_args()
    there = sorted(path.stem.removeprefix("char_") for path in CONFIGS.glob("char_*.yaml"))
    kinds = arguments.kinds.split(",") if arguments.kinds else there
    if wrong := [kind for kind in kinds if kind not in there]:
        parser.error(f"no configs/char_{wrong[0]}.yaml; kinds are {', '.join(there)}")
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    if arguments.speed_rounds < 1:
        parser.error("--speed-rounds must be at least 1")
    kinds.sort(key=lambda kind: (kind != "mha", kind))
    rows = compare(arguments, kinds)
    print(json.dumps(rows) if arguments.json else table(rows))


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(str(error))
