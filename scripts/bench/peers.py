"""A layer of plain heads in Python's torch, timed by turns with headlab's own: `headlab bench --peers` runs this.

It answers lines of JSON: a question on stdin, an answer on stdout. Weights, inputs and the output that the layer
must give come from a safetensors file that the program has written. A layer is timed as the program times its own
(experiments/benchmarks/turns.cpp): the shortest of the passes that fit into a turn, the first left out.
"""

import json
import logging
import math
import os
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


def eager(q, k, v, causal):
    """With the whole map in memory."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # [B,H,T,S]
    if causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(unseen, -math.inf)
    return scores.softmax(-1) @ v


def sdpa(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def flex(q, k, v, causal):
    return flex_attention(q, k, v, block_mask=block_mask(q.shape[-2], k.shape[-2], q.device.type) if causal else None)


def block_mask(queries, keys, device):
    if (queries, keys) not in block_masks:
        block_masks[queries, keys] = create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys, device=device)
    return block_masks[queries, keys]


ATTENTION = {"eager": eager, "sdpa": sdpa, "compile": sdpa, "flex": flex}  # compile: torch.compile of the whole layer
block_masks = {}


def make_layer(attend, heads, causal):
    """x, memory [B,T,D] and the four weights [D,D] -> y [B,T,D]"""
    def layer(x, memory, q, k, v, o):
        parts = [F.linear(source, weight).unflatten(2, (heads, -1)).transpose(1, 2)  # [B,H,T,d]
                 for source, weight in ((x, q), (memory, k), (memory, v))]
        return F.linear(attend(*parts, causal).transpose(1, 2).flatten(2), o)
    return layer


class Layer:
    def __init__(self, peer, file, heads, causal, bf16, device):
        self.peer, self.file, self.bf16, self.device = peer, file, bf16, torch.device(device)
        tensors = {name: tensor.to(self.device) for name, tensor in read_tensors(file).items()}
        self.expected = tensors["y"]
        self.x = tensors["x"].requires_grad_()
        self.memory = tensors["memory"].requires_grad_() if "memory" in tensors else self.x
        self.weights = [tensors[f"{name}.weight"].requires_grad_() for name in "qkvo"]
        self.cotangent = torch.randn_like(self.expected)
        self.layer = make_layer(ATTENTION[peer], heads, causal)
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
    return {"torch": torch.__version__, "peers": list(ATTENTION)}


def answer(question, layers):
    do, number = question.pop("do"), question.pop("layer", None)
    if do == "begin":
        return begin(**question)
    if do == "layer":
        if any(layer.file != question["file"] for layer in layers.values()):
            layers.clear()  # those of the shape before
        layers[number] = Layer(**question)
        return {}
    if do == "try":
        reason = layers[number].reason(question["pass"])
        return {"reason": reason} if reason else {}
    return {"seconds": layers[number].turn(question["pass"], question["seconds"])}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer
    layers = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), layers)), file=answers, flush=True)


if __name__ == "__main__":
    main()
