"""The other seams of headlab.watch, for any torch model: scaled_dot_product_attention and nn.MultiheadAttention,
seen by a TorchFunctionMode; and a function of the user's own that tells q, k and v.

They are there during passes that count, and cost nothing otherwise.
"""

import inspect
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .watch_interface import LAYER
from .watch_layers import Layers, is_cross

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_fast_path: list = []  # of nn.MultiheadAttention, as it was: [whether, watches that need it off]
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
GIVEN = {"q", "k", "v", "mask", "causal", "scale", "window", "bias", "out", "output_weight", "cross"}


class Functions(TorchFunctionMode):
    """Watches the calls of attention in one pass of a model after the other."""

    def __init__(self, model: nn.Module, layers: Layers, qkv: Callable | None) -> None:
        super().__init__()
        self.model, self.layers, self.qkv = model, layers, qkv
        self.watched = [(name, module) for name, module in model.named_modules() if name and _may_attend(module)]
        self.closed = False  # whether what was found is all there is
        self._stack: list[list] = []  # [name, module, attentions so far] of the modules that run
        self._entered: set[str] = set()
        self._seen: set[str] = set()
        self._hooks: list = []
        self._depth = 0

    def begin(self) -> None:
        """A pass of the model that counts begins."""
        self._depth += 1
        if self._depth > 1:
            return
        for name, module in self.watched:
            self._hooks.append(module.register_forward_pre_hook(self._enter(name), prepend=True))
            self._hooks.append(module.register_forward_hook(self._leave(name), with_kwargs=True, always_call=True))
        self._stack.append(["", self.model, 0])
        self._entered.add("")
        if self.qkv is None:
            self.__enter__()

    def end(self, args=(), kwargs=None, output=None) -> None:
        """The pass has ended, with this output; None: by an exception."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth:
            return
        if self.qkv is not None and output is not None:
            self._ask("", self.model, args, kwargs or {}, output)
        if self.qkv is None:
            self.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._stack = [], []

    def unseen(self) -> list[str]:
        """Modules that are called attention, ran, and neither saw nor are part of what saw one."""
        every = [("", self.model), *self.watched]
        names = [name for name, module in every if "attention" in type(module).__name__.lower()]
        seen = self._seen | {name for name, layer in self.layers.all.items() if layer.module is not None
                             and LAYER in vars(layer.module)}
        related = [name for name in names if any(_within(name, one) or _within(one, name) for one in seen)]
        return [name or type(self.model).__name__ for name in names if name in self._entered and name not in related
                and not any(name != other and _within(other, name) for other in names)]

    def _enter(self, name: str) -> Callable:
        def enter(module, args):
            self._stack.append([name, module, 0])
            self._entered.add(name)

        return enter

    def _leave(self, name: str) -> Callable:
        def leave(module, args, kwargs, output):
            if self.qkv is not None and output is not None:
                self._ask(name, module, args, kwargs, output)
            while len(self._stack) > 1 and self._stack.pop()[0] != name:
                pass

        return leave

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._sdpa(dict(zip(_SDPA, args)) | kwargs, result)
        elif func is F.multi_head_attention_forward:
            self._multi_head(_MULTI_HEAD.bind(*args, **kwargs), result)
        return result

    def _layer(self, cross: bool):
        """The layer whose attention is being computed; None: it does not count."""
        name, module, before = self._stack[-1]
        if getattr(module, LAYER, None) is not None:  # transformers' interface has it
            return None
        self._stack[-1][2] += 1
        known = name if before == 0 else f"{name} ({before + 1})"
        self._seen.add(name)
        layer = self.layers.all.get(known)
        if layer is None and not self.closed:
            layer = self.layers.add(known, module, cross or is_cross(name, module))
        if layer is None or not (module.training or self.layers.watch.evaluation):
            return None
        return layer

    def _sdpa(self, call: dict, out: Tensor) -> None:
        q, k, v, mask = call["query"], call["key"], call["value"], call.get("attn_mask")
        layer = self._layer(cross=q.shape[-2] != k.shape[-2])
        if layer is None:
            return
        if q.dim() == 3:
            q, k, v, out = (t.unsqueeze(1) for t in (q, k, v, out))
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        if q.dim() != 4:
            raise RuntimeError(f"headlab.watch: {layer.name or 'the model'} hands q of {q.dim()} dimensions to "
                               "scaled_dot_product_attention, where [B,H,T,d] is expected: use watch(..., qkv=)")
        k, v = (t.expand(q.shape[0], -1, -1, -1) for t in (k, v))
        causal, T, S = bool(call.get("is_causal")), q.shape[2], k.shape[2]
        if causal and S > T:  # aligned at the first query and key
            k, v = k[:, :, :T], v[:, :, :T]
        elif causal and S < T:
            causal, mask = False, torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
        scale = call.get("scale")
        _observe(layer, q, k, v, out, layer.weight(), mask, scale=scale, causal=causal)

    def _multi_head(self, bound: inspect.BoundArguments, result) -> None:
        bound.apply_defaults()
        call = bound.arguments
        module = self._stack[-1][1]
        cross = call["key"] is not call["query"] and (call["key"] is call["value"] or len(call["key"]) != len(call["query"]))
        layer = self._layer(cross)
        if layer is None:
            return
        name = layer.name or type(module).__name__
        for what in ("bias_k", "bias_v", "static_k", "static_v"):
            if call[what] is not None:
                raise RuntimeError(f"headlab.watch: {name} attends to keys that are no tokens ({what}): such heads "
                                   "cannot be watched")
        if call["add_zero_attn"]:
            raise RuntimeError(f"headlab.watch: {name} has add_zero_attn, a key that is no token: such heads cannot be "
                               "watched")
        with torch.no_grad():
            q, k, v = _projected(call)
            mask = _masks(call, q.shape[0], q.shape[1])
            out = F.scaled_dot_product_attention(q, k, v, mask)
        _observe(layer, q, k, v, out, call["out_proj_weight"], mask)

    def _ask(self, name: str, module, args, kwargs, output) -> None:
        with torch.no_grad():
            given = self.qkv(module, args, kwargs, output)
        if given is None:
            return
        if not isinstance(given, dict) or not {"q", "k", "v"} <= set(given) <= GIVEN:
            raise TypeError(f"qkv must return None or a dict of {', '.join(sorted(GIVEN))}, with q, k and v among them; "
                            f"of {name} it returned {sorted(given) if isinstance(given, dict) else type(given).__name__}")
        layer = self._layer(bool(given.pop("cross", False)))
        if layer is None:
            return
        given = dict(given)
        q, k, v, mask = given.pop("q"), given.pop("k"), given.pop("v"), given.pop("mask", None)
        out, weight = given.pop("out", None), given.pop("output_weight", layer.weight())
        if out is None:
            raise TypeError(f"qkv returned no out [B,H,T,e] of {name}, what its heads put into the output projection")
        _observe(layer, q, k, v, out, weight, mask, **given)


def _observe(layer, q, k, v, out, weight, mask, scale=None, causal=False, window=0, bias=None) -> None:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    torch.ops.headlab.observe(layer.state, q, k, v, out, weight, mask, bias, float(scale), bool(causal), int(window), 0.0)


def fast_path_off() -> None:
    """In evaluation nn.MultiheadAttention would go around its function."""
    if not _fast_path:
        _fast_path[:] = [torch.backends.mha.get_fastpath_enabled(), 0]
        torch.backends.mha.set_fastpath_enabled(False)
    _fast_path[1] += 1


def fast_path_back() -> None:
    _fast_path[1] -= 1
    if not _fast_path[1]:
        torch.backends.mha.set_fastpath_enabled(_fast_path[0])
        _fast_path.clear()


def _may_attend(module: nn.Module) -> bool:
    """Torch's own layers do not, but for its attention; what they are made of need not be hooked."""
    return isinstance(module, nn.MultiheadAttention) or not type(module).__module__.startswith("torch.nn.modules")


