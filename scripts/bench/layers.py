"""A layer of every kind of heads with two builds at once: forward and backward, forward pass, decoded token.

    scripts/bench/layers --before OTHER/build/release/headlab [--after build/release/headlab]
                         [--kinds mha,moh] [--pairs 7] [--seconds 3]

Both programs run `bench KIND` through the same seconds in turns of 0.1 s, one stopped while the other goes on, so that
a machine that changes its speed changes it for both. Prints ratios of speeds after / before, of the shortest passes:
that of each pair's, their median and the least and the most of them; and behind them that of all pairs together.
Where the ratios of pairs lie far apart others were at work on the machine, and the last one says more. A kind with
a median below --least is measured once more, and both stand in its row. Memory [MB] is the most that forward and
backward hold. Both builds need the command `bench`.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time

from headlab_program import ROOT
from speed import kinds_of

MEASURED = {"both": "forward and backward", "forward": "forward pass", "decode": "decoded token"}
TURN = 0.1  # seconds: some ten training steps, the first of which finds cold caches


def side_by_side(commands):
    """What each command printed; they take turns, so that all see the same machine."""
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for command in commands]
    try:
        for program in programs:
            program.send_signal(signal.SIGSTOP)
        while any(program.poll() is None for program in programs):
            for program in programs:
                program.send_signal(signal.SIGCONT)
                time.sleep(TURN)
                program.send_signal(signal.SIGSTOP)
    finally:  # interrupted, one that is stopped would stay for ever
        for program in programs:
            program.kill()
    texts = []
    for program in programs:
        out, error = program.communicate()
        if program.returncode != 0:
            raise SystemExit(error)
        texts.append(out)
    return texts


def figures_of(text):
    """Milliseconds of each pass, None where the kind cannot do it, and megabytes."""
    (row,) = json.loads(text)["shapes"][0]["rows"]
    return [row[name]["ms"]["least"] if "ms" in row[name] else None for name in MEASURED] + [
        row["both"].get("peak_bytes", 0) / 1e6]


def pairs_of(arguments, kind):
    """Pairs of what both programs measured."""
    commands = [[program, "bench", kind, "--shape", arguments.shape, "--decode", "--json", "--threads", "1", "--rounds",
                 "1", "--seconds", str(arguments.seconds)] for program in (arguments.before, arguments.after)]
    return [list(map(figures_of, side_by_side(commands))) for _ in range(arguments.pairs)]


def ratios_of(pairs, place):
    """Those of the pairs in order, and that of all together."""
    if pairs[0][0][place] is None:
        return None, None
    shortest = [min(pair[side][place] for pair in pairs) for side in (0, 1)]
    return sorted(before[place] / after[place] for before, after in pairs), shortest[0] / shortest[1]


def row(arguments, kind):
    rounds = [pairs_of(arguments, kind)]
    ratios = [ratios_of(rounds[0], place)[0] for place in range(len(MEASURED))]
    if any(found and statistics.median(found) < arguments.least for found in ratios):
        rounds.append(pairs_of(arguments, kind))
    cells = []
    for place in range(len(MEASURED)):
        told = [ratios_of(pairs, place) for pairs in rounds]
        cells.append("-" if told[0][0] is None else ", again ".join(
            f"{statistics.median(found):.3f} ({found[0]:.2f} to {found[-1]:.2f}), all {of_all:.3f}"
            for found, of_all in told))
    pairs = [pair for found in rounds for pair in found]
    cells += [f"{min(pair[side][-1] for pair in pairs):.2f}" for side in (0, 1)]
    return f"| {kind} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(prog="bench/layers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the program to compare with")
    parser.add_argument("--after", default=ROOT / "build/release/headlab", help="the program that is compared")
    parser.add_argument("--kinds", help="comma-separated (default: every configs/char_*.yaml)")
    parser.add_argument("--shape", default="12x64x128x4", help="as `headlab bench` takes it (default: 12x64x128x4)")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3, help="for each figure (default: 3)")
    parser.add_argument("--least", type=float, default=0.97, help="below it a kind is measured once more (default: 0.97)")
    arguments = parser.parse_args()
    print(f"| kind | {' | '.join(MEASURED.values())} | before [MB] | after [MB] |\n|---|{'--:|' * 5}", flush=True)
    for kind in kinds_of(arguments):
        print(row(arguments, kind), flush=True)


if __name__ == "__main__":
    sys.exit(main())
