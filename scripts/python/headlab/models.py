"""Runs of the program as torch.nn.Modules: headlab.load()."""

import json
import pathlib
import tempfile
from collections.abc import Callable

import torch
from safetensors.torch import load_file
from torch import Tensor

from . import _C
from .mirror import Mirror

Hook = Callable[[Tensor], Tensor | None]


class LayerHeads:
    """The heads of one layer of one site of a model."""

    def __init__(self, model: "Model", site: str, layer: int):
        self._model, self.site, self.layer = model, site, layer

    @property
    def output_hook(self) -> Hook | None:
        """Gets what every head gives, [B,H,T,e], before the output projection; what it returns takes its
        place (None: nothing does). H are the heads that the layer has (head_ids)."""
        return self._model._hooks.get((self.site, self.layer))

    @output_hook.setter
    def output_hook(self, hook: Hook | None) -> None:
        if hook is None:
            self._model._hooks.pop((self.site, self.layer), None)
        else:
            self._model._hooks[self.site, self.layer] = hook

    @property
    def kind(self) -> str:
        return self._fact("kind")

    @property
    def head_ids(self) -> list[int]:
        """The heads that the layer has, counted as it was built."""
        return self._fact("head_ids")

    @property
    def alive(self) -> list[bool]:
        return self._fact("alive")

    @property
    def value_width(self) -> int:
        return self._fact("value_width")

    def mask(self, heads: list[int]) -> None:
        """The model computes as if these heads had never been there; [] restores all."""
        self._model._core.mask_heads(self.site, self.layer, list(heads))

    def _fact(self, name: str):
        return self._model._core.layer(self.site, self.layer)[name]

    def __len__(self) -> int:
        return self._fact("heads")

    def __repr__(self) -> str:
        return f"{self.site}, layer {self.layer}: {len(self.head_ids)} heads of kind {self.kind}"


class SitedHeads:
    """The heads of a model: heads[2] of layer 2 where it has one attention a layer, heads("cross")[2]."""

    def __init__(self, model: "Model"):
        self._model = model

    def __call__(self, site: str | None = None) -> list[LayerHeads]:
        sites = self.sites
        if site is None:
            if len(sites) > 1:
                raise ValueError(f"which site? This model has {', '.join(sites)}")
            site = next(iter(sites))
        if site not in sites:
            raise ValueError(f"there is no site {site!r}: this model has {', '.join(sites)}")
        return [LayerHeads(self._model, site, layer) for layer in range(len(sites[site]))]

    @property
    def sites(self) -> dict[str, list[str]]:
        """Names of the attentions, and where the layers of each are among the modules."""
        return dict(self._model._core.sites())

    def __getitem__(self, layer: int) -> LayerHeads:
        return self()[layer]

    def __len__(self) -> int:
        return len(self())

    def __iter__(self):
        return iter(self())


