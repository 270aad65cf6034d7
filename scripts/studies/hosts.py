"""Trains configs over several seeds, one thread each, and prints one table (Markdown).

    scripts/studies/hosts CONFIG[:SEEDS] ... [--seeds 3] [--jobs 2] [--set train.epochs=1] ...

CONFIG is the name of a file in configs/, or a pattern ('mnist_vit_*'); of two that name one config the
latter counts: `'mlm_*' mlm_mha:3 --seeds 1`. Seeds are 1337, 1338, ... Runs that --out already holds are
not repeated, and an interrupted one goes on. Losses and metrics are those at the end of a training, over the
whole validation split, BLEU is of the test split; the time is that of the training with all that it logs,
as long as it took beside the others. With --kept what a training ended with goes to a file, too, and a
training that the file holds is not repeated while its settings, its data and the sources of its kinds of heads
are the same, wherever it was trained. --against adds a column: the loss less that of another config with the
same seed, mean and standard deviation of what both were trained with.
"""

import fnmatch
import functools
import json
import pathlib

import study
from headlab_log.measures import LOSS
from headlab_program import FIRST_SEED, ROOT, ProgramError, headlab, markdown, spread
from kept import Kept

CONFIGS = ROOT / "configs"
# Metrics of a task: heading, factor, digits.
METRICS = {"loss": ("loss [nat]", 1, 3), "accuracy": ("accuracy [%]", 100, 2),
           "greedy": ("BLEU, greedy", 1, 2), "beam": ("BLEU, beam 5", 1, 2)}
BEAMS = {"greedy": 1, "beam": 5}


def chosen(words, seeds):
    """How many seeds each config is trained with, in the order of their first naming."""
    there = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    counts = {}
    for word in words:
        pattern, _, count = word.partition(":")
        found = fnmatch.filter(there, pattern)
        if not found:
            raise ValueError(f"no configs/{pattern}.yaml; there are {', '.join(there)}")
        if count and not (count.isdecimal() and int(count) > 0):
            raise ValueError(f"{word}: the number of seeds must be at least 1")
        counts |= {name: int(count or seeds) for name in found}
    return counts


def train(arguments, kept, name, seed):
    """What is kept of one config trained with one seed."""
    return kept.trained(arguments, name, seed, ["train.threads=1", *arguments.set],
                        lambda run: end_of(run) | translations(arguments, run))


def translations(arguments, run):
    """BLEU of what a run writes of the test split; nothing of one that translates nothing."""
    if json.loads((run / "data.json").read_text())["shape"]["source_vocabulary"] == 0:
        return {}
    return {name: headlab(arguments.program, "eval", run, "--split", "test", "--beam", width)["bleu"]
            for name, width in BEAMS.items()}


def end_of(run):
    """What a training ended with: its metrics over the whole split, and how long it took [s]."""
    lines = study.metrics(run)
    last = next(line for line in reversed(lines) if LOSS in line)
    if not last.get("val/whole_split"):
        raise ProgramError(f"hosts: {run} was not measured over the whole split")
    return {"time": lines[-1]["wall_s"],
            **{name: last[f"val/{name}"] for name in METRICS if f"val/{name}" in last}}


def measure(arguments, counts):
    """The rows of the table, one a config, and when, where and with which commits they were trained."""
    kept = Kept(arguments.kept)
    most = max(counts.values())
    asked = [(name, FIRST_SEED + n) for n in range(most) for name in counts if n < counts[name]]
    results = study.in_parallel(arguments.jobs, functools.partial(train, arguments, kept), asked)
    rows = []
    for name, count in counts.items():
        costs = headlab(arguments.program, "validate", CONFIGS / f"{name}.yaml", *arguments.set)
        of_seeds = [results[name, FIRST_SEED + n]["end"] for n in range(count)]
        rows.append({"config": name, "seeds": count, "parameters": costs["parameters"],
                     "flops_per_token": costs["flops_per_token"],
                     **{key: [end[key] for end in of_seeds] for key in of_seeds[0]}})
    return rows, study.provenance(results.values())


def difference(row, other):
    """Of the losses, seed by seed."""
    if row is other:
        return ""
    mean = spread([a - b for a, b in zip(row["loss"], other["loss"])])
    return mean if mean.startswith("-") else f"+{mean}"


def table(rows, against=None):
    """Markdown. against: one of the rows."""
    shown = [name for name in METRICS if any(name in row for row in rows)]
    beside = [f"loss against `{against['config']}`"] if against else []
    lines = []
    for row in rows:
        values = [spread([factor * value for value in row[name]], digits) if name in row else ""
                  for name in shown for _, factor, digits in [METRICS[name]]]
        if against:
            values.append(difference(row, against))
        flops = row["flops_per_token"]  # None: not known
        lines.append([f"`{row['config']}`", row["seeds"], *values, f"{row['parameters']:,}",
                      "-" if flops is None else f"{flops / 1e6:.3f} M", spread(row["time"], 0)])
    return markdown(["config", "seeds", *(METRICS[name][0] for name in shown), *beside,
                     "parameters", "FLOPs a token", "time [s]"], lines)


def main():
    parser = study.parser_of(__doc__, "runs/hosts", jobs=2, set=[])
    parser.add_argument("configs", nargs="+", metavar="CONFIG[:SEEDS]")
    parser.add_argument("--seeds", type=int, default=3,
                        help="trainings of a config that does not say how many (default: 3)")
    parser.add_argument("--kept", type=pathlib.Path, metavar="FILE",
                        help="JSON of what trainings ended with: read, and added to")
    parser.add_argument("--against", metavar="CONFIG", help="one of the configs")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    try:
        counts = chosen(arguments.configs, arguments.seeds)
    except ValueError as error:
        parser.error(str(error))
    if arguments.against and arguments.against not in counts:
        parser.error(f"--against {arguments.against}: is not one of those that are trained")
    rows, trained = measure(arguments, counts)
    if arguments.json:
        print(json.dumps(rows))
        return
    against = next((row for row in rows if row["config"] == arguments.against), None)
    print(f"{trained}; {arguments.jobs} trainings at a time\n\n{table(rows, against)}", end="")


if __name__ == "__main__":
    study.run(main)
