import nbformat, sys
from nbformat.v4 import new_notebook, new_markdown_cell as md, new_code_cell as code
cells=[]
cells.append(md("""# Watching the heads of a GPT-2 of transformers
`headlab.watch` streams statistics of every attention head of a model into a log while the model trains. The model is a `GPT2LMHeadModel` of Hugging Face's `transformers`, unchanged, with its fast attention (`sdpa`). The log opens like those of the program.

*Open it with* `jupyter lab scripts/notebooks` *in a Python that has `headlab` (`pip install .` from the root of the repository), transformers and matplotlib.* `HEADLAB_MODEL=gpt2` fine-tunes the published GPT-2, which transformers fetches. Without it the model has GPT-2's architecture
in a small size and new weights, and trains on characters: this is what the outputs below show."""))
cells.append(code("""import os
import pathlib
import time

import headlab
import headlab_log as hl
import matplotlib.pyplot as plt
import torch
import transformers
from headlab_log import plots

plt.rcParams.update(plots.STYLE)
STEPS = int(os.environ.get("HEADLAB_STEPS", 300))
EVERY = max(1, STEPS // 30)
RUN = pathlib.Path(os.environ.get("HEADLAB_RUNS", "../../runs/notebooks")) / "gpt2_watched"
TEXT = pathlib.Path(os.environ.get("HEADLAB_TEXT", "../../configs/data/tinyshakespeare.txt")).read_text()
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
torch.manual_seed(1337);"""))
cells.append(code("""if name := os.environ.get("HEADLAB_MODEL"):
    model = transformers.GPT2LMHeadModel.from_pretrained(name)
    tokens = torch.tensor(transformers.AutoTokenizer.from_pretrained(name)(TEXT).input_ids)
    context, examples, rate = 128, 4, 5e-5
else:
    characters = sorted(set(TEXT))
    tokens = torch.tensor([characters.index(c) for c in TEXT])
    context, examples, rate = 64, 12, 1e-3
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=len(characters), n_positions=context, n_embd=96, n_layer=4, n_head=4,
        resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., bos_token_id=0, eos_token_id=0))
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, attention: {model.config._attn_implementation}")"""))
cells.append(md("""## The training loop
It is a plain loop. `with headlab.watch(...)` around it is all that watching asks for. A row is logged every `EVERY` updates, before the update that it is named after."""))
cells.append(code("""optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(.9, .99), weight_decay=.1)
generator = torch.Generator().manual_seed(7)
model.train()
began = time.time()
with headlab.watch(model, RUN, every=EVERY, overwrite=True) as w:
    for step in range(STEPS):
        starts = torch.randint(len(tokens) - context, (examples,), generator=generator)
        ids = tokens[starts[:, None] + torch.arange(context)]
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        w.log(loss=loss)
print(f"{STEPS} updates in {time.time() - began:.0f} s, the last loss {loss.item():.3f} nat")"""))
cells.append(md("""## The log
It is a run like any other: labelled arrays by step, layer and head."""))
cells.append(code("""run = hl.open_run(RUN)
heads = run.heads()
print(run.state, dict(heads.sizes))
print(heads.entropy.isel(step=-1).to_series().unstack().round(2))"""))
cells.append(code("""figure, panels = plt.subplots(1, heads.sizes["layer"], figsize=(11, 2.6), sharey=True)
for layer, axes in enumerate(panels):
    for head in range(heads.sizes["head"]):
        axes.plot(heads.step, heads.entropy.sel(layer=layer, head=head), linewidth=1.2, label=f"head {head}")
    axes.set(title=f"layer {layer}", xlabel="update")
panels[0].set_ylabel("entropy of the weights [nat]")
panels[-1].legend(frameon=False);"""))
cells.append(md("""Which heads look at the token before, and which at the first one?"""))
cells.append(code("""last = heads.isel(step=-1)
table = last[["previous_token", "first_token", "entropy", "output_norm"]].to_dataframe()
print(table[["previous_token", "first_token", "entropy", "output_norm"]].round(3).sort_values("previous_token", ascending=False).head(6))"""))
n=new_notebook(cells=cells, metadata={"kernelspec":{"display_name":"Python 3","language":"python","name":"python3"},"language_info":{"name":"python"}})
nbformat.write(n, sys.argv[1])
