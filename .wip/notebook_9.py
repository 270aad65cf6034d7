import nbformat, sys
from nbformat.v4 import new_notebook, new_markdown_cell as md, new_code_cell as code
cells=[]
cells.append(md("""# DCMHA in nanoGPT with one line
nanoGPT (Karpathy) is the training loop that many experiments start from. Here it stands in 100 lines of PyTorch, in the size of its CPU example. Then one line changes: the causal self-attention becomes
`headlab.Heads("dcmha", ...)`, dynamically composed heads (Xiao et al. 2024, arXiv 2405.08553). Both models see the same batches.

*Open it with* `jupyter lab scripts/notebooks` *in a Python that has `headlab` (`pip install .` from the root of the repository) and matplotlib.* It trains two models of 0.8 million parameters for 300 updates each. Three hundred updates of one seed
show that the line works, not which kind is better: for that see `docs/compare.md`."""))
cells.append(code("""import math
import os
import pathlib
import time

import headlab
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("HEADLAB_STEPS", 300))
TEXT = pathlib.Path(os.environ.get("HEADLAB_TEXT", "../../configs/data/tinyshakespeare.txt"))
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))"""))
cells.append(md("""## nanoGPT
Layers, width, batch, rate and schedule are those of its `train_shakespeare_char` on a CPU: 4 layers of 4 heads, 128 features, 64 characters of context, 12 examples a batch, no dropout."""))
cells.append(code("""LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):  # [B,T,D]
        B, T, D = x.shape
        q, k, v = (t.view(B, T, HEADS, D // HEADS).transpose(1, 2) for t in self.c_attn(x).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B,H,T,d]
        return self.c_proj(y.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.attn = attention
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH, bias=False))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, attention):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block(attention(layer)) for layer in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, bias=False)
        for name, p in self.named_parameters():
            if ".attn." in name and not isinstance(self.h[0].attn, CausalSelfAttention):
                continue  # heads begin as their kind does
            if p.dim() == 2:
                last = name.endswith(("c_proj.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=.02 / math.sqrt(2 * LAYERS) if last else .02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()  # [B,T,vocabulary]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


text = TEXT.read_text()
characters = sorted(set(text))
data = torch.tensor([characters.index(c) for c in text])
train, validation = data[: int(.9 * len(data))], data[int(.9 * len(data)):]


def batch(split, generator):
    starts = torch.randint(len(split) - CONTEXT, (BATCH,), generator=generator)
    windows = split[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def measured(model):
    model.eval()
    generator = torch.Generator().manual_seed(1)
    loss = torch.stack([model(*batch(validation, generator)) for _ in range(40)]).mean().item()
    model.train()
    return loss


def trained(attention, steps=STEPS, rate=1e-3, warmup=100):
    torch.manual_seed(1337)
    model = GPT(len(characters), attention)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": .1}, {"params": others, "weight_decay": 0.}],
                                  lr=rate, betas=(.9, .99))
    generator, losses, began = torch.Generator().manual_seed(7), [], time.time()
    for step in range(steps):
        share = max(0, (step - warmup) / max(1, steps - warmup))
        for group in optimizer.param_groups:
            group["lr"] = rate * (min(1, (step + 1) / warmup) if step < warmup else
                                  .1 + .45 * (1 + math.cos(math.pi * share)))
        loss = model(*batch(train, generator))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return model, losses, measured(model), time.time() - began"""))
cells.append(md("""## The line
`lambda layer: CausalSelfAttention()` becomes `lambda layer: headlab.Heads("dcmha", ...)`. Nothing else changes."""))
cells.append(code("""plain = trained(lambda layer: CausalSelfAttention())
dcmha = trained(lambda layer: headlab.Heads("dcmha", WIDTH, HEADS, context=CONTEXT, layer=layer, layers=LAYERS))

for name, (model, _, loss, seconds) in {"CausalSelfAttention": plain, "dcmha": dcmha}.items():
    count = sum(p.numel() for p in model.parameters())
    print(f"{name:20} {count:,} parameters   validation loss {loss:.3f} nat after {STEPS} updates, {seconds:.0f} s")"""))
cells.append(code("""figure, axes = plt.subplots(figsize=(7, 3.2))
for name, (_, losses, _, _) in {"CausalSelfAttention": plain, "dcmha": dcmha}.items():
    smooth = torch.tensor(losses).unfold(0, min(10, STEPS), 1).mean(1)
    axes.plot(smooth, label=name, linewidth=1.2)
axes.set(xlabel="update", ylabel="training loss [nat]")
axes.legend(frameon=False);"""))
cells.append(md("""## Its heads
A layer gives its statistics with a pass. `dcmha` mixes its heads' maps; `off_diagonal` statistics and the row sums of the composed map say how much."""))
cells.append(code("""model = dcmha[0].eval()
x, _ = batch(validation, torch.Generator().manual_seed(2))
h = model.wte(x) + model.wpe(torch.arange(CONTEXT))
for layer, block in enumerate(model.h):
    _, values = block.attn(block.ln_1(h), statistics=True)
    h = block(h)
    print(f"layer {layer}: entropy of heads", *(f"{v:.2f}" for v in values["entropy"]),
          "  composed_row_sum", *(f"{v:.2f}" for v in values["composed_row_sum"]))"""))
n=new_notebook(cells=cells, metadata={"kernelspec":{"display_name":"Python 3","language":"python","name":"python3"},"language_info":{"name":"python"}})
nbformat.write(n, sys.argv[1])
