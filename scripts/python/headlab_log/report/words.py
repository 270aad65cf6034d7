"""Heads in plain words, and which one is least like the others."""

import numpy as np

from .data import has_rows

# Statistics by which heads are told apart and described; of what a site lacks nothing is said.
TOLD_BY = ("entropy_normalized", "mean_distance", "prev_token", "self_token", "first_token")


def add(content, runs):
    """Puts `words` and `unlike` into each site of the page's content that has statistics."""
    for said, run in zip(content["runs"], runs):
        for site, found in said["sites"].items():
            if has_rows(run, f"heads/{site}"):
                last = run.heads(site).isel(step=-1)
                found["words"], found["unlike"] = words(last), least_like_others(last)


def least_like_others(last):
    """(layer, head) of the head whose statistics lie farthest from the mean of all; None: no such.

    Each statistic is measured in its standard deviation over heads.
    """
    there = [last[name].transpose("layer", "head").values.astype("f8")
             for name in TOLD_BY if name in last]
    there = [values for values in there if np.isfinite(values).any()]  # cross: no places
    if not there:
        return None
    values = np.stack(there).reshape(len(there), -1)
    values = values[:, np.isfinite(values).any(axis=0)]
    if values.shape[1] < 2:
        return None
    whole = np.stack(there)
    usual = np.nanmean(values, axis=1)[:, None, None]
    spread = np.nanstd(values, axis=1)[:, None, None]
    away = np.divide(whole - usual, spread, out=np.zeros_like(whole), where=spread > 0)
    distance = np.where(np.isfinite(whole).any(axis=0), np.nansum(away**2, axis=0), -1.0)
    layer, head = np.unravel_index(distance.argmax(), distance.shape)
    return [int(last["layer"].values[layer]), int(last["head"].values[head])]


def words(last):
    """What every head does, in a few short sentences; "" where there is no such head."""
    return [about(last.sel(layer=layer, head=head))
            for layer in last["layer"].values for head in last["head"].values]


def about(head):
    known = {name: float(head[name]) for name in (*TOLD_BY, "entropy")
             if name in head and np.isfinite(head[name])}
    said = []
    if "mean_distance" in known:
        said.append(f"On average this head looks {known['mean_distance']:.1f} tokens away.")
    if "entropy" in known:
        said.append("It spreads its attention as if over about "
                    f"{np.exp(known['entropy']):.1f} tokens of equal weight.")
    shares = [(f"{known[name]:.0%} {where}") for name, where in
              (("prev_token", "to the token before"), ("self_token", "to the token itself"),
               ("first_token", "to the first token")) if name in known]
    if shares:
        said.append(f"Of its attention it gives {listed(shares)}.")
    return " ".join(said)


def listed(parts):
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
