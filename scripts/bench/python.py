"""The peer of headlab's training step: the same decoder in Python's torch, on the same libtorch.

    scripts/bench/python [--threads N] [--steps N] [--repeats N] [--json]   times both, in turns
    scripts/bench/python --device cuda                                      on a GPU, at its size
    scripts/bench/python --peer-only                                        times Python alone
    scripts/bench/python --check tests/golden/nanogpt/train.safetensors     is the peer right?

Milliseconds per training step (windows, forward, backward, clipping, AdamW) of nanoGPT's CPU
configuration, configs/char_mha.yaml: L4 H4 D128 T64 B12, dropout 0, fp32, tinyshakespeare; with
--device cuda of the size of its GPU configuration: L6 H6 D384 T256 B64, bf16. One
measurement is the mean of EVERY steps and one reading of the loss, as headlab logs it. The variants
take turns, so that the machine's noise meets all of them; only ratios of one run mean something.
"python" has torch's fused AdamW, "python, unfused" the one that nanoGPT runs on a CPU; the last
ratio is the price of statistics at every step.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
EVERY = 10  # steps of one measurement
WARMUP = 20  # steps before the first one, in every turn
NEVER = 10**9
Turn = Callable[[int], list[float]]  # trains for so many measurements; their seconds per step

# The keys are nanoGPT's, as in the training files.
CONFIG = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 65}
TRAIN = {"learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 100, "lr_decay_iters": 2000}
TRAIN |= {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "grad_clip": 1.0}
BATCH = 12
# The size of nanoGPT's config/train_shakespeare_char.py.
GPU_CONFIG = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "vocab_size": 65}
GPU_BATCH = 64


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = (part.unflatten(2, (self.heads, -1)) for part in self.qkv(x).chunk(3, dim=2))
        q, k, v = (part.transpose(1, 2) for part in parts)  # [B,H,T,d]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))  # [B,T,D]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = Attention(width, heads)
        up, down = (nn.Linear(*d, bias=False) for d in ((width, 4 * width), (4 * width, width)))
        self.mlp = nn.Sequential(OrderedDict(up=up, gelu=nn.GELU(), down=down))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        width, layers = config["n_embd"], config["n_layer"]
        token = nn.Embedding(config["vocab_size"], width)  # the output head, too
        position = nn.Embedding(config["block_size"], width)
        self.embed = nn.ModuleDict({"token": token, "position": position})
        self.blocks = nn.ModuleList(Block(width, config["n_head"]) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                writes = name.endswith((".o.weight", ".down.weight"))  # into the residual stream
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers if writes else 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed["token"](ids) + self.embed["position"].weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed["token"].weight)  # [B,T,V]


class Trainer:
    def __init__(self, model: Decoder, config: dict, fused: bool) -> None:
        self.model, self.config, self.steps_done = model, config, 0
        matrices = [w for w in model.parameters() if w.dim() > 1]
        vectors = [w for w in model.parameters() if w.dim() <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        betas, decay = (config["beta1"], config["beta2"]), config["weight_decay"]
        self.optimizer = torch.optim.AdamW(groups, betas=betas, weight_decay=decay, fused=fused)

    def rate(self) -> float:
        top, floor = self.config["learning_rate"], self.config["min_lr"]
        warmup, decay = self.config["warmup_iters"], self.config["lr_decay_iters"]
        if self.steps_done < warmup:
            return top * (self.steps_done + 1) / (warmup + 1)
        done = min(1.0, (self.steps_done - warmup) / (decay - warmup))
        return floor + 0.5 * (1 + math.cos(math.pi * done)) * (top - floor)

    def backward(self, ids: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
            loss = F.cross_entropy(self.model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        return loss.detach()

    def update(self) -> Tensor:
        """Returns the gradients' norm before clipping."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config["grad_clip"])
        self.optimizer.step()
        self.steps_done += 1
        return norm


