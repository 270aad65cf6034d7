"""Heads of two published models, from import to the cut model: the tables of docs/pretrained.md.

    scripts/studies/pretrained [induction] [sentences] [--out runs/study_pretrained] [--draws 10]

induction: SmolLM2 (scripts/data smollm2). Its heads by the induction score; the loss on repeated random tokens
without those of highest score, and without as many drawn at random, --draws times.
sentences: MiniLM (scripts/data minilm). How alike eight sentences are before and after pruning.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys

import h5py
import numpy as np

from headlab_program import ROOT, ProgramError
from study import Bench

DATA = ROOT / "configs/data"
SHORT = "Heads of a trained model are looked at, and then some of them are taken away. " * 3
SENTENCES = ("The cat sits on the mat.", "A dog plays in the park.", "The stock market fell sharply today.",
             "Investors were worried about inflation.", "She plays the violin beautifully.",
             "He listens to classical music.", "The new phone has a great camera.",
             "Water boils at one hundred degrees.")
RANDOM_TOKENS, EXAMPLES, AT_A_TIME = 32, 32, 4


def write_safetensors(path, arrays):
    header, data = {}, b""
    for name, array in arrays.items():
        array = np.ascontiguousarray(array, dtype="<i8")
        header[name] = {"dtype": "I64", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path, name):
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    entry = json.loads(whole[8:start])[name]
    assert entry["dtype"] == "F32", entry["dtype"]
    begin, end = entry["data_offsets"]
    return np.frombuffer(whole[start + begin:start + end], "<f4").reshape(entry["shape"])


class Forward:
    """`forward`, which prints no JSON."""

    def __init__(self, bench):
        self.bench = bench

    def __call__(self, run, arrays):
        given, made = self.bench.out / "in.safetensors", self.bench.out / "out.safetensors"
        write_safetensors(given, arrays)
        program = self.bench.arguments.program or ROOT / "scripts/headlab"
        line = [program, "forward", run, given, "--out", made, "--threads", self.bench.arguments.threads]
        done = subprocess.run([str(word) for word in line], capture_output=True, text=True)
        if done.returncode != 0:
            raise ProgramError(done.stderr)
        return done.stdout, made


def without(bench, run, heads, *text):
    """A masked model, and what prune says of it."""
    left = bench.fresh("without")
    report = bench.headlab("prune", run, "--heads", *heads, *text, "--out", left, "--bench-batch", 1,
                           "--threads", bench.arguments.threads)
    return left, report


def imported(bench, name, model):
    run = bench.out / name
    if not run.exists():
        bench.headlab("import", model, "--out", run)
    return run


def repeated_loss(forward, run, vocabulary):
    """Nat a token, over the second of two equal halves of random tokens behind the first id."""
    draw = np.random.default_rng(1)
    losses = []
    for _ in range(EXAMPLES // AT_A_TIME):
        half = draw.integers(20, vocabulary, (AT_A_TIME, RANDOM_TOKENS))
        ids = np.concatenate([np.ones((AT_A_TIME, 1), int), half, half], axis=1)
        targets = np.full_like(ids, -100)
        targets[:, RANDOM_TOKENS + 1:-1] = ids[:, RANDOM_TOKENS + 2:]
        said, _ = forward(run, {"in.ids": ids, "in.targets": targets})
        losses.append(float(said.split()[1]))
    return statistics.fmean(losses)


def induction(bench):
    forward = Forward(bench)
    run = imported(bench, "smollm2", DATA / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    text = ["--text", SHORT, "--context", 16]
    scores = bench.out / "induction.h5"
    bench.headlab("analyze", run, *text, "--batch", 1, "--stats", "induction_repeated", "--out", scores,
                  "--threads", bench.arguments.threads)
    with h5py.File(scores) as file:
        score = file["analysis/self/induction_repeated"][()]
    order = [tuple(map(int, divmod(n, score.shape[1]))) for n in np.argsort(-score, axis=None)]
    print("| head | mean weight on the token behind the earlier one |\n|---|--:|")
    for layer, head in order[:8]:
        print(f"| {layer}:{head} | {score[layer, head]:.2f} |")
    vocabulary = json.loads((run / "data.json").read_text())["shape"]["vocabulary"]
    print("\n| without | loss on the second half [nat] | loss on text [nat] |\n|---|--:|--:|")

    def row(name, heads):
        left, report = without(bench, run, heads, *text) if heads else (run, None)
        loss = repeated_loss(forward, left, vocabulary)
        before = report["loss_before"] if report and "loss_before" in report else None
        bench.say(f"{name}: {loss:.3f}")
        return loss, report and report["rounds"][-1]["loss"], report and report["rounds"][0]["loss"], before

    best = order[:4]
    found = row("the four of highest score", [f"{layer}:{head}" for layer, head in best])
    print(f"| no head | {row('no head', None)[0]:.2f} | {found[2]:.2f} |")
    names = ", ".join(f"{layer}:{head}" for layer, head in best)
    print(f"| the four of highest score ({names}) | {found[0]:.2f} | {found[1]:.2f} |")
    draw = random.Random(1)
    others = [row("four at random", [f"{layer}:{head}" for layer, head in draw.sample(order[4:], 4)])
              for _ in range(bench.arguments.draws)]
    repeated, on_text = [one[0] for one in others], [one[1] for one in others]
    print(f"| four of the others, {len(others)} draws | {statistics.fmean(repeated):.2f} "
          f"({min(repeated):.2f} to {max(repeated):.2f}) | {statistics.fmean(on_text):.2f} "
          f"({min(on_text):.2f} to {max(on_text):.2f}) |")


def pieces(word, ids):
    """WordPiece of one word in lower case: the longest pieces from the left."""
    found, begin = [], 0
    while begin < len(word):
        end = next(end for end in range(len(word), begin, -1) if ("##" if begin else "") + word[begin:end] in ids)
        found.append(ids[("##" if begin else "") + word[begin:end]])
        begin = end
    return found


def similarities(forward, run, ids, mask):
    _, made = forward(run, {"in.ids": ids, "in.mask": mask})
    embedding = read_safetensors(made, "out.embedding")
    return embedding @ embedding.T


def sentences(bench):
    forward = Forward(bench)
    run = imported(bench, "minilm", DATA / "minilm")
    path = bench.out / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    left = bench.fresh("minilm_cut")
    report = bench.headlab("prune", run, "--fraction", 0.3, "--slice", "--text", path, "--out", left,
                           "--threads", bench.arguments.threads)
    tokens = json.loads((run / "data.json").read_text())["tokenizer"]["tokens"]
    known = {text: n for n, text in enumerate(tokens)}
    words = [[known["[CLS]"], *(piece for word in line.lower().replace(".", " .").split() for piece in pieces(word, known)),
              known["[SEP]"]] for line in SENTENCES]
    ids = np.array([line + [0] * (max(map(len, words)) - len(line)) for line in words])
    mask = np.array([[1] * len(line) + [0] * (ids.shape[1] - len(line)) for line in words])
    whole, cut = (similarities(forward, model, ids, mask) for model in (run, left))
    rounds = report["rounds"]
    print(f"{rounds[0]['kept']} heads -> {rounds[-1]['kept']}, {rounds[0]['parameters']:,} parameters -> "
          f"{rounds[-1]['parameters']:,}; 1 - cosine, cut against whole: {rounds[-1]['distance']:.4f}\n")
    print("| | " + " | ".join(str(n + 1) for n in range(len(SENTENCES))) + " |")
    print("|---" + "|--:" * len(SENTENCES) + "|")
    for n, line in enumerate(SENTENCES):
        cells = [f"{whole[n, m]:.2f}" if m < n else f"*{cut[n, m]:.2f}*" if m > n else "" for m in range(len(words))]
        print(f"| {n + 1} {line} | " + " | ".join(cells) + " |")


PARTS = {"induction": induction, "sentences": sentences}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/study_pretrained")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--program")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    arguments.batches = 0
    bench = Bench(arguments)
    print(f"{bench.when()}, threads: {arguments.threads}\n")
    for part in arguments.parts:
        PARTS[part](bench)
        print()


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(str(error))
