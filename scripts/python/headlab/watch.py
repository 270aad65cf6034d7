"""headlab.watch: statistics of every attention head of a model in PyTorch, while it trains."""

import difflib
import time
import warnings
import weakref
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _C
from .watch_functions import Functions, fast_path_back, fast_path_off
from .watch_interface import LAYER, Interface, attention_modules, implementation, why_not
from .watch_layers import Layers, is_cross, unwrapped
from .watch_run import config_of, manifest_of

_TABLE = _C.statistic_table()  # (name, units, long name, formula, always on, of pairs, needs)
STEPS = ("optimizer", "pass", "manual")


def watch(model: nn.Module, path, every: int = 100, statistics: str | Iterable[str] | None = None, *,
          qkv: Callable | None = None, step: str = "optimizer", start: int = 0, evaluation: bool = False,
          config: dict | None = None, overwrite: bool = False) -> "Watch":
    """Logs statistics of every attention head of `model` to `path` while it trains.

        with headlab.watch(model, "runs/mine/log.h5", every=100) as w:
            for batch in batches:
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                w.log(loss=loss)

    path        log.h5 in the directory of a run, or that directory
    every       updates from one row to the next; row 0 is of the first passes, before any update
    statistics  None: those that are always on in headlab; "all": also argmax_distance and sink_rate; or names
    qkv         for attention that is none of transformers' interface, scaled_dot_product_attention and
                nn.MultiheadAttention: qkv(module, args, kwargs, output) is called behind each module and
                returns None, or a dict of q [B,H,T,d], k [B,Hkv,S,d], v [B,Hkv,S,e] and out [B,H,T,e], the
                heads' outputs; also mask, causal, scale, window, bias, output_weight [D,H*e], cross
    step        what an update is: "optimizer", a step of the optimizer that holds the model's parameters;
                "pass", a forward pass in training mode; "manual", a call of w.step()
    start       updates that the model has had before
    evaluation  whether passes in evaluation mode count, too
    config      your own settings, kept in the log
    overwrite   replaces a log that is there

    In distributed training the process of rank 0 logs its own share, and the others do nothing.
    """
    return Watch(model, path, every, statistics, qkv, step, start, evaluation, config, overwrite)


