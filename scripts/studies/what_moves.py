"""How far single decisions move a loss, beside the largest difference between kinds (Markdown).

    scripts/studies/what_moves [docs/kinds.json] [--task char] [--page docs/what_moves.md]

Reads what scripts/studies/compare_heads kept; trains nothing. --page writes the tables between its markers.
"""

import argparse
import json
import math
import pathlib
import re
import statistics

import comparison
import study
from headlab_log.measures import LOSS
from headlab_log.output import plain_path
from headlab_program import ROOT, ProgramError

# Student's t, 97.5 %, by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
POSITIONS = re.compile(r" (learned|no) positions$")


def paired(ours, theirs):
    """Mean of the differences seed by seed and half of its 95 % interval; None: not the same seeds."""
    if not ours or not theirs or len(ours) != len(theirs) or len(ours) - 1 not in T975:
        return None
    differences = [a - b for a, b in zip(ours, theirs)]
    return (statistics.fmean(differences),
            T975[len(ours) - 1] * statistics.stdev(differences) / math.sqrt(len(ours)))


def cell(found, name=""):
    if found is None:
        return "-"
    mean, half = found
    return f"{name}{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def largest(losses, pairs, share):
    """Of pairs of arms, (ours, theirs), the one farthest apart after a share of the steps, as a cell."""
    all_of = [(ours.removesuffix(" paper"), paired(losses[ours].get(share), losses[theirs].get(share)))
              for ours, theirs in pairs]
    kind, found = max((one for one in all_of if one[1]), key=lambda one: abs(one[1][0]), default=("", None))
    return cell(found, f"`{kind}` ")


def rate_cell(arm, factor):
    """What the chosen rate times a factor ends with in place of it, on the seeds that chose."""
    tried = {one["rate"]: one[LOSS] for one in arm["rate"]["tried"]}
    best = arm["rate"]["chosen"]
    other = next((loss for rate, loss in tried.items() if math.isclose(rate, best * factor, rel_tol=1e-6)), None)
    if other is None or tried.get(best) is None:
        return "-"
    return f"{other - tried[best]:+.3f}"


def moves(task, baseline):
    """A table of what moves the loss of the baseline's arm, or of the arm that a row names."""
    losses = comparison.losses_by_length(task)
    arms = {arm["name"]: arm for arm in task["arms"] if arm["state"] == "compared"}
    if baseline not in arms:
        raise ProgramError(f"what_moves: {task['name']}: {baseline} has no results")
    plain, arm = losses[baseline], arms[baseline]
    *parts, whole = shares = sorted(plain)
    papers = [(name, name.removesuffix(" paper")) for name in arms
              if name.endswith(" paper") and name.removesuffix(" paper") in arms]
    kinds = [(name, baseline) for name in arms
             if name != baseline and not name.endswith(" paper") and not POSITIONS.search(name)]
    rate = f"{baseline}'s best, {arm['rate']['chosen']:g} (validation)"
    rows = [
        ["one seed for another: standard deviation", *(f"{statistics.stdev(plain[share]):.3f}" for share in shares)],
        [f"rate: half of {rate}", *["-"] * len(parts), rate_cell(arm, 0.5)],
        [f"rate: twice {rate}", *["-"] * len(parts), rate_cell(arm, 2)],
        *([f"positions: {POSITIONS.search(name)[0].strip()} in place of rope",
           *(cell(paired(losses[name].get(share), plain[share])) for share in shares)]
          for name in arms if name.startswith(baseline) and POSITIONS.search(name)),
        [f"initialisation: a paper's in place of plain heads', the largest of {len(papers)}",
         *(largest(losses, papers, share) for share in shares)],
        [f"length: {baseline} less its own at the end",
         *(cell(paired(plain[share], plain[whole])) for share in parts), "-"],
        [f"**kind**: less {baseline}, the largest of {len(kinds)}",
         *(largest(losses, kinds, share) for share in shares)]]
    return comparison.table(
        ["what changes", *(f"after {share * arm['steps']:,.0f} updates" for share in shares)], rows) + (
        f"\n{comparison.reported_loss(task)} [nat] of {task['name']}, {task['measured_on']['examples']:,.0f} examples; "
        f"mean and 95 % interval of differences paired by seed, {len(plain[whole])} seeds. The intervals of the "
        "largest are not corrected for having been chosen.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=pathlib.Path, default=ROOT / "docs/kinds.json")
    parser.add_argument("--task", default="char", help="of the file (default: char)")
    parser.add_argument("--page", type=plain_path, metavar="FILE", help="write the table between its markers, too")
    arguments = parser.parse_args()
    report = json.loads(arguments.results.read_text(encoding="utf-8"))
    task = next((task for task in report["tasks"] if task["name"] == arguments.task), None)
    if task is None:
        parser.error(f"{arguments.results}: has no task {arguments.task}")
    text = moves(task, report["baseline"])
    if arguments.page:
        if wrong := study.lacking(arguments.page, ["what moves"]):
            parser.error(wrong)
        study.write_page(arguments.page, {"what moves": text})
    print(text)


if __name__ == "__main__":
    study.run(main)
