"""Milliseconds of a training step of every kind of heads, beside mha's: one program, one device, the kinds
one behind the other.

    scripts/bench/kinds --device cuda --set model.layers=6 --set train.batch=64 ...

Of a training of --steps the median over windows of five, the first ten steps left out. With --statistics a
second training records the head statistics at every step; the column is its step in times of the first's.
Nothing else should run meanwhile.
"""

import argparse
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


def main():
    parser = argparse.ArgumentParser(prog="bench/kinds", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headlab", help="the program (default: scripts/headlab)")
    parser.add_argument("--kinds", help="comma-separated (default: every configs/char_*.yaml)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60, help="of a training (default: 60)")
    parser.add_argument("--statistics", action="store_true", help="what they cost at every step, too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="another setting of all trainings")
    arguments = parser.parse_args()
    kinds = ["mha", *(kind for kind in kinds_of(arguments) if kind != "mha")]
    more = (" statistics |", "--:|") if arguments.statistics else ("", "")
    print(f"| kind | step [ms] | of mha's |{more[0]}\n|---|--:|--:|{more[1]}", flush=True)
    mha = None
    for kind in kinds:
        try:
            plain = step_ms(arguments, kind, 0)
            watched = step_ms(arguments, kind, 1) if arguments.statistics else None
        except ProgramError as error:
            print(f"| {kind} | {str(error).splitlines()[0]} |", flush=True)
            continue
        mha = mha or plain
        cost = f" {watched / plain:.2f} |" if watched else ""
        print(f"| {kind} | {plain:.2f} | {plain / mha:.2f} |{cost}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