def named(model: Decoder, prefix: str, gradients: bool = False) -> dict[str, Tensor]:
    """Weights or gradients as training files name them: q, k and v are tensors of their own."""
    result = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.grad if gradients else parameter.data
        parts = zip("qkv", tensor.chunk(3), strict=True) if ".qkv." in name else [("qkv", tensor)]
        result |= {prefix + name.replace("qkv", part): t for part, t in parts}
    return result


def replay(golden: dict[str, Tensor], metadata: dict[str, str], fused: bool) -> dict[str, Tensor]:
    """All that a training file expects, computed from its weights and batches."""
    model = Decoder(json.loads(metadata["config"]))
    for name, weight in named(model, "w.").items():
        weight.copy_(golden[name])
    trainer = Trainer(model, json.loads(metadata["train"]), fused)
    # One micro-batch a step: the peer does not accumulate.
    (ids,), (targets,) = (golden[name].unbind(1) for name in ("in.ids", "in.targets"))
    got, rows = {"out.logits.first": model(ids[0])}, []
    for step in range(len(ids)):
        loss, rate = trainer.backward(ids[step], targets[step]), trainer.rate()
        if step == 0:
            got |= {name: g.clone() for name, g in named(model, "grad.", gradients=True).items()}
        rows.append((loss, torch.tensor(rate), trainer.update()))
    columns = (torch.stack(column) for column in zip(*rows, strict=True))
    got |= zip(("out.losses", "out.lrs", "out.grad_norms"), columns, strict=True)
    return got | {"out.logits.last": model(ids[0])} | named(model, "out.w.")


