"""Where a model attends: the layers that a watch has found, by site, number and name."""

import dataclasses
import re

import torch
from torch import Tensor, nn

# Parts of a layer's own name that mean attention to another sequence.
CROSS = re.compile(r"cross|encoder_attn|enc_?dec|encoder_decoder|enc_attn", re.IGNORECASE)
# Under which names attention layers keep their output projection.
PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "proj", "wo", "to_out", "out_lin", "output_proj", "o",
               "out", "attention_output")


@dataclasses.dataclass(eq=False)
class Layer:
    """An attention of a model. torch.ops.headlab.observe finds its sums by `state`."""

    name: str  # "transformer.h.0.attn"
    site: str  # self; or encoder_self, decoder_self, cross
    number: int  # counted from 0 at each site
    state: Tensor  # int64 [number of the seat, calls that counted]
    watch: object
    module: nn.Module | None = None
    projection: nn.Module | None = None  # behind the heads' outputs
    transposed: bool = False  # whether its weight is [H*e,D], as Conv1D's is

    def weight(self) -> Tensor | None:
        """[D,H*e] of the output projection, where it is known."""
        if self.projection is None:
            return None
        weight = self.projection.weight
        return weight.t() if self.transposed else weight

    # It hangs on the module while a watch lasts. Copies of the model, also on disk, are not watched.
    def __deepcopy__(self, memo):
        return None

    def __reduce__(self):
        return type(None), ()


class Layers:
    """The layers of one model, in the order in which they are found."""

    def __init__(self, model: nn.Module, watch, core) -> None:
        self.watch, self.core = watch, core
        self.all: dict[str, Layer] = {}
        # BERT calls the last linear layer its decoder.
        parts = [name.rpartition(".")[2] for name, module in model.named_modules() if any(module.children())]
        self.two_stacks = any(map(_is_encoder, parts)) and any(map(_is_decoder, parts))
        self.modules = dict(model.named_modules())

    def add(self, name: str, module: nn.Module | None, cross: bool) -> Layer:
        site = site_of(name, cross, self.two_stacks)
        number = sum(layer.site == site for layer in self.all.values())
        projection = _projection(name, module, self.modules)
        layer = Layer(name, site, number, self.core.seat(site, number), self.watch, module, projection,
                      type(projection).__name__ == "Conv1D")
        self.all[name] = layer
        return layer

    def sites(self) -> list[str]:
        return list(dict.fromkeys(layer.site for layer in self.all.values()))

    def names(self, site: str) -> list[str]:
        return [layer.name for layer in self.all.values() if layer.site == site]


def is_cross(name: str, module: nn.Module | None = None) -> bool:
    """Whether a layer attends to another sequence, by its own attribute or by its name within its block."""
    if getattr(module, "is_cross_attention", False) is True:
        return True
    parts = name.split(".")
    numbers = [n for n, part in enumerate(parts) if part.isdigit()]
    own = parts[numbers[-1] + 1:] if numbers else parts[-2:]
    return any(CROSS.search(part) for part in own)


def site_of(name: str, cross: bool, two_stacks: bool) -> str:
    if cross:
        return "cross"
    if two_stacks:
        for part in name.split("."):
            if _is_decoder(part):
                return "decoder_self"
            if _is_encoder(part):
                return "encoder_self"
    return "self"


def _is_encoder(part: str) -> bool:
    return part == "encoder" or part.endswith("_encoder")


def _is_decoder(part: str) -> bool:
    return part == "decoder" or part.endswith("_decoder")


def _projection(name: str, module: nn.Module | None, modules: dict[str, nn.Module]) -> nn.Module | None:
    """The output projection of an attention: a child of it, or in BERT's way of the module beside it."""
    if module is None:
        return None
    found = [getattr(module, candidate, None) for candidate in PROJECTIONS]
    above = name.rpartition(".")[0]
    if name.endswith(".self"):
        found.append(modules.get(f"{above}.output.dense"))
    if name.endswith(".attention") or name.endswith(".self"):
        found.append(modules.get(f"{above}.out_proj"))
    for one in found:
        if isinstance(one, nn.Sequential | nn.ModuleList) and len(one):
            one = one[0]
        is_plain = isinstance(one, nn.Linear) or type(one).__name__ == "Conv1D"
        if is_plain and type(one.weight) in (Tensor, nn.Parameter):
            return one
    return None


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DistributedDataParallel and the like."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def counts(layer: Layer, training: bool) -> bool:
    """Whether a call of now may count. A compiled graph always asks the operator, which knows whether a step
    is due: a branch on that here would compile the model anew."""
    return (torch.compiler.is_compiling() or layer.watch.due) and (training or layer.watch.evaluation)
