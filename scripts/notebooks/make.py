"""Trains, analyzes and prunes what the notebooks look at, and executes them where they lie.

    scripts/notebooks/make [--out runs/notebooks] [--seeds 3] [--jobs 2] [--set train.steps=100]

The folder --out is what the notebooks read (their HEADLAB_RUNS). Trainings that it already holds
are not repeated; what is made of them is. The seventh needs what the repository does not hold: two published
models (scripts/data smollm2, scripts/data minilm) and a treebank in CoNLL-U, e.g. the development part of UD
English EWT (--treebank FILE); without them it is left out, and said so. The eighth and ninth need no run, but the
package headlab with torch and transformers: .ci/python makes an environment that has them.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import h5py
import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from headlab_program import FIRST_SEED, ROOT, fresh_run, headlab, trained

VARIANTS = ("mha", "moh", "dcmha", "collaborative", "mohsa")  # trained with every seed
HOSTS = ("multi30k_mha", "mnist_vit_mha")  # trained once
PRUNED = ("char_mha", "induction_mha")
MAPS_OF = {"multi30k_mha": 64}  # examples whose maps are analyzed; of all others one
ORDERS = {
    "importance": ("--by", "importance"),
    "importance_by_layer": ("--by", "importance", "--norm", "layer"),
    "importance_ranked_anew": ("--by", "importance", "--recompute"),
    "ablation": ("--by", "ablation"),
    **{f"random_{n}": ("--by", "random", "--seed", n) for n in range(3)},
}
MAPS = ROOT / "tests/golden/maps/minilm.safetensors"
PRETRAINED = "7_pretrained"
OF_PACKAGE = ("8_heads_of_a_gpt2", "9_dcmha_in_nanogpt")
SMOLLM2 = ROOT / "configs/data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = ROOT / "configs/data/minilm"
SHAKESPEARE = ROOT / "configs/data/tinyshakespeare.txt"
DRAWS = 5  # of heads at random
SENTENCES = ("The cat sits on the mat.", "A dog plays in the park.", "The stock market fell sharply today.",
             "Investors were worried about inflation.", "She plays the violin beautifully.",
             "He listens to classical music.", "The new phone has a great camera.",
             "Water boils at one hundred degrees.")
# What --small sets: seconds instead of minutes, and nothing is learned.
SMALL = (
    "train.steps=40 train.warmup=4 train.eval_every=20 train.eval_batches=1 train.eval_batch=8 "
    "train.checkpoint.every=40 model.layers=2 model.d_model=16 "
    "log.every=5 log.stats_every=10 log.attention.every=20 log.attention.probes=2"
).split()
SMALL_WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "acht": "eight"}


def small_settings(config, out):
    """Of one config. Instead of Multi30k, which the repository does not hold, numbers backwards."""
    if config == "mnist_vit_mha":
        return [*SMALL, "train.batch=4", "data={kind: digits}", "model.patch=4"]
    if config != "multi30k_mha":
        return [*SMALL, "train.batch=4", "data.context=24"]
    source, target = out / "pairs.de", out / "pairs.en"
    lines = list(itertools.product(SMALL_WORDS, repeat=3))
    source.write_text("".join(f"{' '.join(line)} .\n" for line in lines))
    target.write_text("".join(f"{' '.join(SMALL_WORDS[word] for word in line[::-1])} .\n"
                              for line in lines))
    texts = [f"data.{split}source={source}" for split in ("", "validation_", "test_")]
    texts += [f"data.{split}target={target}" for split in ("", "validation_", "test_")]
    return [*SMALL, *texts, "data.context=8", "train.max_positions=320"]



class Bench:
    """Runs the program; all that it makes goes into one folder."""

    def __init__(self, arguments):
        self.program = arguments.program
        self.out = arguments.out
        self.small = arguments.small
        self.settings = [*arguments.set, f"train.threads={arguments.threads}"]
        self.measured = ["--threads", arguments.threads, *(["--batches", 2] * arguments.small)]

    def headlab(self, command, *options):
        """What one command prints, as JSON."""
        return headlab(self.program, command, *options)

    def say(self, text):
        print(f"make: {text}", file=sys.stderr, flush=True)

    def settings_of(self, config):
        small = small_settings(config, self.out) if self.small else []
        return [*small, *self.settings]

    def train(self, configs, seeds, jobs):
        """Run directories by config, of the first seed."""
        first = {}
        for config in configs:  # settings are each one's own, and the first that is wrong ends it
            runs = trained(self.program, [config], seeds, self.settings_of(config), self.out, jobs)
            for seed in seeds:
                if len(list(self.out.glob(f"{config}/*-s{seed}"))) > 1:
                    raise RuntimeError(f"make: {self.out / config} holds several runs of seed {seed}, "
                                       "and the notebooks cannot choose; --out names another folder")
            first[config] = runs[config, FIRST_SEED]
        return first

    def measure(self, config, run):
        """Analyzes and ablates a run, where it lies; some are pruned, too."""
        self.say(config)
        self.headlab("analyze", run, "--maps", MAPS_OF.get(config, 1), *self.measured)
        ablation = self.headlab("ablate", run, *self.measured)
        if config in PRUNED:
            self.prune(run, config, rounds=len(ablation["removed"]))

    def prune(self, run, config, rounds):
        """Head by head until none is left, in every order."""
        for name, order in ORDERS.items():
            self.say(f"{config}, pruned: {name}")
            pruned = fresh_run(self.out / "pruned" / config / name)
            options = [*order, "--fraction", 1, "--rounds", rounds, "--out", pruned]
            self.headlab("prune", run, *options, *self.measured)

    def analyze_maps(self):
        """The maps of a pretrained encoder."""
        folder = self.out / "minilm"
        folder.mkdir(exist_ok=True)
        options = ["--maps", 8, "--threads", self.measured[1], "--out", folder / "analysis.h5"]
        self.headlab("analyze", MAPS, *options)


    def imported(self, name, model):
        run = fresh_run(self.out / "pretrained" / name)
        self.say(f"{name}, imported")
        self.headlab("import", model, "--out", run)
        return run

    def smollm2(self):
        """A text of words that do not belong together, said twice; without the heads that look at what
        came after the first time, and without as many of the others."""
        run = self.imported("smollm2", SMOLLM2)
        words = sorted(set(re.findall(r"\b[a-z]{3,8}\b", SHAKESPEARE.read_text())))
        draw = random.Random(1)
        text = self.out / "pretrained/twice.txt"
        text.write_text(" ".join(draw.choices(words, k=6 if self.small else 24) * 2))
        given = ["--text", text, "--context", 128, *self.measured[:2]]
        self.headlab("analyze", run, *given, "--batch", 1, "--maps", 1, "--out", run / "analysis.h5")
        with h5py.File(run / "analysis.h5") as file:
            scores = file["analysis/self/induction_repeated"][()]
        order = [f"{n // scores.shape[1]}:{n % scores.shape[1]}" for n in (-scores).argsort(axis=None)]
        cuts = {"induction": order[:4]}
        cuts |= {f"random_{n}": draw.sample(order[4:], 4) for n in range(1 if self.small else DRAWS)}
        for name, heads in cuts.items():
            self.prune_to(run, f"smollm2_{name}", "--heads", *heads, "--bench-batch", 1, *given)

    def minilm(self, treebank):
        run = self.imported("minilm", MINILM)
        sentences = self.out / "pretrained/sentences.txt"
        sentences.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
        given = ["--text", sentences, *self.measured[:2]]
        self.headlab("analyze", run, "--treebank", treebank, *given, "--out", run / "analysis.h5")
        self.prune_to(run, "minilm_cut", "--fraction", 0.3, "--slice", "--bench-batch", 1, *given)

    def prune_to(self, run, name, *options):
        self.say(name)
        cut = fresh_run(self.out / "pretrained" / name)
        self.headlab("prune", run, *options, "--out", cut)


def lacks_for_pretrained(arguments):
    """What the seventh notebook is left out for, or nothing."""
    lacks = [f"{name} (scripts/data {name})" for name, model in (("smollm2", SMOLLM2), ("minilm", MINILM))
             if not model.exists()]
    return lacks + ["a treebank (--treebank FILE)"] * (arguments.treebank is None)


def make_runs(arguments):
    bench = Bench(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    runs = bench.train(["induction_mha", *HOSTS], [FIRST_SEED], arguments.jobs)
    runs |= bench.train([f"char_{kind}" for kind in VARIANTS], seeds, arguments.jobs)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:  # the work is elsewhere
        futures = [pool.submit(bench.measure, *of_run) for of_run in runs.items()]
        try:
            for done in futures:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    bench.analyze_maps()
    if lacks := lacks_for_pretrained(arguments):
        bench.say(f"{PRETRAINED} is left out, for want of {', '.join(lacks)}")
        return
    bench.smollm2()
    bench.minilm(arguments.treebank.absolute())


@functools.cache
def paths_of_package():
    """Where the environment that .ci/python makes finds packages; none where it was not made."""
    python = ROOT / ".deps/venv-python/bin/python"
    if not python.exists():
        return []
    code = "import json, headlab; from sys import path, version_info; print(json.dumps([list(version_info[:2]), path]))"
    version, paths = json.loads(subprocess.run([python, "-P", "-c", code], check=True, capture_output=True).stdout)
    if version != list(sys.version_info[:2]):
        raise RuntimeError(f"make: .deps/venv-python has Python {version}, this is another: {sys.version}")
    return [path for path in paths if "-packages" in path or path.startswith(str(ROOT))]


def execute(path, runs):
    """The notebook at `path` with the outputs that it has over the folder `runs`.

    By the Python that runs this, with no trace in the user's home. Raises CellExecutionError,
    which shows the cell, where one fails.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            "HEADLAB_RUNS": str(pathlib.Path(runs).resolve()),
            "PYTHONPATH": ":".join([str(ROOT / "scripts/python")] if path.stem not in OF_PACKAGE else paths_of_package()),
            "PYTHONSAFEPATH": "1",
            "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm, of transformers
            "IPYTHONDIR": scratch,
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        kernel = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # none but this Python's
            connection_file=str(pathlib.Path(scratch) / "kernel.json"),
            transport="ipc",  # no port that others on this machine could reach
        )
        client = nbclient.NotebookClient(
            notebook, km=kernel, timeout=300, record_timing=False, coalesce_streams=True,
            resources={"metadata": {"path": str(HERE)}})
        client.execute(cleanup_kc=True, env={**os.environ, **environment})
    notebook.metadata["headlab"] = {"executed": fingerprint(notebook)}
    return notebook