class Model(Mirror):
    """The model of a run, with its weights: decoder, encoder, vit or seq2seq.

    Called with what it reads: `ids` [B,T] int64 (decoder, encoder; `mask` [B,T] with ones, then zeros, and
    `token_types` for an encoder), `pixels` [B,C,h,w] (vit), `source_ids` [B,S], `source_mask` and
    `decoder_ids` [B,T] (seq2seq). Gives logits [B,T,vocabulary], or [B,answers] where a whole example has
    one. RuntimeError names what is missing or does not fit.
    """

    def __init__(self, config: str, file: str, shape: dict[str, int | None], ends: tuple[int, ...] = ()):
        super().__init__()
        self._arguments = dict(config=config, file=file, shape=shape, ends=ends)
        self._ends = list(ends)  # ids that end a text
        self._hooks: dict[tuple[str, int], Hook] = {}
        self.aux: dict[str, Tensor] = {}
        self._adopt(_C.Model(config, file, shape))
        self.training = False

    @torch.compiler.disable
    def output(self, ids: Tensor | None = None, *, cache=None, statistics: bool = False, maps: bool = False,
               hidden: bool = False, **inputs: Tensor) -> dict:
        """Everything that a pass gives: logits, aux; by (site, layer) statistics and attention maps
        [B,H,T,S]; hidden states of each stack, where they are asked for."""
        self._require_own()
        if ids is not None:
            inputs["ids"] = ids
        logits, aux, values, attention, states, normed = self._core.forward(
            {f"in.{name}": tensor for name, tensor in inputs.items() if tensor is not None}, cache=cache,
            hooks=self._hooks, statistics=statistics, maps=maps, hidden=hidden)
        self.aux = dict(aux)
        return {"logits": logits, "aux": self.aux, "statistics": {at: dict(v) for at, v in values.items()},
                "attention": attention, "hidden": states, "normed": dict(normed)}

    def forward(self, ids: Tensor | None = None, *, cache=None, **inputs: Tensor) -> Tensor:
        return self.output(ids, cache=cache, **inputs)["logits"]

    @property
    def heads(self) -> SitedHeads:
        return SitedHeads(self)

    @property
    def context(self) -> int:
        return self._core.context

    def to_hugging_face(self):
        """The same model, with its weights of now, as one of the library transformers: GPT-2, LLaMA, BERT, ViT or
        Marian, in eval mode. Its states and logits of a small example have been compared. ValueError names what
        transformers has no place for, such as other kinds of heads. `headlab export` also writes the tokenizer.
        """
        import transformers

        with tempfile.TemporaryDirectory() as folder:
            written = pathlib.Path(folder, "model")
            name = self._core.write_hugging_face(str(written), self._ends)
            return getattr(transformers, name).from_pretrained(written).eval()

    @torch.no_grad()
    def generate(self, ids: Tensor, tokens: int = 100, *, temperature: float = 1.0, top_k: int = 0,
                 generator: torch.Generator | None = None) -> Tensor:
        """Continues ids [B,T] by so many tokens: [B,T+tokens]. temperature 0 takes the likeliest; draws are
        from torch's generator, so that they differ from those of `headlab generate`."""
        if not self._core.writes:
            raise RuntimeError("this model does not write text: its logits do not say which token comes next")
        if ids.ndim != 2 or ids.shape[1] < 1:
            raise ValueError(f"ids must be [B,T] with at least one token, are {list(ids.shape)}")
        cache = None
        for _ in range(tokens):
            if cache is None or cache.length >= self.context:  # positions begin anew behind a full context
                cache, fresh = _C.ModelCache(), ids[:, -self.context:] if ids.shape[1] <= self.context else \
                    ids[:, -(self.context - 1):]
            else:
                fresh = ids[:, -1:]
            logits = self.forward(fresh, cache=cache)[:, -1].float()
            ids = torch.cat([ids, _sampled(logits, temperature, top_k, generator)], dim=1)
        return ids


def _sampled(logits: Tensor, temperature: float, top_k: int, generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits / temperature
    if top_k > 0:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)


def load(run, checkpoint: str | None = None, device=None) -> Model:
    """The model of a run of the program, or of a checkpoint inside one, in eval mode.

    run: its directory (its last checkpoint; checkpoint="best" for the best one). The logits are those of
    `headlab forward`. FileNotFoundError where there is no run, RuntimeError where it is damaged.
    """
    path = pathlib.Path(run)
    folder = path / "ckpt" / (checkpoint or "last")
    if (path / "model.safetensors").exists() and not (path / "config.yaml").exists():
        folder, path = path, path.resolve().parent.parent
    config = path / "config.yaml"
    if not config.exists():
        raise FileNotFoundError(f"{run}: there is no run here (config.yaml is missing)")
    described = path / "data.json"
    if not described.exists():
        raise RuntimeError(f"{run}: data.json is missing, so an older version made this run; `headlab eval {run}` "
                           f"still reads it")
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise FileNotFoundError(f"{weights}: there is no checkpoint; `headlab runs` says how far the run came")
    data = json.loads(described.read_text())
    with torch.random.fork_rng(devices=[]):  # what is drawn is replaced
        model = Model(config.read_text(), str(config),
                      {name: value for name, value in data["shape"].items() if not isinstance(value, bool)},
                      tuple(data.get("ends", ())))
    model._core.load(load_file(weights))
    model._adopt(model._core)
    return model.to(device) if device is not None else model