class Watch:
    """What headlab.watch returns: a context, or start() and close()."""

    def __init__(self, model, path, every, statistics, qkv, step, start, evaluation, config, overwrite) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, is {type(model).__name__}")
        if every < 1 or start < 0:
            raise ValueError(f"every must be at least 1 and start at least 0; they are {every} and {start}")
        if step not in STEPS:
            raise ValueError(f"step must be {', '.join(STEPS[:-1])} or {STEPS[-1]}, is {step!r}")
        self.model, self.path, self.every, self.by = unwrapped(model), path, every, step
        self.table = _chosen(statistics)
        self.qkv, self.evaluation, self.config, self.overwrite = qkv, evaluation, config, overwrite
        self.updates = start  # finished so far
        self.values: dict[str, dict[str, np.ndarray]] = {}  # of the last row: {site: {name: [layers, heads]}}
        self.due = False  # whether passes of now count
        self._first, self._open, self._failed = True, False, False
        self._told: dict[str, list[float]] = {}  # by log(), since the last update
        self._told_ahead: bool | None = None  # whether log() is called before the update that it is of
        self._rows: list[tuple[int, dict, dict]] = []  # (step, grids, scalars) that wait for what log() tells
        self._tokens, self._optimizer, self._log, self._functions = 0, None, None, None
        self._heads: dict[str, int] = {}  # of each site, the most of a layer
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "Watch":
        return self.start()

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()
        else:
            self.close("stopped" if issubclass(kind, KeyboardInterrupt) else "failed", f"{kind.__name__}: {error}")

    def start(self) -> "Watch":
        if _rank() != 0:
            return self
        from .watch_log import Log  # h5py is asked for by those who log

        self._log = Log(self.path, self.overwrite)
        self._open, self._began = True, time.monotonic()
        try:
            self._core = _C.Watch(divergence=any(row[0] == "js" for row in self.table))
            self._undo.append(self._core.close)
            self.layers = Layers(self.model, self, self._core)
            self._install()
            self._set_due(True)
        except BaseException:
            self._release()
            self._log.unlock()
            raise
        return self

    def close(self, status: str = "finished", reason: str = "") -> None:
        """status: finished, stopped or failed. Everything is as it was before start()."""
        if not self._open:
            return
        self._release()
        self._write(lambda: (self._write_rows(), self._log.close(status, reason)))
        self._log.abandon()
        if status == "finished" and self._first and not self._failed:
            warnings.warn(f"headlab.watch: no row was logged, since no update was seen: with step={self.by!r} it is "
                          f"{_WHAT[self.by]}", stacklevel=3)

    def step(self) -> None:
        """An update is finished; for step="manual"."""
        if self.by != "manual":
            raise ValueError(f'step() is for watch(..., step="manual"); here an update is {_WHAT[self.by]}')
        if self._open:
            self._updated()

    def log(self, **numbers: float) -> None:
        """Scalars of an update: loss, lr, grad_norm, tokens, and others, which the first update must have, too.
        They are of the update that was finished last; where log() is called before the first update is finished,
        always of the one that goes on. Of a number that is told more than once, the mean; of tokens the sum.
        """
        if not self._open:
            return
        for name, number in numbers.items():
            name = "train_loss" if name == "loss" else name
            self._told.setdefault(name, []).append(number.detach() if isinstance(number, torch.Tensor) else number)

    def _install(self) -> None:
        modules = attention_modules(self.model)
        for name, module in modules:
            if said := why_not(name, module):
                raise RuntimeError(f"headlab.watch: {said}")
        for name, module in modules:
            if getattr(module, LAYER, None) is not None:
                raise RuntimeError(f"headlab.watch: {name} is watched already: end that watch first")
            setattr(module, LAYER, self.layers.add(name, module, is_cross(name, module)))
            self._undo.append(lambda module=module: vars(module).pop(LAYER, None))
        interface = Interface([module for _, module in modules])
        self._undo.append(interface.remove)
        interface.install()
        self.seam = "+".join(dict.fromkeys(implementation(module) for _, module in modules)) or "torch"
        if self.qkv is not None or not modules or _others(self.model, [name for name, _ in modules]):
            self._functions = Functions(self.model, self.layers, self.qkv)
            self._undo.append(self._functions.end)
            fast_path_off()
            self._undo.append(fast_path_back)
        if self._functions is not None or self.by == "pass":
            for hook in (self.model.register_forward_pre_hook(self._begin_pass, prepend=True),
                         self.model.register_forward_hook(self._end_pass, with_kwargs=True, always_call=True)):
                self._undo.append(hook.remove)
        if self.by == "optimizer":
            self._undo.append(register_optimizer_step_post_hook(self._optimizer_stepped).remove)

    def _release(self) -> None:
        self.due = self._open = False
        while self._undo:
            self._undo.pop()()

    def _set_due(self, due: bool) -> None:
        self.due = self._core.due = due

    def _counts_pass(self) -> bool:
        return self.model.training or self.evaluation

    @torch.compiler.disable
    def _begin_pass(self, module, args) -> None:
        recomputed = torch._C._current_graph_task_id() != -1
        if self.due and self._functions is not None and self._counts_pass() and not recomputed:
            self._functions.begin()

    @torch.compiler.disable
    def _end_pass(self, module, args, kwargs, output) -> None:
        if self._functions is not None:
            self._functions.end(args, kwargs, output)
            if self.due and output is not None and self._counts_pass():
                self._require_seen()
        if self.by == "pass" and output is not None and module.training:
            self._updated()

    def _require_seen(self) -> None:
        unseen = self._functions.unseen()
        if unseen or not self.layers.all:
            what = f"the attention of {', '.join(unseen)}" if unseen else f"no attention of {type(self.model).__name__}"
            raise RuntimeError(
                f"headlab.watch: {what} was {'not ' if unseen else ''}seen: it calls neither transformers' attention "
                "interface nor scaled_dot_product_attention nor nn.MultiheadAttention. Tell its q, k and v with "
                "watch(..., qkv=)")

    def _optimizer_stepped(self, optimizer, args, kwargs) -> None:
        # Of several optimizers the first one counts, so that an update is finished once.
        known = self._optimizer() if self._optimizer is not None else None
        if known is None:
            own = {id(parameter) for parameter in self.model.parameters()}
            if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
                return
            self._optimizer, known = weakref.ref(optimizer), optimizer
        if optimizer is known:
            self._updated()

    def _updated(self) -> None:
        """One more update is finished: logs the passes before it, if it is due, and says what is due next."""
        if self._told_ahead is None:
            self._told_ahead = bool(self._told)
        if not self._told_ahead:
            self._write(self._write_rows)
        n = self.updates + 1
        if self.due:
            rows = self._core.take()
            if rows:
                self._take_rows(rows, [self.updates] * self._first + [n] * (n % self.every == 0))
            elif self._first:
                raise RuntimeError(
                    f"headlab.watch: no attention of {type(self.model).__name__} was seen before the first update. Was "
                    "the model in training mode (model.train())? Passes in evaluation mode count with evaluation=True")
            self._first = False
        if self._told_ahead:
            self._write(self._write_rows)
        self.updates = n
        self._set_due((n + 1) % self.every == 0 and not self._failed)

    def _take_rows(self, rows: list[tuple], steps: list[int]) -> None:
        if not self._heads:
            if self._functions is not None:
                self._functions.closed = True
            self._heads = {site: max((heads for at, _, heads, _ in rows if at == site), default=0)
                           for site in self.layers.sites()}
            self._heads = {site: heads for site, heads in self._heads.items() if heads}
        grids = self._grids(rows)
        self.values = {site: {name: values for name, values in grid.items() if name != "head_mask"}
                       for site, grid in grids.items()}
        seconds = time.monotonic() - self._began
        self._rows += [(step, grids, {"wall_time": seconds}) for step in steps]

    def _grids(self, rows: list[tuple]) -> dict[str, dict[str, np.ndarray]]:
        """{site: {name: [layers, heads(, heads)]}}, NaN where there is no such head or it was not seen."""
        grids = {}
        for site, heads in self._heads.items():
            layers = len(self.layers.names(site))
            grids[site] = {row[0]: np.full((layers, heads, heads) if row[5] else (layers, heads), np.nan, "f4")
                           for row in self.table}
            grids[site]["head_mask"] = np.zeros((layers, heads), "u1")
        for site, layer, heads, values in rows:
            if site not in grids:
                continue
            grids[site]["head_mask"][layer, :heads] = 1
            for name, value in values:
                if name in grids[site]:
                    part = (layer, slice(heads), slice(heads))[:value.dim() + 1]
                    grids[site][name][part] = value.numpy()
        return grids

    def _make_log(self, told: Iterable[str]) -> None:
        sites = {site: (len(self.layers.names(site)), heads) for site, heads in self._heads.items()}
        self._columns = dict.fromkeys(["train_loss", "lr", "grad_norm", *told])
        self._log.make(sites, self.table, list(self._columns), config_of(self, sites), manifest_of(self))

    def _write_rows(self) -> None:
        """The rows that wait, with what log() was told."""
        told, self._told = self._told, {}
        self._tokens += int(sum(float(number) for number in told.get("tokens", [])))
        rows, self._rows = self._rows, []
        if not rows:
            return
        if not self._log.made:
            self._make_log(told)
        if unknown := sorted(set(told) - set(self._columns)):
            raise ValueError(f"log({unknown[0]}=) comes too late: the log's columns are those of its first row")
        told = {name: float(np.mean([float(number) for number in numbers])) for name, numbers in told.items()}
        for step, grids, scalars in rows:
            for site, grid in grids.items():
                self._log.add(f"heads/{site}", step, grid)
            self._log.add("scalars", step, scalars | told | {"tokens": self._tokens})
        self._log.commit()

    def _write(self, write: Callable[[], object]) -> None:
        """A disk that is full ends the log, not the training."""
        if self._failed or self._log is None:
            return
        try:
            write()
        except (OSError, RuntimeError) as error:
            self._failed = True
            self._set_due(False)
            self._log.abandon()
            warnings.warn(f"headlab.watch: {self._log.path} cannot be written ({error}): what is in it stays, and nothing "
                          "more is logged", RuntimeWarning, stacklevel=2)


