"""A layer of every kind of heads with two builds, by turns: training step, forward pass, decoded token.

    scripts/bench/layers --before OTHER/build/release/headlab_bench_layers [--after build/release/headlab_bench_layers]
                         [--kinds mha,moh] [--pairs 7] [--seconds 0.4]

Prints the ratio of speeds after / before: of each pair the shortest passes of both, then the median over the
pairs, and the least and the most of them. A kind with a median below --least is measured once more; both medians
stand in its row. Peak memory [MB] is that of the whole process, the least of all pairs.
`ninja -C build/release headlab_bench_layers` builds the program, which is scripts/bench/layers.cpp.
"""

import argparse
import statistics
import subprocess
import sys

from headlab_program import ROOT
from speed import kinds_of

MEASURED = ("training step", "forward pass", "decoded token")


def measured(program, kind, seconds):
    """Milliseconds of each, None where the kind cannot do it, and megabytes."""
    done = subprocess.run([program, kind, str(seconds)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [None if word == "-" else float(word) for word in done.stdout.split()]


def pairs_of(arguments, kind):
    """Pairs of what both programs measured; which of the two goes first changes from pair to pair."""
    pairs = []
    for number in range(arguments.pairs):
        names = ["before", "after"] if number % 2 == 0 else ["after", "before"]
        found = {name: measured(getattr(arguments, name), kind, arguments.seconds) for name in names}
        pairs.append((found["before"], found["after"]))
    return pairs


def ratios_of(pairs, place):
    return None if pairs[0][0][place] is None else sorted(before[place] / after[place] for before, after in pairs)


def row(arguments, kind):
    rounds = [pairs_of(arguments, kind)]
    ratios = [ratios_of(rounds[0], place) for place in range(len(MEASURED))]
    if any(found and statistics.median(found) < arguments.least for found in ratios):
        rounds.append(pairs_of(arguments, kind))
    cells = []
    for place in range(len(MEASURED)):
        told = [ratios_of(pairs, place) for pairs in rounds]
        cells.append("-" if told[0] is None else ", again ".join(
            f"{statistics.median(found):.3f} ({found[0]:.2f} to {found[-1]:.2f})" for found in told))
    pairs = [pair for found in rounds for pair in found]
    cells += [f"{min(pair[side][-1] for pair in pairs):.0f}" for side in (0, 1)]
    return f"| {kind} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(prog="bench/layers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the program to compare with")
    parser.add_argument("--after", default=ROOT / "build/release/headlab_bench_layers", help="the program that is compared")
    parser.add_argument("--kinds", help="comma-separated (default: every configs/char_*.yaml)")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure (default: 0.4)")
    parser.add_argument("--least", type=float, default=0.97, help="below it a kind is measured once more (default: 0.97)")
    arguments = parser.parse_args()
    print(f"| kind | {' | '.join(MEASURED)} | peak before [MB] | peak after [MB] |\n|---|{'--:|' * 5}", flush=True)
    for kind in kinds_of(arguments):
        print(row(arguments, kind), flush=True)


if __name__ == "__main__":
    sys.exit(main())