def fingerprint(notebook):
    """Of the text and code of its cells: outputs that are kept belong to this."""
    sources = "\n".join(cell.source for cell in notebook.cells)
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path,
                        help="folder of the runs (default: runs/notebooks, runs/notebooks_small)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each of them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="an override of the configs")
    parser.add_argument("--treebank", type=pathlib.Path, metavar="FILE",
                        help="CoNLL-U that the heads of a published model are held against")
    parser.add_argument("--small", action="store_true",
                        help="tiny runs, to see that all works; the notebooks stay as they are")
    parser.add_argument("--runs-only", action="store_true", help="execute no notebook")
    parser.add_argument("--program", help="the program (default: scripts/headlab)")
    arguments = parser.parse_args()
    usual = ROOT / ("runs/notebooks_small" if arguments.small else "runs/notebooks")
    arguments.out = (arguments.out or usual).absolute()
    make_runs(arguments)
    for path in [] if arguments.runs_only else sorted(HERE.glob("*.ipynb")):
        if path.stem == PRETRAINED and lacks_for_pretrained(arguments):
            continue
        if path.stem in OF_PACKAGE and not paths_of_package():
            print(f"make: {path.name} is left out, for want of .deps/venv-python (.ci/python)", file=sys.stderr)
            continue
        print(f"make: {path.name}", file=sys.stderr, flush=True)
        executed = execute(path, arguments.out)
        if not arguments.small:
            nbformat.write(executed, path)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
