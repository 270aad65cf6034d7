"""headlab.replace(): the self-attention of transformers' models becomes heads of any kind."""

import dataclasses
from collections.abc import Iterable

import torch
import yaml
from torch import Tensor, nn

from . import _C
from .heads import Heads


@dataclasses.dataclass(frozen=True)
class Replaced:
    """What became of a layer."""

    name: str  # the module, as named_modules() has it
    start: str  # where its weights are from: "the model's", "converted", "fresh"
    error: float | None = None  # of what was approximated, relative, Frobenius norm


class TransformersHeads(nn.Module):
    """Heads in the place of an attention of transformers: takes its arguments, gives (y, None)."""

    def __init__(self, heads: Heads, residual_dropout: float = 0.0):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(residual_dropout)

    def forward(self, hidden_states: Tensor, *args, attention_mask: Tensor | None = None, past_key_values=None,
                position_ids: Tensor | None = None, encoder_hidden_states=None, **kwargs):
        if past_key_values is not None:
            raise RuntimeError("heads of headlab.replace keep no cache of transformers: call the model, and generate(), "
                               "with use_cache=False")
        if encoder_hidden_states is not None:
            raise RuntimeError("headlab.replace replaces self-attention alone; this is cross-attention")
        if attention_mask is not None and (not isinstance(attention_mask, Tensor) or attention_mask.dim() != 4):
            raise RuntimeError("headlab.replace reads masks of sdpa and eager attention, [B,1,T,S]: load the model with "
                               "attn_implementation='sdpa'")
        positions = None
        if position_ids is not None and self.heads._arguments["rope"] is not None:
            positions = position_ids[0] if position_ids.shape[0] == 1 else position_ids
        y = self.heads(hidden_states, attn_mask=attention_mask, positions=positions)
        return self.dropout(y), None


def replace(model: nn.Module, kind: str, layers: Iterable[int] | None = None, **options) -> list[Replaced]:
    """Puts heads of `kind` in the place of the self-attention of a model of transformers in the style of GPT-2
    or LLaMA, in these layers (default: all), in place. `options` are those of the kind, and kv_heads.

    Kind mha takes the model's weights, and the logits stay; collaborative, and mha with fewer kv_heads, start
    as `headlab convert` makes them; other kinds begin anew. What each layer began with is returned. Caches of
    transformers are turned off: the model gives every token of a text anew.

    ValueError for a model of another style, and for a kind or position that does not fit; then nothing is changed.
    """
    found = _attentions(model)
    if not found:
        raise ValueError(f"{type(model).__name__} has no self-attention in the style of GPT-2 (c_attn, c_proj) or LLaMA "
                         f"(q_proj, k_proj, v_proj, o_proj)")
    chosen = range(len(found)) if layers is None else sorted(set(layers))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < len(found):
        raise ValueError(f"layers must lie in 0 to {len(found) - 1}")
    made = [_heads_of(name, attention, kind, layer, len(found), dict(options))
            for layer, (name, attention) in enumerate(found) if layer in chosen]
    for name, new, _ in made:
        holder, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(holder), leaf, new)
    for settings in (getattr(model, "config", None), getattr(model, "generation_config", None)):
        if settings is not None:
            settings.use_cache = False
    return [replaced for *_, replaced in made]


def _attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if _style(module)]


def _style(module: nn.Module) -> str | None:
    parts = module._modules
    if {"c_attn", "c_proj"} <= set(parts) and not getattr(module, "is_cross_attention", False):
        return "gpt2"
    if {"q_proj", "k_proj", "v_proj", "o_proj"} <= set(parts) and getattr(module, "is_causal", False):
        return "llama"
    return None


