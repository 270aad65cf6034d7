"""Trains every kind shortly with two builds of the program, by turns, and prints how their speeds
compare: the median over pairs of (steps/s of --after) / (steps/s of --before).

    scripts/bench/speed --before OTHER/build/release/headlab --after build/release/headlab

A training's speed is the median over windows of five steps; the first ten steps do not count. Both
programs train the same config with the same settings; which of the two goes first changes from pair
to pair. Nothing else should run meanwhile.

With --together the two of a pair train at the same time, each with one thread on a core of its own,
and change cores from pair to pair: what slows the machine down then slows both.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import sys
import tempfile

from headlab_program import ROOT, headlab


def windows(program, config, settings, out):
    """The rows of a training's metrics that count: those after its first ten steps."""
    run = pathlib.Path(headlab(program, "run", config, *settings, "--out", out)["run"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "tokens_per_s" in row and row["step"] > 10]


def steps_per_second(program, config, settings, out):
    return statistics.median(row["tokens_per_s"] * row["step"] / row["tokens"]
                             for row in windows(program, config, settings, out))


def kinds_of(arguments):
    """Those of --kinds; without it every kind that has a configs/char_<kind>.yaml."""
    return arguments.kinds.split(",") if arguments.kinds else sorted(
        path.stem.removeprefix("char_") for path in (ROOT / "configs").glob("char_*.yaml"))


def compare(arguments, kind):
    config = ROOT / "configs" / f"char_{kind}.yaml"
    settings = [f"train.steps={arguments.steps}", "log.every=5", "log.attention.every=0",
                f"log.stats_every={arguments.stats_every}", "train.eval_batches=1",
                f"train.threads={1 if arguments.together else arguments.threads}", *arguments.set]
    cores = sorted(os.sched_getaffinity(0))[:2] if arguments.together else [None]

    def train(name, core):
        if core is not None:
            os.sched_setaffinity(0, {core})  # of this thread, and of the program that it starts
        own = arguments.set_after if name == "after" else []
        with tempfile.TemporaryDirectory() as out:
            return steps_per_second(getattr(arguments, name), config, settings + own, out)

    pairs = []
    for number in range(arguments.pairs):
        turn = ["before", "after"] if number % 2 == 0 else ["after", "before"]
        with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
            speeds = pool.map(train, turn, [cores[i % len(cores)] for i in range(2)])
            pairs.append(dict(zip(turn, speeds)))
    ratios = sorted(pair["after"] / pair["before"] for pair in pairs)
    middle = {name: statistics.median(pair[name] for pair in pairs) for name in ("before", "after")}
    print(f"| {kind} | {middle['before']:.1f} | {middle['after']:.1f} | "
          f"{statistics.median(ratios):.3f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="bench/speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the program to compare with")
    parser.add_argument("--after", required=True, help="the program that is compared")
    parser.add_argument("--kinds", help="comma-separated (default: every configs/char_*.yaml)")
    parser.add_argument("--pairs", type=int, default=7, help="trainings of each (default: 7)")
    parser.add_argument("--steps", type=int, default=60, help="of a training (default: 60)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--together", action="store_true",
                        help="both of a pair at once, one thread each")
    parser.add_argument("--stats-every", type=int, default=0, help="0: no statistics (default)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="another setting of all trainings")
    parser.add_argument("--set-after", action="append", default=[], metavar="KEY=VALUE",
                        help="a setting of --after alone: two settings of one program compared")
    arguments = parser.parse_args()
    if arguments.together and len(os.sched_getaffinity(0)) < 2:
        parser.error("--together needs two cores; without it the two train by turns")
    print("| kind | steps/s before | steps/s after | after/before, median | all pairs |")
    print("|---|---|---|---|---|")
    for kind in kinds_of(arguments):
        compare(arguments, kind)


if __name__ == "__main__":
    sys.exit(main())
