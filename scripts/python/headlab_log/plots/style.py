"""Colours, sizes and names that the figures share."""

import textwrap
from typing import Any

import xarray as xr

# Okabe and Ito's colours, which colour-blind readers can tell apart; behind them the same, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE = {"font.size": 8, "axes.titlesize": 9, "figure.titlesize": 9, "savefig.dpi": 95}
NAMES = {  # shorter than the log's long names
    "entropy": "entropy",
    "mean_distance": "mean distance",
    "prev_token": "on previous token",
    "self_token": "on itself",
    "first_token": "on first token",
    "induction": "on what followed an earlier copy",
}


def name_and_unit(variable: xr.DataArray) -> str:
    """Name and unit of a variable; a share has no unit.

    >>> from headlab_log import plots
    >>> plots.name_and_unit(run.heads().entropy), plots.name_and_unit(run.heads().prev_token)
    ('entropy [nat]', 'on previous token')
    """
    name = NAMES.get(variable.name, variable.attrs.get("long_name", variable.name))
    unit = variable.attrs.get("units", "1")
    return name + ("" if unit == "1" else f" [{unit}]")


def axis_label(variable: xr.DataArray) -> str:
    """name_and_unit(), in lines short enough for the side of a small panel."""
    return textwrap.fill(name_and_unit(variable), 20)


def line_of(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line."""
    return {"color": COLOURS[number % len(COLOURS)], "ls": "-" if number < len(COLOURS) else "--"}
