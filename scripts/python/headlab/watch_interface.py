"""The first seam of headlab.watch: transformers' AttentionInterface.

While a watch lasts the attention functions in transformers' table are wrapped under their own names. So the
config of a model, the masks that are made for it (AttentionMaskInterface) and the arithmetic of its attention
stay as they are.
"""

import inspect
import sys
import threading
from collections.abc import Callable

import torch
from torch import nn

from .watch_layers import Layer, counts

LAYER = "_headlab_layer"  # the attribute of a watched module
_MISSING = object()
_lock = threading.Lock()
_wrapped: dict[tuple[int, str], list] = {}  # [mapping, name, what was there, wrapper, watches]
_eager: dict[type, Callable] = {}  # the eager attention of the file of each class


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules that ask transformers for their attention function, in the order of the model."""
    return [(name, module) for name, module in model.named_modules() if _asks_interface(type(module))]


def _asks_interface(cls: type) -> bool:
    forward = inspect.unwrap(cls.forward) if callable(getattr(cls, "forward", None)) else None
    code = getattr(forward, "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def implementation(module: nn.Module) -> str:
    return getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager"


def why_not(name: str, module: nn.Module) -> str | None:
    """Why the statistics of a module's attention cannot be streamed; None: they can."""
    how = implementation(module)
    if how == "eager" and getattr(module, "reorder_and_upcast_attn", False):
        return f"{name} computes its attention itself where config.reorder_and_upcast_attn is set: clear that, or use sdpa"
    if how.startswith("flex") or how.startswith("paged"):
        return f"{name} attends by {how}, whose masks are functions: set attn_implementation to sdpa, flash or eager"
    return None


class Interface:
    """Wraps what the modules of one watch use, and puts it back."""

    def __init__(self, modules: list[tuple[str, nn.Module]]) -> None:
        self.modules = [module for _, module in modules]
        self._keys: list[tuple[int, str]] = []

    def install(self) -> None:
        from transformers.modeling_utils import AttentionInterface

        for module in self.modules:
            how = implementation(module)
            if how == "eager":
                _eager_of(type(module))
            mappings = [AttentionInterface._global_mapping]
            own = vars(sys.modules[type(module).__module__]).get("ALL_ATTENTION_FUNCTIONS")
            if how in getattr(own, "_local_mapping", {}):
                mappings = [own._local_mapping]
            for mapping in mappings:
                self._wrap(mapping, how)

    def _wrap(self, mapping: dict, name: str) -> None:
        key = (id(mapping), name)
        if key in self._keys:
            return
        with _lock:
            if key not in _wrapped:
                before = mapping.get(name, _MISSING)
                wrapper = _observed(_call_eager if before is _MISSING else before, name)
                mapping[name] = wrapper
                _wrapped[key] = [mapping, name, before, wrapper, 0]
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
                if mapping.get(name) is not wrapper:  # someone else's since
                    continue
                if before is _MISSING:
                    del mapping[name]
                else:
                    mapping[name] = before


def _eager_of(cls: type) -> Callable:
    if cls not in _eager:
        _eager[cls] = inspect.unwrap(cls.forward).__globals__["eager_attention_forward"]
    return _eager[cls]


def _call_eager(module, query, key, value, *args, **kwargs):
    # Eager attention is not in the table: each model's file has its own.
    own = _eager[type(module)] if type(module) in _eager else _eager_of(type(module))
    return own(module, query, key, value, *args, **kwargs)


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
