"""Loss of kinds of heads on windows longer than those that they were trained on (Markdown).

    scripts/studies/beyond_length [--seeds N] [--contexts 64,128,256,512,1024] [--arms NAME,...] [--page FILE]

Trains the arms on windows of 64 characters (configs/char_*.yaml) and measures each run on the validation part of
its text, cut into windows of each length. The loss is the mean over all places of the windows: longer windows
show a place more of the text before it, so a model that can use that has a lower loss. What is trained and
measured is not done again. --page writes the table between its markers.
"""

import pathlib
import statistics

import yaml

import study
from headlab_log.output import plain_path
from headlab_program import ROOT, ProgramError, markdown, spread, trained

# Name -> config, and settings beside it.
ARMS = {
    "mha, rope": ("char_mha", ["model.position=rope"]),
    "mha, no positions": ("char_mha", ["model.position=none"]),
    "forgetting": ("char_forgetting", []),
    "stickbreaking": ("char_stickbreaking", []),
    "gated_deltanet": ("char_gated_deltanet", []),
    "kda": ("char_kda", []),
    "hybrid of kda and mla": ("char_hybrid_kda", []),
}


def validation_text(out, run):
    """A file with the part of the text that a run was not trained on."""
    data = yaml.safe_load((run / "config.yaml").read_text())["data"]
    text = (ROOT / "configs/data/tinyshakespeare.txt").read_text(encoding="utf-8")
    path = out / "validation.txt"
    path.write_text(text[int(len(text) * data["train_share"]):], encoding="utf-8")
    return path


def measured(bench, name, contexts):
    """Of an arm: losses by context, one of each seed."""
    config, settings = ARMS[name]
    settings = [f"train.threads={bench.arguments.threads}", *settings, *bench.arguments.set]
    runs = trained(bench.arguments.program, [config], bench.seeds, settings, bench.out, bench.arguments.jobs)
    losses = {context: [] for context in contexts}
    for run in map(pathlib.Path, runs.values()):
        text = validation_text(bench.out, run)
        for context in contexts:
            options = ["--text", text, "--context", context, "--batch", max(1, 4096 // context), *bench.threads]
            found = bench.kept(run, f"eval --context {context}", f"{name}: windows of {context}",
                               lambda: {"loss": bench.headlab("eval", run, *options)["loss"]})
            losses[context].append(found["loss"])
    return losses


def table(all_of, contexts):
    rows = [[name, *(spread(losses[context]) for context in contexts),
             f"{statistics.fmean(losses[contexts[-1]]) - statistics.fmean(losses[contexts[0]]):+.3f}"]
            for name, losses in all_of.items()]
    return markdown(["heads", *(f"{context} tokens" for context in contexts), "last less first"], rows)


def main():
    parser = study.parser_of(__doc__, "runs/beyond_length", seeds=3, jobs=1, threads=1, set=[])
    parser.add_argument("--contexts", default="64,128,256,512,1024", help="lengths (default: %(default)s)")
    parser.add_argument("--arms", help=f"of {'; '.join(ARMS)}, with semicolons (default: all)")
    parser.add_argument("--page", type=plain_path, metavar="FILE", help="write the table between its markers, too")
    arguments = parser.parse_args()
    contexts = [int(context) for context in arguments.contexts.split(",")]
    arms = arguments.arms.split(";") if arguments.arms else list(ARMS)
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"no arm is called {unknown[0]!r}; there are: {'; '.join(ARMS)}")
    if arguments.page and (wrong := study.lacking(arguments.page, ["beyond length"])):
        raise ProgramError(f"beyond_length: {wrong}")
    bench = study.Bench(arguments)
    all_of = {name: measured(bench, name, contexts) for name in arms}
    text = table(all_of, contexts) + (
        f"\nLoss [nat] a character on the validation part of the text, mean ± standard deviation over "
        f"{arguments.seeds} seeds, trained on windows of 64 characters. {bench.heading()}.\n")
    if arguments.page:
        study.write_page(arguments.page, {"beyond length": text})
    print(text)


if __name__ == "__main__":
    study.run(main)
