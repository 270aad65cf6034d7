"""What headlab.watch costs of a training step: a GPT-2 of transformers, trained with and without it.

    scripts/bench/watch [--lengths 64,256,1024] [--threads N] [--repeats N] [--json]
    scripts/bench/watch --compile                      the model compiled by torch.compile
    scripts/bench/watch --attention eager              instead of sdpa

A step is forward, backward and AdamW of L6 H6 D384 in float32 without dropout, on random tokens, with as many
sequences as make about --tokens tokens. Three trainings of one model take turns: without a watch, with all
statistics at every step, and with all statistics at every 50th. A number is the median over the steps of all
turns. The price of every 50th step is made of its parts, since one step in 50 is too few to time: the steps of
that training that log nothing, and 1/50 of what a step costs more that does. Only ratios of one run mean
something, and nothing else should run meanwhile.

The package is taken from --package, the folder that holds headlab/ (default: build/release/python).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
LAYERS, HEADS, WIDTH, WORDS = 6, 6, 384, 1000
WARMUP = 3  # steps of a turn that are not timed
SPARSE = 50  # every so manieth step
VARIANTS = ("without", "every step", f"every {SPARSE}th")


class Training:
    def __init__(self, length: int, arguments: argparse.Namespace) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, n_positions=length, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False,
                            attn_implementation=arguments.attention)
        self.plain = GPT2LMHeadModel(config).train()
        self.model = torch.compile(self.plain) if arguments.compile else self.plain
        self.optimizer = torch.optim.AdamW(self.plain.parameters(), 1e-4, fused=True)
        self.shape = (max(1, arguments.tokens // length), length)

    def step(self) -> float:
        ids = torch.randint(0, WORDS, self.shape)
        start = time.perf_counter()
        logits = self.model(ids).logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    def turn(self, variant: str, steps: int) -> list[float]:
        """Seconds of each step. Of `every 50th` no step is among them that logs."""
        import headlab

        if variant == "without":
            return [self.step() for _ in range(WARMUP + steps)][WARMUP:]
        every = 1 if variant == "every step" else 10**6
        with tempfile.TemporaryDirectory() as out, headlab.watch(self.plain, out, every=every, statistics="all"):
            return [self.step() for _ in range(WARMUP + steps)][WARMUP:]


def measure(length: int, arguments: argparse.Namespace) -> dict:
    training = Training(length, arguments)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for variant in VARIANTS:  # what is compiled or allocated once
        training.turn(variant, 1)
    for repeat in range(arguments.repeats):
        print(f"bench/watch: T {length}, round {repeat + 1} of {arguments.repeats}", file=sys.stderr)
        for variant in VARIANTS:
            times[variant] += (1e3 * seconds for seconds in training.turn(variant, arguments.steps))
    step = {name: statistics.median(values) for name, values in times.items()}
    idle, due = (step[name] / step["without"] for name in (VARIANTS[2], VARIANTS[1]))
    return {"length": length, "sequences": training.shape[0], "step_ms": step["without"], "every_step": due,
            "steps_that_log_nothing": idle, f"every_{SPARSE}th": idle + (due - idle) / SPARSE,
            "fastest_every_step": min(times[VARIANTS[1]]) / min(times["without"]),
            "fastest_that_log_nothing": min(times[VARIANTS[2]]) / min(times["without"])}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/watch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="64,256,1024", help="T, comma-separated (64,256,1024)")
    parser.add_argument("--tokens", type=int, default=1024, help="of a step (1024)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a turn (20)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of every variant (5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(all cores)")
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--package", type=Path, default=ROOT / "build/release/python", help="where headlab/ is")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.repeats, arguments.threads, arguments.tokens) < 1:
        parser.error("--steps, --repeats, --threads and --tokens must be at least 1")
    if not list(arguments.package.glob("headlab/_C*.so")):
        parser.error(f"no package headlab in {arguments.package}")
    sys.path.insert(0, str(arguments.package))
    torch.set_num_threads(arguments.threads)
    lengths = [int(length) for length in arguments.lengths.split(",")]
    if arguments.json:
        found = [measure(length, arguments) for length in lengths]
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "lengths": found}, indent=2))
        return 0
    print(f"| T | sequences | step [ms] | every step | every {SPARSE}th | a step that logs nothing |\n"
          "|--:|--:|--:|--:|--:|--:|", flush=True)
    for length in lengths:
        row = measure(length, arguments)
        print(f"| {length} | {row['sequences']} | {row['step_ms']:.1f} | {row['every_step']:.3f} | "
              f"{row[f'every_{SPARSE}th']:.4f} | {row['steps_that_log_nothing']:.4f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
