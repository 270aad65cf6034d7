"""Hands a run to other tools: BertViz, CircuitsVis, TransformerLens, pandas, CSV files."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .command import taken, told_plainly
from .files import LogError, PathLike, pick
from .group_names import kind_of
from .opening import open_run
from .output import in_folder, output_folder, plain_path, write_whole
from .run import Run
from .text import printable, visible

if TYPE_CHECKING:
    import pandas as pd

# BertViz' names for the maps of a site, their queries and their keys.
BERTVIZ = {
    "self": ("attention", "tokens", "tokens"),
    "encoder_self": ("encoder_attention", "encoder_tokens", "encoder_tokens"),
    "decoder_self": ("decoder_attention", "decoder_tokens", "decoder_tokens"),
    "cross": ("cross_attention", "decoder_tokens", "encoder_tokens"),
}
# Where a model of TransformerLens has the maps of a site.
TRANSFORMER_LENS = {
    "self": "blocks.{}.attn.hook_pattern",
    "encoder_self": "encoder.{}.attn.hook_pattern",
    "decoder_self": "decoder.{}.attn.hook_pattern",
    "cross": "decoder.{}.cross_attn.hook_pattern",
}
# The axes that a group's main table has one row for; a variable of other axes has its own table.
ROWS = {
    "scalars": ("step",),
    "eval": ("step",),
    "heads": ("step", "layer", "head"),
    "analysis": ("layer", "head"),
    "roles": ("layer", "head"),
    "ablation": ("mode", "layer", "head"),
    "pruning": ("round",),
    "resumes": ("row",),
}


def to_bertviz(run: Run, step: int | None = None, probe: int = 0,
               site: str | Sequence[str] = "self", layers: Sequence[int] | None = None,
               positions: int | slice | None = None) -> dict[str, Any]:
    """Keyword arguments of `bertviz.head_view` and `bertviz.model_view`.

    attention: a list over all layers of the model of (1, heads, query, key), float32, without
    padding: torch tensors, which BertViz wants, where PyTorch can be imported, else numpy arrays
    (`bertviz_html` takes both). BertViz numbers layers and heads by their place, so each layer has
    all its heads: one that is pruned or was not logged is 0 everywhere. tokens: their texts.

    site: one, or several of an encoder-decoder, whose arguments have BertViz' names
    (`encoder_attention`, `cross_attention`, ...); maps with other queries than keys are given as
    cross attention. layers: which ones to show, as `include_layers`; default: the logged ones.
    positions: a slice of them, or how many of the first. step, probe: as in `run.map`. Composed
    maps keep their negative weights, which BertViz draws as nothing. LogError: not logged.

    >>> sorted(hl.to_bertviz(run))
    ['attention', 'tokens']
    >>> len(hl.to_bertviz(run, positions=5)["tokens"])
    5
    """
    arguments = {}
    for name in [site] if isinstance(site, str) else site:
        maps = cut(logged_maps(run, step, probe, name), positions)
        full = full_grid(run, name, maps)
        queries, keys = (shown(maps, axis) for axis in ("query", "key"))
        given, query_name, key_name = BERTVIZ[name if queries == keys else "cross"]
        arguments[given] = [as_tensor(layer[None]) for layer in full.values]
        arguments |= {query_name: queries, key_name: keys}
        offered = list(maps["layer"].values) if layers is None else layers
        wanted = [int(pick(full, "layer", layer)) for layer in offered]
        if wanted != list(range(full.sizes["layer"])):
            arguments["include_layers"] = wanted
    return arguments


def to_circuitsvis(run: Run, layer: int | Sequence[int] | None = 0, step: int | None = None,
                   probe: int = 0, site: str = "self",
                   positions: int | slice | None = None) -> dict[str, Any]:
    """Keyword arguments of `circuitsvis.attention.attention_heads`.

    attention: (heads, tokens, tokens), float32, without padding; heads that are pruned or were not
    logged are left out. attention_head_names: `L0H3`, true numbers. mask_upper_tri: no head looks
    ahead. min_value, max_value: symmetric about 0, as wide as the weights, at least 1. layer: a
    number, a list of numbers, or None, all logged ones. LogError: not logged, or other queries
    than keys, which CircuitsVis has no view for.

    >>> views = hl.to_circuitsvis(run, layer=1)
    >>> views["attention"].shape[0] == len(views["attention_head_names"])
    True
    """
    maps = cut(logged_maps(run, step, probe, site), positions)
    tokens = shown(maps, "query")
    if tokens != shown(maps, "key"):
        raise LogError(f"{run.path}: queries and keys of site {site!r} are different tokens, which "
                       "CircuitsVis has no view for; use to_bertviz")
    if layer is not None:
        wanted = [layer] if np.ndim(layer) == 0 else layer
        maps = maps.sel(layer=[pick(maps, "layer", number) for number in wanted])
    heads = maps.stack(name=("layer", "head")).transpose("name", "query", "key")
    heads = heads.isel(name=heads.notnull().any(["query", "key"]).values)
    if not heads.size:
        raise LogError(f"{run.path}: all heads of layer {layer} are pruned")
    weights = heads.fillna(0).values
    widest = max(1.0, float(abs(weights).max()))
    return {
        "attention": weights,
        "tokens": tokens,
        "attention_head_names": [f"L{layer}H{head}" for layer, head in heads["name"].values],
        "max_value": widest,
        "min_value": -widest,
        "mask_upper_tri": not np.triu(weights, 1).any(),
    }


def to_transformer_lens(run: Run, step: int | None = None, probe: int | None = None,
                        site: str = "self") -> dict[str, Any]:
    """Attention patterns under the names of TransformerLens' ActivationCache.

    `blocks.{layer}.attn.hook_pattern`: (probe, head, query, key), float32, 0 where a probe is
    padded; with a probe, as after `remove_batch_dim()`: (head, query, key) without padding. Torch
    tensors where PyTorch can be imported, else numpy arrays. All heads of each logged layer: one
    that is pruned or was not logged is 0 everywhere. LogError: not logged.

    >>> hl.to_transformer_lens(run, probe=0)["blocks.1.attn.hook_pattern"].ndim
    3
    """
    maps = logged_maps(run, step, probe, site)
    logged = maps["layer"].values
    full = full_grid(run, site, maps).transpose("layer", ..., "head", "query", "key")
    return {TRANSFORMER_LENS[site].format(layer): as_tensor(full.sel(layer=layer).values)
            for layer in logged}


def to_pandas(run: Run, group: str = "heads/self",
              rows: Sequence[str] | None = None) -> pd.DataFrame:
    """A group as a tidy table: a column a variable, an index level an axis.

    rows: the axes, each combination of which is a row; default: the group's main ones (`scalars`,
    `eval`: step; `heads/<site>`: step, layer, head; `analysis/<site>`, `roles/<site>`: layer,
    head; `ablation/<site>`: mode, layer, head; `pruning`: round). A variable of other axes, such
    as `js` of two heads, is in the table of those: rows=("step", "layer", "head", "head2"). Rows
    without any number, those of pruned heads, are left out. Units: `run.group(group)`.
    LogError: no such group or no variable with these axes.

    >>> hl.to_pandas(run, "heads/self").index.names
    FrozenList(['step', 'layer', 'head'])
    """
    main = ROWS.get(kind_of(group))
    if not main:
        raise LogError(f"{run.path}: {group!r} is no table; tables are {', '.join(tables(run))}")
    data = run.group(group)
    rows = tuple(rows or main)
    columns = [name for name in data.data_vars if data[name].dims == rows and name != "head_mask"]
    if not columns:
        there = sorted({data[name].dims for name in data.data_vars})
        raise LogError(f"{run.path}: {group} has no variable over {rows}; there are {there}")
    return data[columns].reset_coords(drop=True).to_dataframe(dim_order=rows).dropna(how="all")


def to_csv(run: Run, folder: PathLike | None = None) -> list[pathlib.Path]:
    """Writes every table of a run as CSV and returns the paths; folder: default RUN/csv.

    scalars.csv, eval.csv, heads_self.csv, analysis_self.csv, pruning.csv, ...: `to_pandas` of each
    group; variables over other axes in tables of their own, as heads_self_by_step_layer_head_head2.
    variables.csv: table, unit, formula of each column, and what it was measured on. Attention maps
    are not among them. A file appears whole or not at all; it takes the place of an earlier one.

    >>> [path.name for path in hl.to_csv(run, "csv")][:2]
    ['eval.csv', 'heads_self.csv']
    """
    import pandas as pd

    folder = output_folder(folder, run.path / "csv")
    paths, columns = [], []
    for group in tables(run):
        data = run.group(group)
        main = ROWS[kind_of(group)]
        for rows in sorted({data[name].dims for name in data.data_vars if data[name].dims}):
            name = group.replace("/", "_") + ("" if rows == main else "_by_" + "_".join(rows))
            frame = to_pandas(run, group, rows)
            paths.append(write_csv(folder, name, frame.reset_index()))
            columns += [{"table": name, "column": column} | described(data[column])
                        for column in frame]
    return [*paths, write_csv(folder, "variables", pd.DataFrame(columns))]


def write_csv(folder, name, frame):
    return write_whole(in_folder(folder, f"{name}.csv"), frame.to_csv(index=False))


def described(variable):
    usual = {"units": "1", "long_name": "", "comment": "", "measured": ""}
    return {name: variable.attrs.get(name, absent) for name, absent in usual.items()}


def tables(run):
    """The groups of a run that are tables, in whichever of its files."""
    return [group for group in run.groups if kind_of(group) in ROWS]


def logged_maps(run, step, probe, site):
    """Logged maps at a step, (layer, head, query, key) of one probe without padding.

    probe None: all probes, (probe, layer, head, query, key), NaN where padded.
    """
    maps = run.attention(site)
    weights = maps.weights.sel(step=pick(maps, "step", step)).astype(np.float32)
    if probe is None:
        return weights.load()
    one = weights.sel(probe=pick(maps, "probe", probe))
    return one.isel(query=slice(int(one.query_length)), key=slice(int(one.key_length))).load()


def full_grid(run, site, maps):
    """The maps on the grid of all layers and heads of the model, 0 where there is none."""
    if f"heads/{site}" in run:
        sizes = {axis: run.heads(site).sizes[axis] for axis in ("layer", "head")}
    else:  # at least those that are logged
        sizes = {axis: maps[axis].values.max() + 1 for axis in ("layer", "head")}
    return maps.reindex({axis: range(size) for axis, size in sizes.items()}).fillna(0)


def cut(maps, positions):
    chosen = positions if isinstance(positions, slice) else slice(positions)
    return maps.isel(query=chosen, key=chosen)


def shown(maps, axis):
    return [visible(token) for token in maps[f"{axis}_text"].values]


def as_tensor(array):
    try:
        import torch
    except ModuleNotFoundError:
        return array
    return torch.from_numpy(np.ascontiguousarray(array))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="to_csv", description="Writes what a run logged as CSV files: scalars, evaluations, "
        "every statistic of every head, what analyze, ablate and prune found.")
    parser.add_argument("run", metavar="RUN", help="run directory, finished or not")
    parser.add_argument("-o", metavar="FOLDER", type=plain_path, help="where to (default: RUN/csv)")
    options = parser.parse_args(arguments)
    with told_plainly("to_csv"), open_run(taken("to_csv", options.run)) as run:
        for path in to_csv(run, options.o):
            print(printable(path))
