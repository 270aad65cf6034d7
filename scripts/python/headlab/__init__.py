"""Attention heads of any kind for PyTorch, and statistics of any model's heads.

    import headlab
    heads = headlab.Heads("dcmha", d_model=384, heads=6, rank=2, context=256)
    y = heads(x)                                      # [B,T,D] -> [B,T,D]
    y, values = heads(x, statistics=True)             # {name: [heads]}
    run = headlab.load("runs/char_mha/...")           # a run of the program, as a module
    with headlab.watch(model, "log.h5", every=100):   # statistics of a model's heads, while it trains
        train(model)
"""

from . import _torch  # noqa: F401  checks torch before the extension is loaded
from .heads import Cache, HeadOutput, Heads, after_step, aux_losses
from .kinds import Kind, Option, describe, kinds
from .models import Model, load
from .replace import Replaced, replace
from .watch import watch

__all__ = ["Cache", "HeadOutput", "Heads", "Kind", "Model", "Option", "Replaced", "after_step", "aux_losses", "describe",
           "kinds", "load", "replace", "watch"]
