"""Decoding with latent heads (mla): the latents absorbed, beside keys and values made of them.

    scripts/bench/latent [--prompt 2048] [--tokens 64] [--pairs 5] [--threads 1] [--program build/release/headlab]

Milliseconds a token behind a prompt, by the difference of two lengths, so that neither loading nor the
prompt counts. The two take turns: a path that takes heads (--backend sdpa) has them expanded at each step.
Two layers, 512 wide, eight heads, untrained; both must write the same text.
"""

import argparse
import statistics
import sys
import tempfile
import time

from headlab_program import ROOT, ProgramError, headlab, said

SIZE = ("model.layers=2", "model.d_model=512", "model.heads=8")
SHORT = 8  # tokens


def untrained(arguments, out):
    settings = [*SIZE, f"data.context={2 * arguments.prompt}", "train.steps=1", "train.batch=1",
                "train.eval_batches=1", "log.stats_every=0", "log.attention.every=0"]
    return headlab(arguments.program, "run", ROOT / "configs/char_mla.yaml", *settings, "--out", out)["run"]


def written(arguments, run, prompt, backend, tokens):
    """Seconds, and the text."""
    start = time.perf_counter()
    text = said(arguments.program, "generate", run, "--prompt", prompt, "--temperature", 0, "--tokens", tokens,
                "--backend", backend, "--threads", arguments.threads)
    return time.perf_counter() - start, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=2048, help="characters (default: 2048)")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--program", default=str(ROOT / "build/release/headlab"))
    arguments = parser.parse_args()
    prompt = (ROOT / "configs/data/tinyshakespeare.txt").read_text()[:arguments.prompt]
    with tempfile.TemporaryDirectory() as out:
        run = untrained(arguments, out)
        ratios, times = [], {"eager": [], "sdpa": []}
        for _ in range(arguments.pairs):
            texts = set()
            for backend in times:
                (short, _), (long, text) = (written(arguments, run, prompt, backend, tokens)
                                            for tokens in (SHORT, SHORT + arguments.tokens))
                times[backend].append(1e3 * (long - short) / arguments.tokens)
                texts.add(text)
            if len(texts) != 1:
                raise SystemExit("the two do not write the same text")
            ratios.append(times["sdpa"][-1] / times["eager"][-1])
    for name, backend in (("absorbed", "eager"), ("expanded", "sdpa")):
        print(f"{name}: {statistics.median(times[backend]):.2f} ms a token (median of {arguments.pairs})")
    print(f"expanded / absorbed: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(str(error))
