"""Greedy decoding: headlab beside transformers' own class, on the same torch, threads, weights and type.

    scripts/bench/decode [--model configs/data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf] [--threads 1]
                         [--tokens 128] [--pairs 5] [--program build/release/headlab]

Tokens a second, by the difference of two lengths, so that neither loading nor the prompt counts. The two
take turns, each pair one after the other; float32; transformers with its cache and eager or sdpa attention,
whichever is faster here. Both must write the same tokens.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "configs/data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "Attention heads of a trained model can be taken away one by one. What is left"
SHORT = 16  # tokens


def headlab(arguments, *words):
    done = subprocess.run([arguments.program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def ours(arguments, run, tokens):
    """Seconds, and the text behind the prompt."""
    start = time.perf_counter()
    text = headlab(arguments, "generate", run, "--prompt", PROMPT, "--temperature", 0, "--tokens", tokens,
                   "--no-stop", "--threads", arguments.threads)
    return time.perf_counter() - start, text[len(PROMPT):-1]


def theirs(model, ids, tokens):
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
                             min_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return time.perf_counter() - start, out[0, ids.shape[1]:]


def per_second(measure, tokens):
    return (tokens - SHORT) / (measure(tokens)[0] - measure(SHORT)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--program", default=str(ROOT / "scripts/headlab"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as scratch:
        run, folder = pathlib.Path(scratch) / "run", pathlib.Path(scratch) / "layout"
        headlab(arguments, "import", arguments.model, "--out", run)
        headlab(arguments, "export", run, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(PROMPT, add_special_tokens=False, return_tensors="pt")["input_ids"]
        models = {kind: transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=kind,
                                                                          dtype=torch.float32).eval()
                  for kind in ("eager", "sdpa")}
        written = tokenizer.decode(theirs(models["sdpa"], ids, arguments.tokens)[1])
        same = ours(arguments, run, arguments.tokens)[1] == written
        rows = []
        for _ in range(arguments.pairs):
            row = {"headlab": per_second(lambda n: ours(arguments, run, n), arguments.tokens)}
            for kind, model in models.items():
                row[kind] = per_second(lambda n, model=model: theirs(model, ids, n), arguments.tokens)
            row["ratio"] = row["headlab"] / max(row["eager"], row["sdpa"])
            rows.append(row)
            print(json.dumps({key: round(value, 3) for key, value in row.items()}), flush=True)
    print(json.dumps({"threads": arguments.threads, "same_text": same,
                      **{key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}}))


if __name__ == "__main__":
    main()
