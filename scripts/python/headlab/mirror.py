"""Modules of C++ as torch.nn.Modules: parameters and buffers are one tensor on both sides."""

import warnings

import torch
from torch import Tensor, nn

from . import _C


class _Node(nn.Module):
    """Holds the parameters of a module inside the one of C++; never called."""

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        _load(super()._load_from_state_dict, state_dict, prefix, local_metadata, *rest)


def _load(load, state_dict, prefix, local_metadata, *rest):
    # Also where load_state_dict(assign=True) asks for other tensors: C++ would not see these.
    load(state_dict, prefix, {**local_metadata, "assign_to_params_buffers": False}, *rest)


class Mirror(nn.Module):
    """A module whose tensors are those of `_core`, an object of headlab._C."""

    def _adopt(self, core) -> None:
        self._core = core
        for name in [*self._parameters, *self._buffers, *self._modules]:
            delattr(self, name)
        self._own_parameters, self._own_buffers = [], []  # (name, holder, its name there, tensor)
        for name, tensor in core.parameters():
            tensor._is_param = True  # isinstance(tensor, nn.Parameter) asks this
            holder, leaf = self._holder(name)
            holder.register_parameter(leaf, tensor)
            self._own_parameters.append((name, holder, leaf, tensor))
        for name, tensor in core.buffers():
            holder, leaf = self._holder(name)
            holder.register_buffer(leaf, tensor)
            self._own_buffers.append((name, holder, leaf, tensor))

    def _holder(self, name: str) -> tuple[nn.Module, str]:
        *path, leaf = name.split(".")
        holder = self
        for part in path:
            if part not in holder._modules:
                holder.add_module(part, _Node())
            holder = holder._modules[part]
        return holder, leaf

    def _require_own(self) -> None:
        """RuntimeError where something else took a tensor's place, which C++ would not see."""
        for name, holder, leaf, tensor in self._own_parameters:
            if holder._parameters.get(leaf) is not tensor:
                raise RuntimeError(
                    f"the parameter {name} of {type(self).__name__} was replaced by another tensor (functional_call, "
                    f"parametrize, FSDP and LoRA do so), which the layer in C++ does not see: change it in place")
        for name, holder, leaf, tensor in self._own_buffers:
            if holder._buffers.get(leaf) is not tensor:
                raise RuntimeError(f"the buffer {name} of {type(self).__name__} was replaced by another tensor, which "
                                   f"the layer in C++ does not see: change it in place")


    def _apply(self, fn, recurse=True):
        self._refuse_without_values(fn)
        super()._apply(fn, recurse)
        for _, holder, leaf, tensor in self._own_buffers:
            applied = holder._buffers[leaf]
            if applied is not tensor:
                tensor.data = applied
                holder._buffers[leaf] = tensor
        if self._own_parameters:
            say_where(self._own_parameters[0][3].device)
        return self

    def _refuse_without_values(self, fn) -> None:
        name, asked = type(self).__name__, fn(torch.full((8,), 3.0))  # a number that every type holds
        if asked.is_meta:
            raise RuntimeError(f"{name} cannot be on the device meta: its weights are those of a layer in C++, which "
                               f"has memory; make it where it is to be, with device=")
        if not (asked == 3).all():  # to_empty(), of this module or one around it
            raise RuntimeError(f"{name} cannot be emptied: to_empty() would lose its weights; use to(device)")

    def train(self, mode: bool = True):
        super().train(mode)
        self._core.train(mode)
        return self

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        _load(super()._load_from_state_dict, state_dict, prefix, local_metadata, *rest)

    def __reduce__(self):
        tensors = {name: tensor.detach() for name, tensor in (*self._core.parameters(), *self._core.buffers())}
        trained = {name: tensor.requires_grad for name, tensor in self._core.parameters()}
        return _rebuild, (type(self), self._arguments, tensors, trained, self.training)

    def __deepcopy__(self, memo):
        build, (kind, arguments, tensors, trained, training) = self.__reduce__()
        copied = build(kind, arguments, {name: tensor.clone() for name, tensor in tensors.items()}, trained, training)
        memo[id(self)] = copied
        return copied


def _rebuild(kind, arguments, tensors, trained, training):
    """As it was pickled or copied: built whole, sliced to the heads it had, and filled."""
    with torch.random.fork_rng(devices=[]):  # what is drawn is replaced
        made = kind(**arguments)
        made._core.load({name: tensor.cpu() for name, tensor in tensors.items()})
    made._adopt(made._core)
    for name, _, _, tensor in made._own_parameters:
        tensor.requires_grad_(trained[name])
    made.train(training)
    device = next(iter(tensors.values())).device
    return made if device.type == "cpu" else made.to(device)


_said: set[str] = set()  # types of devices of which say_where spoke


def say_where(device: torch.device) -> None:
    """Warns once that a layer computes on a device for which this package has no kernels."""
    if device.type == "cpu" or (device.type == "cuda" and _C.has_cuda) or device.type in _said:
        return
    _said.add(device.type)
    warnings.warn(f"headlab was built without kernels for {device.type}: on {device} its layers compute by torch's "
                  "operations, and sum statistics on the CPU", stacklevel=3)


def require_plain(module: Mirror, x: Tensor, **others: Tensor | None) -> None:
    """Refuses what C++ cannot compute with, in a sentence each."""
    name = type(module).__name__
    if torch.compiler.is_exporting():
        raise RuntimeError(f"{name} cannot be exported: its arithmetic is C++; export what is around it")
    if torch._C._functorch.maybe_current_level() is not None:
        raise RuntimeError(f"{name} takes no part in torch.func (vmap, grad, jvp): its arithmetic is C++; use "
                           f"torch.autograd")
    weight = module._own_parameters[0][3] if module._own_parameters else None
    for what, tensor in (("x", x), *others.items()):
        if tensor is None:
            continue
        if type(tensor) not in (Tensor, nn.Parameter):
            raise RuntimeError(f"{what} is a {type(tensor).__name__}; {name} takes plain tensors")
        if weight is not None and tensor.device != weight.device:
            raise RuntimeError(f"{what} is on {tensor.device}, the weights of {name} are on {weight.device}")
    if weight is not None and x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise RuntimeError(f"x is {x.dtype}, the weights of {name} are {weight.dtype}: convert one, or use autocast")