_WHAT = {"optimizer": "a step of an optimizer (of torch.optim.Optimizer) that holds parameters of the model",
         "pass": "a forward pass in training mode", "manual": "a call of step()"}


def _chosen(statistics) -> list[tuple]:
    """The rows of the table that were asked for."""
    can = [row for row in _TABLE if not row[6]]  # tokens and their classes are not known here
    if statistics is None:
        return [row for row in can if row[4]]
    if isinstance(statistics, str) and statistics == "all":
        return can
    names = [statistics] if isinstance(statistics, str) else list(statistics)
    known = {row[0]: row for row in can}
    for name in names:
        if name in known:
            continue
        if any(name == row[0] for row in _TABLE):
            raise ValueError(f"{name} needs the tokens of a text, which a watch does not see")
        near = difflib.get_close_matches(str(name), known, n=1)
        raise ValueError(f"there is no statistic {name!r}" + (f"; did you mean {near[0]}?" if near else
                                                               f"; there are {', '.join(known)}"))
    if not names:
        raise ValueError("statistics: name at least one, or say None for those that are always on")
    return [row for row in can if row[0] in names]


def _others(model: nn.Module, known: list[str]) -> bool:
    """Whether there may be attention beside that of transformers' interface."""
    def related(name):
        return any(name == one or one.startswith(f"{name}.") or name.startswith(f"{one}.") for one in known)

    return any("attention" in type(module).__name__.lower() and not related(name)
               for name, module in model.named_modules())


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
