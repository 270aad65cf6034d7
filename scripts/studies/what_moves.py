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
import sys

import comparison
from headlab_log.output import plain_path, write_whole
from headlab_program import ROOT, ProgramError

# Student's t, 97.5 %, by degrees of freedom.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
MARKED = comparison.marked("what moves")
POSITIONS = re.compile(r" (learned|no) positions$")


def paired(ours, theirs):
    """Mean of the differences seed by seed and half of its 95 % interval; None: not the same seeds."""
    if not ours or not theirs or len(ours) != len(theirs) or len(ours) - 1 not in T975:
        return None
    differences = [a - b for a, b in zip(ours, theirs)]
    return (statistics.fmean(differences),
            T975[len(ours) - 1] * statistics.stdev(differences) / math.sqrt(len(ours)))


def differences(losses, ours, theirs, shares):
    return {share: paired(losses[ours].get(share), losses[theirs].get(share)) for share in shares}


def largest(losses, pairs, shares):
    """Of pairs of arms, (ours, theirs), the one farthest apart after each share."""
    found = {}
    for share in shares:
        all_of = [(pair, paired(losses[pair[0]].get(share), losses[pair[1]].get(share))) for pair in pairs]
        known = [(pair, one) for pair, one in all_of if one]
        found[share] = max(known, key=lambda one: abs(one[1][0]), default=None)
    return found


def cell(one, name=""):
    if one is None:
        return "-"
    mean, half = one
    return f"{name}{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def rate_cell(arm, factor):
    """What the chosen rate times a factor ends with in place of it, on the seeds that chose."""
    tried = {one["rate"]: one["val/loss"] for one in arm["rate"]["tried"]}
    best = arm["rate"]["chosen"]
    other = next((loss for rate, loss in tried.items() if math.isclose(rate, best * factor, rel_tol=1e-6)), None)
    if other is None or tried.get(best) is None:
        return "-"
    return f"{other - tried[best]:+.3f}"


def moves(task, baseline):
    """A table of what moves the loss of the baseline's arm, or of the arm that a row names."""
    losses, arms = comparison.losses_by_length(task), {arm["name"]: arm for arm in task["arms"] if arm["state"] == "compared"}
    if baseline not in arms:
        raise ProgramError(f"{task['name']}: {baseline} has no results")
    shares = sorted(losses[baseline])
    steps = arms[baseline]["steps"]
    rows = [["one seed for another: standard deviation", *(
        f"{statistics.stdev(losses[baseline][share]):.3f}" for share in shares)]]
    rate = arms[baseline]["rate"]["chosen"]
    for factor, word in ((0.5, "half of"), (2, "twice")):
        rows.append([f"rate: {word} {baseline}'s best, {rate:g} (validation)", *["-"] * (len(shares) - 1),
                     rate_cell(arms[baseline], factor)])
    for name in arms:
        if name.startswith(baseline) and POSITIONS.search(name):
            there = differences(losses, name, baseline, shares)
            rows.append([f"positions: {POSITIONS.search(name)[0].strip()} in place of rope",
                         *(cell(there[share]) for share in shares)])
    papers = [(name, name.removesuffix(" paper")) for name in arms
              if name.endswith(" paper") and name.removesuffix(" paper") in arms]
    begun = largest(losses, papers, shares)
    rows.append([f"initialisation: a paper's in place of plain heads', the largest of {len(papers)}", *(
        cell(one[1], f"`{one[0][1]}` ") if one else "-" for one in begun.values())])
    rows.append([f"length: {baseline} less its own at the end", *(
        cell(paired(losses[baseline][share], losses[baseline][shares[-1]])) if share != shares[-1] else "-"
        for share in shares)])
    kinds = [(name, baseline) for name in arms
             if name != baseline and not name.endswith(" paper") and not POSITIONS.search(name)]
    apart = largest(losses, kinds, shares)
    rows.append([f"**kind**: less {baseline}, the largest of {len(kinds)}", *(
        cell(one[1], f"`{one[0][0]}` ") if one else "-" for one in apart.values())])
    return comparison.markdown(
        ["what changes", *(f"after {share * steps:,.0f} updates" for share in shares)], rows) + (
        f"\n{comparison.reported_loss(task)} [nat] of {task['name']}, {task['measured_on']['examples']:,.0f} examples; mean and 95 % "
        f"interval of differences paired by seed, {len(losses[baseline][shares[-1]])} seeds. The intervals of the "
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
        old = arguments.page.read_text(encoding="utf-8")
        if not MARKED.search(old):
            parser.error(f"{arguments.page}: has no <!-- what moves --> with <!-- end of what moves -->")
        write_whole(arguments.page, MARKED.sub(lambda _: text, old))
    print(text)


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(f"what_moves: {error}")
