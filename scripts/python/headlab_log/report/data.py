"""What the page shows of runs, as JSON and packed arrays; maps are in maps.py."""

import base64
import datetime
import gzip
import html
import json
import math
import re
import warnings

import numpy as np
import xarray as xr

from .. import measures
from ..compare import differing_code, differing_settings
from ..files import LogError
from ..group_names import kind_of
from ..program import program_name

ROWS = 1000  # of curves: about as many as a screen has columns


class Chunks:
    """Arrays of the page: gzip and base64, each unpacked when the page first needs it."""

    def __init__(self):
        self.elements = {}

    def add(self, name, array):
        """Stores a float32, float64, int16, int32 or uint8 array; returns its name."""
        self.elements[name] = element(name, array)
        return name

    def size(self):
        return sum(map(len, self.elements.values()))


def element(name, array, attributes=""):
    """The HTML element of an array: first bytes of all numbers, second bytes, ..., compressed."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    planes = array.reshape(-1, 1).view(np.uint8).T.tobytes()
    text = base64.b64encode(gzip.compress(planes, 6, mtime=0)).decode()
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    return f'<script type="text/plain" id="{html.escape(name)}" data-type="{kind}"{attributes}>{text}</script>\n'


def identifier(text):
    """A name from a log as a part of an element's: letters, digits, `_` and `-`."""
    return re.sub(r"[^\w-]", lambda found: f"_x{ord(found[0]):x}_", text, flags=re.ASCII)


def whole(axis):
    """The labels of an axis, as whole numbers. LogError: the log holds something else there."""
    if axis.dtype.kind not in "iu":
        raise LogError(f"{axis.encoding.get('source', 'log')}: {axis.name}: should hold whole numbers; "
                       "no headlab wrote such a log, ask its sender for the one that it wrote")
    return axis.values.tolist()


