"""Any kind of attention heads as a torch.nn.Module: headlab.Heads."""

import copy
import dataclasses
import json

import torch
from torch import Tensor, nn

from . import _C
from .mirror import Mirror, require_plain

Cache = _C.Cache


@dataclasses.dataclass
class HeadOutput:
    """What a pass gave. B batch, T queries, S keys, D d_model, H heads, e width of a head's values."""

    y: Tensor  # [B,T,D]
    gates: Tensor | None = None  # [B,T,H], of kinds that route or gate
    aux: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # scalars, weighted by the options
    statistics: dict[str, Tensor] | None = None  # by the names of the log: [H], [H,H], [H,experts] or a number
    attention: Tensor | None = None  # [B,H,T,S]


class Heads(Mirror):
    """A layer of attention heads of one kind: x [B,T,D] -> [B,T,D], projections included.

        heads = headlab.Heads("dcmha", d_model=384, heads=6, rank=2, context=256)
        y = heads(x)

    kind        one of headlab.kinds(); its options are keywords, which headlab.describe(kind) lists
    head_dim    width of queries and keys; default d_model / heads
    kv_heads    heads of keys and values, for kinds that share them; default heads
    causal      a query sees no later key; default: yes, where the kind can
    window      a query sees so many keys, its own included; 0: all
    dropout     on the attention weights, while training
    rope        rotary positions: True, the base, or {"base": 10000.0, "layout": "half" or
                "interleaved", "fraction": 1.0}
    context     the longest sequence; some kinds need to know it
    layer, layers, site    where the layer stands: kinds that change with depth read them, and so does
                a draw of random numbers
    init        projections begin as in "gpt2", "plain" (N(0, 0.02)) or "xavier"; `init_weights="host"`
                is an option that all kinds have
    device, dtype          as of torch's layers

    ValueError names an unknown kind or option, and the nearest one there is. RuntimeError names sizes
    that do not fit, as in torch.
    """

    def __init__(self, kind: str, d_model: int, heads: int, head_dim: int | None = None, *,
                 kv_heads: int | None = None, causal: bool | None = None, window: int = 0,
                 dropout: float = 0.0, rope: bool | float | dict | None = None, context: int = 0,
                 layer: int = 0, layers: int = 1, site: str = "self", init: str = "gpt2",
                 device=None, dtype=None, **options):
        super().__init__()
        if d_model < 1 or heads < 1 or (head_dim is None and d_model % heads):
            raise ValueError(f"d_model must be a positive multiple of heads where head_dim is not given; "
                             f"they are {d_model} and {heads}")
        self._arguments = dict(kind=kind, d_model=d_model, heads=heads, head_dim=head_dim, kv_heads=kv_heads,
                               causal=causal, window=window, dropout=dropout, rope=copy.deepcopy(rope),
                               context=context, layer=layer, layers=layers, site=site, init=init,
                               **copy.deepcopy(options))
        self._options = copy.deepcopy(options)
        words = _words(options)
        if causal is None:
            causal = _C.traits(kind, words)["causal"]
        core = _C.Heads(kind=kind, options=words, file=f"Heads({kind!r})", d_model=d_model, heads=heads,
                        head_dim=head_dim or d_model // heads, kv_heads=kv_heads or heads, dropout=dropout,
                        layer=layer, layers=layers, context=context, site=site, init=init, causal=causal,
                        window=window, **_rope(rope))
        self.aux: dict[str, Tensor] = {}  # of the last pass in training
        self.gates: Tensor | None = None  # of the last pass
        self.output_hook = None  # gets the outputs of all heads [B,H,T,e] before the output projection
        self._adopt(core)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, memory: Tensor | None = None, *, statistics: bool = False, **inputs):
        """y [B,T,D]; with statistics=True also {name: values of each head}. Inputs as of output()."""
        out = self.output(x, memory, statistics=statistics, **inputs)
        return (out.y, out.statistics) if statistics else out.y

    @torch.compiler.disable
    def output(self, x: Tensor, memory: Tensor | None = None, *, key_padding_mask: Tensor | None = None,
               attn_mask: Tensor | None = None, bias: Tensor | None = None, positions: Tensor | None = None,
               gates: Tensor | None = None, noise: Tensor | None = None, tokens: Tensor | None = None,
               cache: Cache | None = None, statistics: bool = False, maps: bool = False,
               backend: str = "auto") -> HeadOutput:
        """Everything that a pass gives.

        x                 [B,T,D]
        memory            [B,S,D], what keys and values are made of; default x itself
        key_padding_mask  bool [B,S], true where there is no token (as nn.MultiheadAttention)
        attn_mask         broadcasts to [B,H,T,S]: bool, true where a query may attend (as
                          scaled_dot_product_attention), or added to the scores; -inf hides
        bias              broadcasts to [B,H,T,S], added to the scaled scores
        positions         [T] or [B,T] int64, for rope; default 0 .. T-1, behind what the cache holds
        gates             broadcasts to [B,H,T] or [B,H,T,e]: scales what each head gives
        tokens            [B,S] int64: statistics of matching tokens (induction) need them
        cache             headlab.Cache(): keys and values of earlier calls; one a layer
        statistics, maps  fills HeadOutput.statistics, HeadOutput.attention
        backend           a path of attention: auto, eager, sdpa, flash, rows
        """
        require_plain(self, x, memory=memory, attn_mask=attn_mask, bias=bias, gates=gates)
        self._require_own()
        y, open_gates, aux, values, attention = self._core.forward(
            x, memory=memory, key_padding_mask=key_padding_mask, attn_mask=attn_mask, bias=bias,
            positions=positions, gates=gates, noise=noise, tokens=tokens, cache=cache, statistics=statistics,
            maps=maps, hook=self.output_hook, backend=backend)
        self.gates = open_gates
        self.aux = {name: value for name, value, _ in aux}
        self._mean_aux = {name for name, _, is_mean in aux if is_mean}
        return HeadOutput(y, open_gates, self.aux, dict(values) if statistics else None, attention)

    def mask_heads(self, heads: list[int]) -> None:
        """The layer computes as if these heads had never been there; [] restores all."""
        self._core.mask_heads(list(heads))

    def slice(self) -> "Heads":
        """A smaller layer of the heads that are alive, which gives the same."""
        with torch.random.fork_rng(devices=[]):  # what is drawn is replaced
            return self._like(self._core.slice())

    @property
    def alive_heads(self) -> list[int]:
        """The heads that are neither masked nor sliced away, counted as the layer was built."""
        alive = self._core.alive
        return [head for head in self._core.head_ids if alive[head]]

    def extra_repr(self) -> str:
        given = {name: value for name, value in self._arguments.items() if value not in (None, "self")}
        return ", ".join(f"{name}={value!r}" for name, value in given.items())

    def _like(self, core) -> "Heads":
        made = Heads.__new__(Heads)
        nn.Module.__init__(made)
        made._arguments, made._options = copy.deepcopy(self._arguments), copy.deepcopy(self._options)
        made.aux, made.gates, made.output_hook = {}, None, None
        made._adopt(core)
        made.training = self.training
        return made


