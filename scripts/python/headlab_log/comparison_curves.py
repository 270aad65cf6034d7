"""What figures and pages show of the curves of a comparison."""

import numpy as np

MOST_BANDS = 8  # arms whose bands can be told apart


def with_bands(task, arms):
    """Which of the arms have a band about their curve: all, or the baseline alone where they would hide each other."""
    losses = task.curves.val_loss
    drawn = [name for name in arms if losses.sel(arm=name).notnull().any()]
    return drawn if len(drawn) <= MOST_BANDS else [name for name in drawn if name == task.baseline]


def range_of_losses(task):
    """Of the curves and what needs no training, with some room; None: there is no curve. The bands are left
    out: those of few seeds are wider than all that is to be seen."""
    values = task.curves.val_loss.values
    values = list(values[np.isfinite(values)])
    if not values:
        return None
    values += reference_losses(task).values()
    room = 0.05 * (max(values) - min(values)) or 0.1
    return float(min(values) - room), float(max(values) + room)


def reference_losses(task):
    """The losses of chance and n-grams by their names, those that are known; with their split where it is not
    the one of the curves."""
    found = task.references
    if task.loss not in found:
        return {}
    split = "" if task.loss == "val_loss" else f" ({task.measured_on['split']})"
    return {f"{name}{split}": float(loss)
            for name, loss in zip(found["reference"].values, found[task.loss].values) if np.isfinite(loss)}