def as_json(content):
    """JSON that may stand inside a script element: tokens can be anything, such as `</script>`."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def number(value):
    """A JSON number: the shortest that is the same float32; None for NaN."""
    value = float(value)
    return float(str(np.float32(value))) if math.isfinite(value) else None


def meta(variable):
    """Unit, name and formula of a variable, as its attributes say."""
    given = variable.attrs
    return {"unit": str(given.get("units", "1")), "long_name": str(given.get("long_name", "")),
            "comment": str(given.get("comment", ""))}


def thin(length, most):
    """Row numbers: evenly spread, at most about `most`, always with the last."""
    if length <= most:
        return np.arange(length)
    return np.unique(np.linspace(0, length - 1, most).round().astype(int))


def default_title(runs):
    names = list(dict.fromkeys(run.name for run in runs))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def content(runs, labels, chunks, most):
    """Everything but maps; the arrays go to `chunks`. `most`: logged steps of statistics."""
    described = {"scalars": {}, "heads": {}, "analysis": {}, "roles": {}}
    shown = [run_content(n, run, label, chunks, described, most)
             for n, (run, label) in enumerate(zip(runs, labels))]
    if shown:
        shown[0]["notes"] += [f"Beware: {said}." for said in differing_code(runs)]
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "program": program_name(),
        "variables": described,
        "runs": shown,
        "differences": differing(runs),
    }


def run_content(n, run, label, chunks, described, most):
    sites = {site: site_content(identifier(f"s{n}-{site}"), run, site, chunks, described, most)
             for site in sites_of(run)}
    return {
        "name": run.name, "label": label, "colour": None, "notes": notes(run, label), "kind": run.kind or "unknown",
        "code": run.code,
        "seed": run.seed, "state": run.state, "path": str(run.path), "config": run.config_yaml,
        "manifest": json.dumps(run.manifest, indent=2, ensure_ascii=False),
        "heading": heading(run), "curves": curves(f"c{n}", run, chunks, described["scalars"]),
        "sites": sites, "pruning": pruning(run),
    }


def notes(run, label):
    """What the reader of the page should know first."""
    said = []
    if run.state == "killed":
        said.append(f"{label}: its writer was killed; this is what it had flushed.")
    if run.state == "failed":
        said.append(f"{label}: " + ": ".join(
            filter(None, ["failed", run.status.get("reason")])) + ".")
    for site in run.sites:
        logged = f"attention/{site}" in run
        skipped = int(run.attention(site).get("skipped_from", -1)) if logged else -1
        if skipped >= 0:
            said.append(f"{label}: no maps of {site} from step {skipped} on, which "
                        "log.attention.max_bytes of its config has left out.")
    return said


def sites_of(run):
    """Where statistics, maps or an analysis are: a sliced run may have an analysis and no log."""
    about_heads = ("heads", "analysis", "roles", "ablation")
    return list(dict.fromkeys(group.split("/")[1] for group in run.groups
                              if kind_of(group) in about_heads))


def has_rows(run, group):
    return group in run and run.group(group).sizes.get("step", 0) > 0


def last(run, group, name):
    """The number of a variable at the last step; None: there is none, or it is not finite."""
    if not has_rows(run, group) or name not in run.group(group):
        return None
    return number(run.group(group)[name].values[-1])


def last_loss(run):
    """The last training loss; of a run without a log the one that status.json says."""
    if has_rows(run, "scalars"):
        return last(run, "scalars", "train_loss")
    return number(run.status.get("metrics", {}).get("train/loss", "NaN"))  # there a text, too


def validation_losses(run):
    """The last validation loss of each measure: {in words: loss}, as last_loss()."""
    if has_rows(run, "eval"):
        return {words: number(rows.val_loss.values[-1]) for words, rows in measures.by_measure(run.evaluations)
                if "val_loss" in rows}
    said = run.status.get("metrics", {})
    if measures.LOSS not in said:
        return {}
    words = measures.text(said.get("val/whole_split"), said.get("val/tokens"))
    return {words: number(said[measures.LOSS])}


def heading(run):
    """What the table of runs says of one run; None: not known."""
    steps = run.scalars.step.values if has_rows(run, "scalars") else []
    return {
        "step": int(steps[-1]) if len(steps) else run.status.get("step"),
        "steps": run.config.get("train", {}).get("steps"),
        "train_loss": last_loss(run),
        "val_losses": validation_losses(run),
        "seconds": last(run, "scalars", "wall_time"),
        "parameters": parameters(run),
        "references": references(run),
    }


def references(run):
    """What the losses are to be held against, as the manifest has it: of a guess, and of counts of
    training. In words what they were measured on, and a list: name, loss, other values, how made."""
    said = run.manifest.get("references")
    if not isinstance(said, dict):
        return None
    try:
        rows = [{"name": str(name), "loss": number(one["loss"]), "how": str(one["comment"]),
                 "values": {str(metric).replace("_", " "): number(value) for metric, value in one.items()
                            if metric not in ("loss", "comment")}}
                for name, one in said.items() if isinstance(one, dict) and "comment" in one]
        return {"measured": measures.text(1, said["measured_on"]["tokens"]), "rows": rows}
    except (KeyError, TypeError, ValueError, OverflowError):
        return None  # another program's


def parameters(run):
    """How many numbers are trained and how many there are; None: not known."""
    said = run.manifest.get("parameters")
    if said:
        return {"trained": said["trained"], "total": said["total"]}
    return {"trained": trained_by_checkpoint(run), "total": None}


def trained_by_checkpoint(run):
    """Of a run whose manifest does not count: what its optimizer last had moments of."""
    sizes = [tensor_sizes(run.path / "ckpt/last" / f"{name}.safetensors")
             for name in ("model", "optimizer")]
    trained = [size for name, size in sizes[0].items() if f"exp_avg.{name}" in sizes[1]]
    if trained:
        return sum(trained)
    return int(run.pruning.parameters.values[-1]) if "pruning" in run else None


def tensor_sizes(path):
    """Elements of each tensor of a safetensors file, from its header; empty where there is none."""
    if not path.is_file():
        return {}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise LogError(f"{path}: not a whole safetensors file")
        header = json.loads(file.read(size))
    return {name: math.prod(entry["shape"]) for name, entry in header.items()
            if name != "__metadata__"}


def curves(name, run, chunks, described):
    """Scalars of training and validation over step, with tokens and wall time for each row.

    What was measured on other examples is a part of its own.
    """
    found, parts = {}, []
    if has_rows(run, "scalars"):
        parts.append(("train", "", run.scalars))
    if has_rows(run, "eval"):
        parts += [("eval" if n == 0 else f"eval{n}", words, rows)
                  for n, (words, rows) in enumerate(measures.by_measure(run.evaluations))]
    for part, words, dataset in parts:
        kept = thin(dataset.sizes["step"], ROWS)
        axes = {"step": dataset.step.values.astype("f8")}
        for axis in ("tokens", "wall_time"):
            if has_rows(run, "scalars") and axis in run.scalars:
                axes[axis] = np.interp(axes["step"], run.scalars.step.values,
                                       run.scalars[axis].values.astype("f8"))
        shown = {key: variable.values.astype("f8") for key, variable in dataset.data_vars.items()
                 if variable.dims == ("step",) and key not in axes
                 and not key.endswith(("_examples", "_whole_split"))}
        shown = {key: values for key, values in shown.items() if np.isfinite(values).any()}
        described.update({key: meta(dataset[key]) for key in shown})
        columns = axes | shown
        found[part] = {"names": list(columns), "rows": len(kept), "of": dataset.sizes["step"],
                       "measured": words, "id": chunks.add(f"{name}-{part}",
                                        np.array([v[kept] for v in columns.values()]))}
    return found


def site_content(name, run, site, chunks, described, most):
    logged = has_rows(run, f"heads/{site}")
    return {"statistics": statistics(name, run.heads(site), chunks, described["heads"], most)
            if logged else None, "analysis": analysis(run, site, described)}


def statistics(name, heads, chunks, described, most):
    """Statistics over training: each an array (step, layer, head), or (step, layer) of a layer."""
    logged = heads.sizes["step"]
    heads = heads.isel(step=thin(logged, most))
    entries = {}
    for key, variable in heads.data_vars.items():
        if key == "head_mask":
            continue
        described.setdefault(key, meta(variable))
        if variable.dims == ("step", "layer", "head", "head2"):
            variable = mean_over_others(variable)
            described[key] = meta(variable)
        if variable.dims not in (("step", "layer", "head"), ("step", "layer")):
            continue
        values = variable.values.astype("f4")
        if np.isfinite(values).any():
            entries[key] = {"id": chunks.add(identifier(f"{name}-{key}"), values), "heads": values.ndim == 3}
    return {"steps": whole(heads.step), "of": logged,
            "layers": whole(heads["layer"]), "heads": whole(heads["head"]),
            "entries": entries}


def mean_over_others(pairs):
    """(step, layer, head) from pairs of heads: the mean over the other heads of the layer."""
    others = pairs.where(pairs["head"] != pairs["head2"])
    with warnings.catch_warnings():  # a head without any other has no mean
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = others.mean("head2").transpose("step", "layer", "head")
    mean.attrs = dict(pairs.attrs)
    mean.attrs["comment"] = f"{pairs.attrs.get('comment', '')}; mean over the other heads"
    return mean


def grid_values(variable):
    return [number(value) for value in variable.transpose("layer", "head").values.flat]


def analysis(run, site, described):
    """What analyze and ablate found of each head; None where neither has run.

    A value of another measure than the usual one has it behind its name: `importance [test]`.
    `measured` says on what each was measured.
    """
    analyzed, ablated, roles = (
        {measure: run.group(name) for measure, name in run.measures(kind, site).items()}
        for kind in ("analysis", "ablation", "roles"))
    parts = [*analyzed.items(), *ablated.items()]
    if not parts:
        return None
    given = parts[0][1]
    found = {"layers": whole(given["layer"]), "heads": whole(given["head"]),
             "values": {}, "measured": {}, "roles": {}, "points": None, "analyzed": bool(analyzed),
             "ablated": bool(ablated)}
    for measure, part in parts:
        for key, variable in part.data_vars.items():
            if key == "head_mask":
                continue
            for name, one in by_mode(key, variable):
                if set(one.dims) == {"layer", "head"} and np.isfinite(one.values).any():
                    name += f" [{measure}]" if measure else ""
                    found["values"][name] = grid_values(one)
                    found["measured"][name] = str(one.attrs.get("measured", ""))
                    described["analysis"][name] = meta(variable)
    plane = next((part.head_map for part in analyzed.values() if "head_map" in part), None)
    if plane is not None:
        plane = plane.transpose("layer", "head", ...)
        found["points"] = [number(value) for value in plane.values.flat]
        found["plane"] = meta(plane) | {"share": number(plane.attrs.get("share", math.nan)),
                                        "measured": str(plane.attrs.get("measured", ""))}
    for key, variable in next(iter(roles.values()), xr.Dataset()).data_vars.items():
        found["roles"][key] = grid_values(variable)
        found["measured"][key] = str(variable.attrs.get("measured", ""))
        described["roles"][key] = meta(variable)
    return found


def by_mode(key, variable):
    """A variable of an ablation as one (layer, head) a mode, with the mode in the name."""
    if "mode" not in variable.dims:
        return [(key, variable)]
    modes = [str(mode.decode() if isinstance(mode, bytes) else mode)
             for mode in variable["mode"].values]
    return [(f"{key} ({mode})", variable.isel(mode=n)) for n, mode in enumerate(modes)]


def pruning(run):
    """Rounds of pruning: heads kept, loss, size, and which heads went; None without rounds."""
    if "pruning" not in run or run.pruning.sizes.get("round", 0) == 0:
        return None
    rounds = run.pruning
    found = {"names": {}, "values": {}, "removed": []}
    for key, variable in rounds.data_vars.items():
        if variable.dims == ("round",):
            found["names"][key] = meta(variable)
            found["values"][key] = [number(value) for value in variable.values]
    if "removed" in rounds:
        for gone in rounds.removed.transpose("round", "layer", "head").values:
            names = [f"{rounds['layer'].values[layer]}.{rounds['head'].values[head]}"
                     for layer, head in np.argwhere(gone == 1)]
            found["removed"].append(names)
    return found


def differing(runs):
    """[key, one text a run] for every setting that is not the same in all; None: not set."""
    def text(value):
        return value if value is None or isinstance(value, str) else json.dumps(value, default=str)
    return [[key, *map(text, values)] for key, values in differing_settings(runs).items()]