def _words(options: dict) -> str:
    try:
        return json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"options must be numbers, words, lists and mappings of these: {wrong}") from None


def _rope(rope) -> dict:
    if rope is None or rope is False:
        return dict(rope_base=None, rope_layout="half", rope_fraction=1.0)
    if rope is True:
        rope = {}
    if not isinstance(rope, dict):
        rope = {"base": float(rope)}
    unknown = set(rope) - {"base", "layout", "fraction"}
    if unknown:
        raise ValueError(f"rope has base, layout and fraction, not {', '.join(sorted(unknown))}")
    layout = rope.get("layout", "half")
    if layout not in ("half", "interleaved"):
        raise ValueError(f"the layout of rope is half or interleaved, not {layout!r}")
    return dict(rope_base=float(rope.get("base", 10000.0)), rope_layout=layout,
                rope_fraction=float(rope.get("fraction", 1.0)))


def aux_losses(module: nn.Module) -> dict[str, Tensor]:
    """The auxiliary losses of the last pass in training of every layer of heads in `module`, one a name:
    the sum over the layers, or their mean where the kind says so. Add them to the loss."""
    found: dict[str, list[Tensor]] = {}
    means = set()
    for layer in module.modules():
        if isinstance(layer, Heads):
            means |= getattr(layer, "_mean_aux", set())
            for name, value in layer.aux.items():
                found.setdefault(name, []).append(value)
    return {name: sum(values) / (len(values) if name in means else 1) for name, values in found.items()}


def after_step(module: nn.Module) -> None:
    """To be called behind every step of the optimizer: brings parameters that left their range back, and
    takes over what the passes counted. Kinds that do neither are not changed."""
    for layer in module.modules():
        if isinstance(layer, Mirror):
            layer._core.after_step()
