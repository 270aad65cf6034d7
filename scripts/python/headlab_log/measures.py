"""What the losses of a run were measured on: those of a part of a split and of all of it differ."""

import numpy as np
import xarray as xr

LOSS = "val/loss"  # the name of the validation loss in metrics.jsonl, status.json and compare.json


def whole_split(evaluations: xr.Dataset) -> np.ndarray:
    """Which steps were measured on the whole validation split, (step): 1, 0, or NaN: not known.

    Logs older than `val_whole_split` tell by the number of tokens: in the end all are measured.
    """
    unknown = np.full(evaluations.sizes["step"], np.nan)
    if "val_whole_split" in evaluations:
        return evaluations.val_whole_split.values
    if "val_tokens" not in evaluations:
        return unknown
    tokens = evaluations.val_tokens.values
    several = len(set(tokens[np.isfinite(tokens)])) > 1
    return (tokens == tokens.max()).astype(float) if several else unknown


def measured(evaluations: xr.Dataset, batches: int | None) -> list[str]:
    """In words, for each step: "first 20 batches, 81,920 tokens", "whole split, 111,488 tokens".

    batches: train.eval_batches of the run, where it is known.
    """
    counts = (evaluations.val_tokens.values if "val_tokens" in evaluations
              else [None] * evaluations.sizes["step"])
    return [text(whole, count, batches) for whole, count in zip(whole_split(evaluations), counts)]


def text(whole, tokens=None, batches=None):
    """One measure in words; whole: 1, 0, or NaN; tokens, batches: how many, where that is known."""
    said = ["whole split"] if whole == 1 else []
    if whole == 0 and batches:
        said.append(f"first {batches} batches" if batches > 1 else "first batch")
    if tokens is not None and np.isfinite(tokens):
        said.append(f"{int(tokens):,} tokens")
    return ", ".join(said) or "not known on what"


def by_measure(evaluations: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """Evaluations with `measured`, those of one measure together: (in words, rows), in their order."""
    words = evaluations.measured.values
    return [(word, evaluations.isel(step=np.flatnonzero(words == word)))
            for word in dict.fromkeys(words)]
