"""Layers of heads in Python's torch, timed by turns with headlab's own: `headlab bench --peers` runs this.

It answers lines of JSON: a question on stdin, an answer on stdout. Weights, inputs and the output that the layer
must give come from a safetensors file that the program has written. A layer is timed as the program times its own
(experiments/benchmarks/turns.cpp): the shortest of the passes that fit into a turn, the first left out.
"""

import json
import logging
import math
import os
import signal
import struct
import sys
import time

BOUNDS = {False: 1e-4, True: 5e-2}  # of the largest output, in float32 and by autocast in bfloat16


def read_tensors(path):
    """The float32 tensors of a safetensors file; the safetensors package may not be there."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).view(entry["shape"])
    return tensors


def seen(scores, causal):
    """bool [T,S]: the keys of each query."""
    every = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    return every.tril() if causal else every


def scaled_scores(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [B,H,T,S]


def softmax(scores, causal):
    return scores.masked_fill(~seen(scores, causal), -math.inf).softmax(-1)


def eager(q, k, v, causal):
    """With the whole map in memory."""
    return softmax(scaled_scores(q, k), causal) @ v


def sdpa(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def flex(q, k, v, causal):
    return flex_attention(q, k, v, block_mask=block_mask(q.shape[-2], k.shape[-2], q.device.type) if causal else None)


def block_mask(queries, keys, device):
    if (queries, keys) not in block_masks:
        block_masks[queries, keys] = create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys,
                                                       device=device)
    return block_masks[queries, keys]


def sigmoid(q, k, v, causal):
    """arXiv 2409.04431, equation (3), with offset -ln S."""
    scores = scaled_scores(q, k)
    weights = torch.sigmoid(scores - math.log(scores.shape[-1]))
    return weights.masked_fill(~seen(scores, causal), 0) @ v


def entmax(q, k, v, causal):
    """alpha 1.5, by sorting: arXiv 1905.05702, algorithm 2."""
    scores = scaled_scores(q, k).float().masked_fill(~seen(q @ k.transpose(-2, -1), causal), -1e4) / 2
    scores = scores - scores.amax(-1, keepdim=True)
    ordered = scores.sort(-1, descending=True).values
    count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    mean, square = ordered.cumsum(-1) / count, ordered.square().cumsum(-1) / count
    threshold = mean - ((1 / count) - (square - mean.square())).clamp_min(0).sqrt()
    support = (threshold <= ordered).sum(-1, keepdim=True)
    return (scores - threshold.gather(-1, support - 1)).clamp_min(0).square().to(v.dtype) @ v


def talking(q, k, v, causal, pre, post):
    """arXiv 2003.02436, section 4: scores are mixed across heads before the softmax, weights after it."""
    weights = softmax(torch.einsum("bhts,hg->bgts", scaled_scores(q, k), pre), causal)
    return torch.einsum("bhts,hg->bgts", weights, post) @ v


# By kind and peer; "compile" is torch.compile of the whole layer.
ATTENTION = {"mha": {"eager": eager, "sdpa": sdpa, "compile": sdpa, "flex": flex},
             "sigmoid": {"eager": sigmoid, "compile": sigmoid},
             "entmax": {"eager": entmax, "compile": entmax},
             "talking": {"eager": talking, "compile": talking}}
MORE_WEIGHTS = {"talking": ("pre", "post")}  # beside the projections
block_masks = {}


def make_layer(attend, heads, causal):
    """x, memory [B,T,D], the four weights [D,D] and more of the kind -> y [B,T,D]"""
    def layer(x, memory, q, k, v, o, *more):
        parts = [F.linear(source, weight).unflatten(2, (heads, -1)).transpose(1, 2)  # [B,H,T,d]
                 for source, weight in ((x, q), (memory, k), (memory, v))]
        return F.linear(attend(*parts, causal, *more).transpose(1, 2).flatten(2), o)
    return layer


class Layer:
    def __init__(self, kind, peer, file, heads, causal, bf16, device):
        self.peer, self.bf16, self.device = peer, bf16, torch.device(device)
        tensors = {name: tensor.to(self.device) for name, tensor in read_tensors(file).items()}
        self.expected = tensors["y"]
        self.x = tensors["x"].requires_grad_()
        self.memory = tensors["memory"].requires_grad_() if "memory" in tensors else self.x
        names = [*(f"{name}.weight" for name in "qkvo"), *MORE_WEIGHTS.get(kind, ())]
        self.weights = [tensors[name].requires_grad_() for name in names]
        self.cotangent = torch.randn_like(self.expected)
        self.layer = make_layer(ATTENTION[kind][peer], heads, causal)
        if peer in ("compile", "flex"):
            self.layer = torch.compile(self.layer, fullgraph=True, dynamic=False)

    def output(self):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return self.layer(self.x, self.memory, *self.weights)

    def forward(self):
        with torch.no_grad():
            return self.output()

    def both(self):
        y = self.output()
        y.backward(self.cotangent.to(y.dtype))
        for tensor in (self.x, self.memory, *self.weights):
            tensor.grad = None
        return y

    def reason(self, name):
        """Why it cannot do a pass, or "": what it gives is what the program's layer gives."""
        if self.peer == "flex" and name == "both" and self.device.type == "cpu":
            return "FlexAttention cannot train on a CPU"
        try:
            y = getattr(self, name)().detach().float()
        except Exception as error:  # what a compiler or a kernel refuses can be an exception of any kind
            return f"{type(error).__name__}: " + (str(error).strip().splitlines() or [""])[0][:200]
        differs = ((y - self.expected).abs().max() / self.expected.abs().max()).item()
        if not differs <= BOUNDS[self.bf16]:
            return f"Python computes other numbers: they differ by {differs:.2g} of the largest output"
        return ""

    def timed(self, name):
        """Seconds of a pass."""
        run = getattr(self, name)
        if self.device.type != "cuda":
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def turn(self, name, seconds):
        self.timed(name)
        best, start, passes = math.inf, time.perf_counter(), 0
        while passes < 2 or time.perf_counter() - start < seconds:
            best, passes = min(best, self.timed(name)), passes + 1
        return best


def begin(threads):
    """Imports torch, which takes seconds."""
    global torch, F, flex_attention, create_block_mask
    logging.disable(logging.WARNING)  # what is not installed here, and not needed
    try:
        import torch
        import torch.nn.functional as F
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:
        return {"reason": f"has no torch ({error})"}
    torch.set_num_threads(threads)
    torch._dynamo.config.recompile_limit = 64  # one function, of several shapes and peers
    torch.set_flush_denormal(True)  # as the program does
    return {"torch": torch.__version__, "peers": {kind: list(peers) for kind, peers in ATTENTION.items()}}


def answer(question, layers):
    do, number = question.pop("do"), question.pop("layer", None)
    if do == "begin":
        return begin(**question)
    if do == "layer":
        layers[number] = Layer(**question)
        return {}
    if do == "drop":
        del layers[number]
        return {}
    if do == "try":
        reason = layers[number].reason(question["pass"])
        return {"reason": reason} if reason else {}
    return {"seconds": layers[number].turn(question["pass"], question["seconds"])}


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program tells what was interrupted
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer
    layers = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), layers)), file=answers, flush=True)


if __name__ == "__main__":
    main()
