"""How fast a training goes on when another process keeps one core busy, by how OpenMP's threads
wait: prints tokens/s of each way, alone and beside the neighbour, by turns.

    scripts/bench/neighbour [--program build/release/headlab] [--turns 5]

A speed is the median over windows of five steps; the first ten steps do not count. Between the
brackets: the least and the most of the turns. Nothing else should run meanwhile.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile

from headlab_program import ROOT
from speed import windows

WAYS = {  # the environment in which the program starts
    "headlab's: short while the cores are busy": {},
    "libgomp's own (GOMP_SPINCOUNT=300000)": {"GOMP_SPINCOUNT": "300000"},
    "GOMP_SPINCOUNT=2000": {"GOMP_SPINCOUNT": "2000"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}


@contextlib.contextmanager
def neighbour():
    busy = subprocess.Popen([sys.executable, "-I", "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def tokens_per_second(arguments, way):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(way)
    settings = [f"train.steps={arguments.steps}", f"train.threads={arguments.threads}", "log.every=5",
                "log.attention.every=0", "log.stats_every=0", "train.eval_batches=1",
                "data.train_share=0.99"]  # a short last evaluation
    try:
        with tempfile.TemporaryDirectory() as out:
            rows = windows(arguments.program, ROOT / "configs/char_mha.yaml", settings, out)
            return statistics.median(row["tokens_per_s"] for row in rows)
    finally:
        for name in way:
            del os.environ[name]
        os.environ.update(before)


def main():
    parser = argparse.ArgumentParser(prog="bench/neighbour", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/release/headlab")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    speeds = {(way, busy): [] for way in WAYS for busy in (False, True)}
    for _ in range(arguments.turns):
        for way, busy in speeds:
            with neighbour() if busy else contextlib.nullcontext():
                speeds[way, busy].append(tokens_per_second(arguments, WAYS[way]))
    print("| how threads wait | alone, tokens/s | beside a busy process, tokens/s | share |")
    print("|---|--:|--:|--:|")
    for way in WAYS:
        alone, beside = speeds[way, False], speeds[way, True]
        cell = [f"{statistics.median(s):.0f} ({min(s):.0f} to {max(s):.0f})" for s in (alone, beside)]
        share = statistics.median(beside) / statistics.median(alone)
        print(f"| {way} | {cell[0]} | {cell[1]} | {share:.2f} |")


if __name__ == "__main__":
    main()
