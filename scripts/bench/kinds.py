"""Milliseconds of a training step of every kind of heads, beside mha's: one program, one device, each
training in a pair with one of mha.

    scripts/bench/kinds --pairs 7 --steps 45 --set train.threads=1
    scripts/bench/kinds --device cuda --set model.layers=6 --set train.batch=64 ...

Of a training of --steps the median over windows of five, the first ten steps left out. Which of a pair goes
first changes from pair to pair; the columns have the median over the pairs, and the least and the most. With
--statistics another training records the head statistics at every step; the column is its step in times of
the first's. Nothing else should run meanwhile.
"""

import argparse
import statistics
import sys
import tempfile

from headlab_program import ROOT, ProgramError
from speed import kinds_of, steps_per_second


def step_ms(arguments, kind, stats_every):
    settings = [f"train.steps={arguments.steps}", "log.every=5", "log.attention.every=0",
                f"log.stats_every={stats_every}", "train.eval_batches=1", *arguments.set]
    with tempfile.TemporaryDirectory() as out:
        return 1e3 / steps_per_second(arguments.headlab, ROOT / f"configs/char_{kind}.yaml",
                                      [*settings, "--device", arguments.device], out)


def pair_ms(arguments, kind, number):
    """A step of the kind, of mha, and of the kind with statistics at every step (None: not asked for)."""
    first, second = ("mha", kind) if number % 2 else (kind, "mha")
    ms = [step_ms(arguments, one, 0) for one in (first, second)]
    own, plain = ms[::-1] if number % 2 else ms
    return own, plain, step_ms(arguments, kind, 1) if arguments.statistics else None


def spread(ratios):
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main():
    parser = argparse.ArgumentParser(prog="bench/kinds", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headlab", help="the program (default: scripts/headlab)")
    parser.add_argument("--kinds", help="comma-separated (default: every configs/char_*.yaml)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60, help="of a training (default: 60)")
    parser.add_argument("--pairs", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--statistics", action="store_true", help="what they cost at every step, too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="another setting of all trainings")
    arguments = parser.parse_args()
    kinds = ["mha", *(kind for kind in kinds_of(arguments) if kind != "mha")]
    more = (" statistics |", "--:|") if arguments.statistics else ("", "")
    print(f"| kind | step [ms] | steps/s of mha's |{more[0]}\n|---|--:|--:|{more[1]}", flush=True)
    for kind in kinds:
        try:
            pairs = [pair_ms(arguments, kind, number) for number in range(arguments.pairs)]
        except ProgramError as error:
            print(f"| {kind} | {str(error).splitlines()[0]} |", flush=True)
            continue
        shares = [plain / own for own, plain, _ in pairs]
        cost = f" {spread([watched / own for own, _, watched in pairs])} |" if arguments.statistics else ""
        print(f"| {kind} | {statistics.median(own for own, _, _ in pairs):.2f} | {spread(shares)} |{cost}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
