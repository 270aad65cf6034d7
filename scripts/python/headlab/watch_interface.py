"""The first seam of headlab.watch: transformers' AttentionInterface.

While a watch lasts the attention functions in transformers' table are wrapped under their own names; eager
attention is not in that table, but in the file of each model. So the config of a model, the masks that are made
for it (AttentionMaskInterface) and the arithmetic of its attention stay as they are. A compiled model compares
the functions with those that it was compiled with, and is compiled anew.
"""

import inspect
import threading
from collections.abc import Callable

import torch
from torch import nn

from .watch_layers import Layer, counts

LAYER = "_headlab_layer"  # the attribute of a watched module
EAGER = "eager_attention_forward"  # how the name of a file's own ends
_lock = threading.Lock()
_wrapped: dict[tuple[int, str], list] = {}  # [mapping, name, what was there, wrapper, watches]


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules that ask transformers for their attention function, in the order of the model."""
    return [(name, module) for name, module in model.named_modules() if _asks_interface(type(module))]


def _asks_interface(cls: type) -> bool:
    code = getattr(_forward(cls), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _forward(cls: type) -> Callable | None:
    return inspect.unwrap(cls.forward) if callable(getattr(cls, "forward", None)) else None


def implementation(module: nn.Module) -> str:
    return getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager"


def why_not(name: str, module: nn.Module) -> str | None:
    """Why the statistics of a module's attention cannot be streamed; None: they can."""
    how = implementation(module)
    if how == "eager" and getattr(module, "reorder_and_upcast_attn", False):
        return f"{name} computes its attention itself where config.reorder_and_upcast_attn is set: clear that, or use sdpa"
    if how.startswith("flex") or how.startswith("paged"):
        return f"{name} attends by {how}, whose masks are functions: set attn_implementation to sdpa, flash or eager"
    if not _places(module):
        return f"{name} attends by {how}, which is neither in transformers' AttentionInterface nor in the file of " \
               f"{type(module).__name__}"
    return None


def _places(module: nn.Module) -> list[tuple[dict, str]]:
    """Where the attention functions stand that a module may call: (mapping, name there)."""
    from transformers.modeling_utils import AttentionInterface

    forward, how = _forward(type(module)), implementation(module)
    own = getattr(forward.__globals__["ALL_ATTENTION_FUNCTIONS"], "_local_mapping", {})
    for mapping in (own, AttentionInterface._global_mapping):
        if how in mapping:
            return [(mapping, how)]
    if how != "eager":
        return []
    return [(forward.__globals__, name) for name in forward.__code__.co_names
            if name.endswith(EAGER) and name in forward.__globals__]


class Interface:
    """Wraps what the modules of one watch use, and puts it back."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules
        self._keys: list[tuple[int, str]] = []

    def install(self) -> None:
        for module in self.modules:
            for mapping, name in _places(module):
                self._wrap(mapping, name)

    def _wrap(self, mapping: dict, name: str) -> None:
        key = (id(mapping), name)
        if key in self._keys:
            return
        with _lock:
            if key not in _wrapped:
                before = mapping[name]
                mapping[name] = _observed(before, name)
                _wrapped[key] = [mapping, name, before, mapping[name], 0]
            _wrapped[key][4] += 1
        self._keys.append(key)

    def remove(self) -> None:
        while self._keys:
            with _lock:
                key = self._keys.pop()
                entry = _wrapped[key]
                entry[4] -= 1
                if entry[4]:
                    continue
                mapping, name, before, wrapper, _ = _wrapped.pop(key)
                if mapping.get(name) is wrapper:  # no one else's since
                    mapping[name] = before


def _observed(attention: Callable, name: str) -> Callable:
    """An attention function that hands on what it computes to the layer of its module, if that has one."""

    def observed(module, query, key, value, *args, **kwargs):
        result = attention(module, query, key, value, *args, **kwargs)
        layer = getattr(module, LAYER, None)
        if layer is not None and counts(layer, module.training):
            mask = args[0] if args else kwargs.get("attention_mask")
            _hand_over(layer, name, module, query, key, value, mask, result[0], kwargs)
        return result

    return observed


def _hand_over(layer: Layer, name: str, module, query, key, value, mask, out, options: dict) -> None:
    if options.get("s_aux") is not None:
        raise RuntimeError(f"headlab.watch: {layer.name} has a learned sink in its softmax (s_aux), so that its weights "
                           "do not sum to 1: such heads cannot be watched")
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = 0
    if "flash" in name:
        mask = None if mask is None else mask[:, None, None, :]  # [B,S] of padding
        window = options.get("sliding_window") or 0
    elif name == "sdpa":
        causal = bool(causal) and mask is None and query.shape[2] > 1
        if causal and key.shape[2] > query.shape[2]:  # the first keys, as transformers has it there
            key, value = key[:, :, :query.shape[2]], value[:, :, :query.shape[2]]
    else:
        causal = False  # the mask says it
    torch.ops.headlab.observe(layer.state, query, key, value, out.transpose(1, 2), layer.weight(), mask,
                              options.get("position_bias"), float(scale), bool(causal), int(window),
                              float(options.get("softcap") or 0.0))
