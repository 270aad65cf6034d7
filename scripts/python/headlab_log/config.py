"""The config of a run, as one that headlab wrote: plain YAML, and of the kinds that readers expect."""

import pathlib
from typing import Any

import yaml

from .files import LogError

# Settings that readers use, and what they are where they are given.
KINDS = {
    "seed": int, "model": dict, "train": dict, "log": dict, "data": dict,
    "model.layers": int, "model.heads": int, "model.attention": dict, "model.attention_at": dict,
    "model.attention.kind": str, "train.steps": int, "train.eval_batches": int,
}
WORDS = {str: "a text", int: "a whole number", dict: "a mapping"}


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config(path: pathlib.Path, text: str) -> dict[str, Any]:
    """The settings in the text, which is from the file. LogError: it is no config of a run."""
    try:
        # Few letters with aliases make more than any memory holds; headlab writes none.
        if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text, LOADER)):
            raise ValueError("it has an alias")
        config = yaml.load(text, LOADER) or {}
        if not isinstance(config, dict):
            raise ValueError("it is no mapping")
        for key, kind in KINDS.items():
            require(config, key, kind)
        for at in config.get("model", {}).get("attention_at", {}):
            require(config, f"model.attention_at.{at}", dict)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise LogError(f"{path}: its config is damaged ({said}); take a copy from before") from error
    return config


def require(config, key, kind):
    value = config
    for name in key.split("."):
        if value is None:
            return
        value = value.get(name) if isinstance(value, dict) else None
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ValueError(f"{key} is no {WORDS[kind].removeprefix('a ')}")
