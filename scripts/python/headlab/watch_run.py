"""What a watched training tells of itself in its log: config and manifest, as readers of runs expect them."""

import datetime
import importlib.metadata
import platform
import sys

import torch

PLAIN = (str, int, float, bool, type(None))


def config_of(watch, sites: dict[str, tuple[int, int]]) -> dict:
    """As of a run of the program where readers look: name, seed, model.layers, model.heads, model.attention."""
    given = _plain(dict(watch.config or {}))
    name = given.get("name")
    seed = given.get("seed")
    first = next(iter(sites))
    config = {"name": name if isinstance(name, str) and name else watch._log.directory.resolve().name,
              "seed": seed if type(seed) is int else torch.initial_seed()}
    if isinstance(given.get("tag"), str):
        config["tag"] = given["tag"]
    config["model"] = {"class": type(watch.model).__name__, "layers": sum(layers for layers, _ in sites.values()),
                       "heads": sites[first][1], "attention": {"kind": _kind(watch)}}
    config["log"] = {"stats_every": watch.every, "step": watch.by,
                     "layers": {site: watch.layers.names(site) for site in sites}}
    if given:
        config["training"] = given
    return config


def manifest_of(watch) -> dict:
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    for name in ("headlab", "transformers", "h5py"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    parameters = list(watch.model.parameters())
    started = datetime.datetime.now(datetime.UTC)
    name = watch._log.directory.resolve().name
    return {"run_id": f"{name}/{started:%Y%m%dT%H%M%S}", "status": "running",
            "start_utc": started.strftime("%Y-%m-%dT%H:%M:%SZ"), "argv": sys.argv, "hostname": platform.node(),
            "versions": versions, "made_by": "headlab.watch", "device": str(parameters[0].device) if parameters else "cpu",
            "parameters": {"total": sum(p.numel() for p in parameters),
                           "trained": sum(p.numel() for p in parameters if p.requires_grad)}}


def _kind(watch) -> str:
    """What takes the place of a kind of heads: the architecture."""
    return str(getattr(getattr(watch.model, "config", None), "model_type", None) or type(watch.model).__name__)


def _plain(value):
    """What YAML keeps and readers take: numbers, texts, lists and mappings of these; of the rest the text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if type(value) in PLAIN else str(value)
