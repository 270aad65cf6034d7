"""Heads of two published models, from import to the cut model: the tables of docs/pretrained.md.

    scripts/studies/pretrained [induction] [sentences] [--out runs/study_pretrained] [--draws 10]

induction: SmolLM2 (scripts/data smollm2). Its heads by the induction score; the loss on repeated random tokens
without those of highest score, and without as many drawn at random, --draws times.
sentences: MiniLM (scripts/data minilm). How alike eight sentences are before and after pruning.
"""

import json
import random
import statistics

import h5py
import numpy as np
from safetensors.numpy import load_file, save_file

import study
from headlab_program import ROOT, markdown, said

DATA = ROOT / "configs/data"
SHORT = "Heads of a trained model are looked at, and then some of them are taken away. " * 3
SENTENCES = ("The cat sits on the mat.", "A dog plays in the park.", "The stock market fell sharply today.",
             "Investors were worried about inflation.", "She plays the violin beautifully.",
             "He listens to classical music.", "The new phone has a great camera.",
             "Water boils at one hundred degrees.")
RANDOM_TOKENS, EXAMPLES, AT_A_TIME = 32, 32, 4


def forward(bench, run, arrays):
    """What `forward` prints of a batch of whole numbers, and the arrays that the model makes of it."""
    given, made = bench.out / "in.safetensors", bench.out / "out.safetensors"
    save_file({name: np.ascontiguousarray(array, dtype=np.int64) for name, array in arrays.items()}, given)
    return said(bench.arguments.program, "forward", run, given, "--out", made, *bench.threads), load_file(made)


def imported(bench, name, model):
    run = bench.out / name
    if not run.exists():
        bench.headlab("import", model, "--out", run)
    return run


def repeated_loss(bench, run, vocabulary):
    """Nat a token, over the second of two equal halves of random tokens behind the first id."""
    draw = np.random.default_rng(1)
    losses = []
    for _ in range(EXAMPLES // AT_A_TIME):
        half = draw.integers(20, vocabulary, (AT_A_TIME, RANDOM_TOKENS))
        ids = np.concatenate([np.ones((AT_A_TIME, 1), int), half, half], axis=1)
        targets = np.full_like(ids, -100)
        targets[:, RANDOM_TOKENS + 1:-1] = ids[:, RANDOM_TOKENS + 2:]
        printed, _ = forward(bench, run, {"in.ids": ids, "in.targets": targets})
        losses.append(float(printed.split()[1]))
    return statistics.fmean(losses)


def induction_scores(bench, run, text):
    """(layer, head)"""
    scores = bench.out / "induction.h5"
    bench.headlab("analyze", run, *text, "--batch", 1, "--stats", "induction_repeated", "--out", scores, *bench.threads)
    with h5py.File(scores) as file:
        return file["analysis/self/induction_repeated"][()]


def induction(bench):
    run = imported(bench, "smollm2", DATA / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    text = ["--text", SHORT, "--context", 16]
    score = induction_scores(bench, run, text)
    places = [divmod(int(n), score.shape[1]) for n in np.argsort(-score, axis=None)]
    print(markdown(["head", "mean weight on the token behind the earlier one"],
                         [[f"{layer}:{head}", f"{score[layer, head]:.2f}"] for layer, head in places[:8]]))
    vocabulary = json.loads((run / "data.json").read_text())["shape"]["vocabulary"]

    def repeated(name, model):
        loss = repeated_loss(bench, model, vocabulary)
        study.say(f"{name}: {loss:.3f}")
        return loss

    def without(name, heads):
        """The loss on repeated tokens, and those on text of the whole model and of what is left of it."""
        left = bench.fresh("without")
        rounds = bench.headlab("prune", run, "--heads", *heads, *text, "--out", left, "--bench-batch", 1,
                               *bench.threads)["rounds"]
        return repeated(name, left), rounds[0]["loss"], rounds[-1]["loss"]

    order = [f"{layer}:{head}" for layer, head in places]
    best, others = order[:4], order[4:]
    draw = random.Random(1)
    loss, whole_on_text, on_text = without("the four of highest score", best)
    rows = [["no head", f"{repeated('no head', run):.2f}", f"{whole_on_text:.2f}"],
            [f"the four of highest score ({', '.join(best)})", f"{loss:.2f}", f"{on_text:.2f}"]]
    drawn = [without("four at random", draw.sample(others, 4)) for _ in range(bench.arguments.draws)]
    rows.append([f"four of the others, {len(drawn)} draws", *(
        f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        for values in ([one[0] for one in drawn], [one[2] for one in drawn]))])
    print(markdown(["without", "loss on the second half [nat]", "loss on text [nat]"], rows), end="")


def pieces(word, ids):
    """WordPiece of one word in lower case: the longest pieces from the left."""
    found, begin = [], 0
    while begin < len(word):
        end = next(end for end in range(len(word), begin, -1) if ("##" if begin else "") + word[begin:end] in ids)
        found.append(ids[("##" if begin else "") + word[begin:end]])
        begin = end
    return found


def similarities(bench, run, ids, mask):
    _, made = forward(bench, run, {"in.ids": ids, "in.mask": mask})
    embedding = made["out.embedding"]
    return embedding @ embedding.T


def sentences(bench):
    run = imported(bench, "minilm", DATA / "minilm")
    path = bench.out / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    left = bench.fresh("minilm_cut")
    report = bench.headlab("prune", run, "--fraction", 0.3, "--slice", "--text", path, "--out", left, *bench.threads)
    tokens = json.loads((run / "data.json").read_text())["tokenizer"]["tokens"]
    known = {text: n for n, text in enumerate(tokens)}
    words = [[known["[CLS]"], *(piece for word in line.lower().replace(".", " .").split()
                                for piece in pieces(word, known)), known["[SEP]"]] for line in SENTENCES]
    ids = np.array([line + [0] * (max(map(len, words)) - len(line)) for line in words])
    mask = np.array([[1] * len(line) + [0] * (ids.shape[1] - len(line)) for line in words])
    whole, cut = (similarities(bench, model, ids, mask) for model in (run, left))
    first, last = report["rounds"][0], report["rounds"][-1]
    print(f"{first['kept']} heads -> {last['kept']}, {first['parameters']:,} parameters -> "
          f"{last['parameters']:,}; 1 - cosine, cut against whole: {last['distance']:.4f}\n")
    rows = [[f"{n + 1} {line}", *(f"{whole[n, m]:.2f}" if m < n else f"*{cut[n, m]:.2f}*" if m > n else ""
                                  for m in range(len(SENTENCES)))] for n, line in enumerate(SENTENCES)]
    print(markdown([None, *range(1, len(SENTENCES) + 1)], rows), end="")


PARTS = {"induction": induction, "sentences": sentences}


def main():
    parser = study.parser_of(__doc__, "runs/study_pretrained", threads=1)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--draws", type=int, default=10)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    bench = study.Bench(arguments)
    print(f"{bench.heading()}, threads: {arguments.threads}\n")
    for part in arguments.parts:
        PARTS[part](bench)
        print()


if __name__ == "__main__":
    study.run(main)