def _heads_of(name, attention, kind, layer, layers, options):
    """(name, the module for it, Replaced)."""
    facts = (_of_gpt2 if _style(attention) == "gpt2" else _of_llama)(name, attention)
    weights, shape, extra = facts
    like = weights["o.weight"]
    common = dict(layer=layer, layers=layers, dtype=like.dtype, **shape)
    with torch.random.fork_rng(devices=[]):  # what is drawn is replaced
        plain = Heads("mha", **common, qkv_bias="q.bias" in weights, o_bias="o.bias" in weights, **extra)
    plain.load_state_dict(weights, strict=False)
    heads, replaced = _started(name, plain, kind, common, options, extra)
    residual = getattr(attention, "resid_dropout", None)
    new = TransformersHeads(heads.to(like.device), residual.p if residual is not None else 0.0)
    return name, new.train(attention.training), replaced


def _started(name, plain, kind, common, options, extra):
    kv_heads = options.pop("kv_heads", common["kv_heads"])
    grouped = kind == "mha" and kv_heads != common["kv_heads"]
    if kind == "mha" and not options and not grouped:
        return plain, Replaced(name, "the model's")
    if grouped and not options:
        converted = _C.to_grouped(plain._core, kv_heads)
    elif kind == "collaborative" and set(options) <= {"shared_dim"} and common["rope"] is None:
        converted = _C.to_collaborative(plain._core, options.get("shared_dim"))
    else:
        heads = Heads(kind, **{**common, "kv_heads": kv_heads}, **{**_biases(plain, kind), **options})
        return heads, Replaced(name, "fresh")
    settings, tensors, error = converted
    settings = yaml.safe_load(settings) if settings else dict(plain._options)
    settings.pop("kind", None)
    heads = Heads(kind, **{**common, "kv_heads": kv_heads}, **settings)
    heads.load_state_dict(tensors, strict=False)
    return heads, Replaced(name, "converted", error)


def _biases(plain: Heads, kind: str) -> dict:
    """Biases where the model has them and the kind can."""
    known = {option for option, *_ in _C.options(kind)}
    asked = {"qkv_bias": "q.bias" in dict(plain.named_parameters()), "o_bias": "o.bias" in dict(plain.named_parameters())}
    return {name: value for name, value in asked.items() if name in known}


def _of_gpt2(name, attention):
    if getattr(attention, "reorder_and_upcast_attn", False):
        raise ValueError(f"{name}: reorder_and_upcast_attn is not known here")
    width, heads = attention.embed_dim, attention.num_heads
    q, k, v = attention.c_attn.weight.detach().t().split(width)  # Conv1D keeps [in,out]
    bias_q, bias_k, bias_v = attention.c_attn.bias.detach().split(width)
    weights = {"q.weight": q, "k.weight": k, "v.weight": v, "o.weight": attention.c_proj.weight.detach().t(),
               "q.bias": bias_q, "k.bias": bias_k, "v.bias": bias_v, "o.bias": attention.c_proj.bias.detach()}
    shape = dict(d_model=width, heads=heads, head_dim=attention.head_dim, kv_heads=heads, rope=None,
                 dropout=attention.attn_dropout.p, context=attention.config.n_positions)
    usual = attention.head_dim ** -.5
    return weights, shape, {} if attention.scaling == usual else {"scale": attention.scaling}


def _of_llama(name, attention):
    config = attention.config
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"{name}: rotary positions of type {rope.get('rope_type')!r} are not known here, only the default")
    for extra in ("q_norm", "k_norm", "sinks"):
        if hasattr(attention, extra):
            raise ValueError(f"{name}: has {extra}, which LLaMA's attention has not")
    if getattr(attention, "sliding_window", None):
        raise ValueError(f"{name}: has a sliding window, which LLaMA's attention has not")
    weights = {}
    for part in "qkvo":
        linear = getattr(attention, f"{part}_proj")
        weights[f"{part}.weight"] = linear.weight.detach()
        if linear.bias is not None:
            weights[f"{part}.bias"] = linear.bias.detach()
    shape = dict(d_model=config.hidden_size, heads=config.num_attention_heads, head_dim=attention.head_dim,
                 kv_heads=config.num_key_value_heads, rope={"base": float(rope.get("rope_theta", 10000.0))},
                 dropout=attention.attention_dropout, context=config.max_position_embeddings)
    usual = attention.head_dim ** -.5
    return weights, shape, {} if attention.scaling == usual else {"scale": attention.scaling}