def check(path: str) -> bool:
    """Prints what comes nearest its bound, in float64, and whatever exceeds it."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # more would only wait for each other at this size
    with safe_open(path, framework="pt") as file:
        golden = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    atol, rtol = float(metadata["atol"]), float(metadata["rtol"])
    passed = True
    for fused in (True, False):
        got, shares = replay(golden, metadata, fused), {}
        for name, want in golden.items():
            if name.startswith(("out.", "grad.")):
                error = (got[name] - want).abs().max()
                shares[name] = (error / (atol + rtol * want.abs().max())).item()
        failed = [name for name, share in shares.items() if not share <= 1]  # NaN fails
        print(f"fused={fused}: {len(shares)} tensors, {len(failed)} over their bounds")
        for name in failed or [max(shares, key=shares.get)]:
            print(f"  {name}: {shares[name]:.2g} of its bound")
        passed &= not failed
    return passed


def python_turn(fused: bool, ids: Tensor, device: str, compiled: bool = False) -> Turn:
    gpu = device == "cuda"
    config, batch_size = (GPU_CONFIG, GPU_BATCH) if gpu else (CONFIG, BATCH)
    windows = ids.unfold(0, config["block_size"] + 1, 1)  # [N-T,T+1], a view
    model = Decoder(config).to(device)
    trainer = Trainer(torch.compile(model) if compiled else model, TRAIN, fused)

    def turn(measurements: int) -> list[float]:
        seconds = []
        for _ in range(WARMUP // EVERY + measurements):
            start = time.perf_counter()
            for _ in range(EVERY):
                batch = windows[torch.randint(len(windows), (batch_size,))]
                if gpu:
                    batch = batch.pin_memory().to(device, non_blocking=True)
                loss = trainer.backward(batch[:, :-1], batch[:, 1:])
                trainer.update()
            loss.item()
            seconds.append((time.perf_counter() - start) / EVERY)
        return seconds[WARMUP // EVERY :]

    return turn


def headlab_turn(program: str, threads: int, stats_every: int, device: str) -> Turn:
    """Times `headlab run` by its log; evaluation and checkpoint come after the last step only."""
    settings = {"train.threads": threads, "log.every": EVERY, "log.stats_every": stats_every}
    settings |= dict.fromkeys(("train.eval_every", "train.checkpoint.every"), NEVER)
    settings |= {"log.attention.every": NEVER, "train.precision": "fp32"}
    if device == "cuda":
        settings |= {"train.precision": "bf16", "train.batch": GPU_BATCH, "train.eval_batches": 1}
        settings |= {"model.layers": 6, "model.heads": 6, "model.d_model": 384, "data.context": 256}
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    environment.pop("PYTHONPATH", None)

    def turn(measurements: int) -> list[float]:
        ends = range(WARMUP + EVERY, WARMUP + measurements * EVERY + 1, EVERY)
        overrides = [f"{key}={value}" for key, value in settings.items()]
        overrides.append(f"train.steps={ends[-1] + EVERY}")  # the last row may hold the evaluation
        with tempfile.TemporaryDirectory() as out:
            command = [program, "run", str(ROOT / "configs/char_mha.yaml"), *overrides]
            command += ["--device", device, "--out", out]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr[-2000:]}")
            (log,) = Path(out).glob("*/*/metrics.jsonl")
            rows = [json.loads(line) for line in log.read_text().splitlines()]
        wall = {row["step"]: row["wall_s"] for row in rows if "wall_s" in row}
        return [(wall[end] - wall[end - EVERY]) / EVERY for end in ends]

    return turn


def measure(arguments: argparse.Namespace) -> dict:
    text = (ROOT / "configs/data/tinyshakespeare.txt").read_text(encoding="utf-8")
    id_of = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([id_of[c] for c in text[: int(0.9 * len(text))]])
    device = arguments.device
    turns = {"python": python_turn(True, ids, device)}
    turns["python, unfused"] = python_turn(False, ids, device)
    pairs = [("python", "python, unfused")]
    if arguments.compile:
        turns["python, compiled"] = python_turn(True, ids, device, compiled=True)
        pairs += [("python, compiled", "python")]
    if not arguments.peer_only:
        program, threads = arguments.headlab, arguments.threads
        turns["headlab"] = headlab_turn(program, threads, NEVER, device)
        turns["headlab, statistics"] = headlab_turn(program, threads, 1, device)
        pairs += [("headlab", "python"), ("headlab", "python, unfused")]
        pairs += [("headlab, statistics", "headlab")]
    times: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(arguments.repeats):
        print(f"bench/python: round {repeat + 1} of {arguments.repeats}", file=sys.stderr)
        for name, turn in turns.items():
            times[name] += (1e3 * seconds for seconds in turn(arguments.steps // EVERY))
    best = {name: {"min": min(t), "median": statistics.median(t)} for name, t in times.items()}
    ratios = {f"{a} / {b}": {k: best[a][k] / best[b][k] for k in best[a]} for a, b in pairs}
    run = {key: getattr(arguments, key) for key in ("threads", "steps", "repeats")}
    machine = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return run | {"device": machine, "torch": torch.__version__, "step_ms": best, "ratios": ratios}


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        prog="scripts/bench/python",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", metavar="FILE", help="replay a training file in float64")
    parser.add_argument("--threads", type=int, default=cores, help="of every variant (all cores)")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of a turn (200)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of every variant (5)")
    parser.add_argument("--headlab", default=str(ROOT / "scripts/headlab"), help="what to time")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside, as nanoGPT does on a GPU")
    parser.add_argument("--peer-only", action="store_true", help="leave headlab out")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    if arguments.threads < 1 or arguments.repeats < 1 or arguments.steps < EVERY:
        parser.error(f"--threads and --repeats must be at least 1, --steps at least {EVERY}")
    if arguments.check and not Path(arguments.check).is_file():
        parser.error(f"no file {arguments.check}")
    torch.set_num_threads(arguments.threads)
    if arguments.check:
        return 0 if check(arguments.check) else 1
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    for unit, table in (("ms a step", "step_ms"), ("ratio", "ratios")):
        print(f"{unit:36}{'min':>9}{'median':>9}")
        for name, row in result[table].items():
            print(f"{name:36}{row['min']:9.3f}{row['median']:9.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