def _within(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")


def _projected(call: dict) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B,H,.,d] as nn.MultiheadAttention makes them of inputs [T,B,D]."""
    inputs = [call[name] if call[name].dim() == 3 else call[name].unsqueeze(1) for name in ("query", "key", "value")]
    bias = call["in_proj_bias"]
    if call["use_separate_proj_weight"]:
        weights = [call[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = call["in_proj_weight"].chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)
    heads = []
    for x, weight, own in zip(inputs, weights, biases):
        x = F.linear(x, weight, own).unflatten(2, (call["num_heads"], -1))  # [T,B,H,d]
        heads.append(x.permute(1, 2, 0, 3))
    return tuple(heads)


def _masks(call: dict, B: int, H: int) -> Tensor | None:
    """What is added to the scores, of both masks: True and -inf hide."""
    parts = []
    mask, padding = call["attn_mask"], call["key_padding_mask"]
    if mask is not None:
        parts.append(mask.unflatten(0, (B, H)) if mask.dim() == 3 and len(mask) == B * H else mask)
    if padding is not None:
        padding = padding if padding.dim() == 2 else padding.unsqueeze(0)
        parts.append(padding[:, None, None, :])
    if not parts:
        return None
    if all(part.dtype == torch.bool for part in parts):
        return (parts[0] | parts[-1]).logical_not()
    dtype = call["query"].dtype
    hidden = [torch.zeros_like(part, dtype=dtype).masked_fill(part, float("-inf")) if part.dtype == torch.bool else part
              for part in parts]
    return sum(hidden)
