"""What single claims ask of trained runs beside the comparison: conversions, likeness of maps, gates against
random heads, importance while a model trains, when induction heads form."""

import json
import pathlib
import tempfile

import h5py
import numpy as np

import comparison
import headlab_log as hl
from headlab_program import ROOT, headlab, said, spread
from study import origin, provenance

SHARED = (64, 32, 16)  # features that converted heads share, of 128
TUNE = 400             # updates behind a cut
STEPS = (100, 200, 500, 1000)
INDUCTION = 0.4        # score from which on a head counts as one


def analysis(arguments, run, *options):
    """One `headlab analyze` of a run, as the h5py group of self-attention (NumPy arrays by name)."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "analysis.h5"
        headlab(arguments.program, "analyze", run, "--threads", 1, "--out", out, *options)
        with h5py.File(out) as file:
            return {name: np.array(value) for name, value in file["analysis/self"].items()}


def shared_conversions(arguments, run):
    """What the loss rises by when plain heads are made to share features of queries and keys."""
    found = {}
    for r in SHARED:
        done = headlab(arguments.program, "convert", run, "--to", "collaborative", "--shared-dim", r,
                       "--batches", 0, "--threads", 1)
        found[f"converted to R = {r}"] = done["loss_after"] - done["loss_before"]
    return found


def matching_rank(arguments, run):
    """Dimensions that hold 95 % of what a layer's heads match together, mean over layers; of 128."""
    ranks = analysis(arguments, run, "--batches", 1, "--stats", "qk_layer_rank_95")
    return {"qk_layer_rank_95": float(ranks["qk_layer_rank_95"].mean())}


def map_cosine(arguments, run):
    """Mean over rows of the cosine of a head's weights and those of the same head a layer before."""
    maps = analysis(arguments, run, "--batches", 1, "--maps", 64, "--stats", "attention")["attention"].astype(float)
    here, before = maps[:, 1:], maps[:, :-1]
    norms = np.linalg.norm(here, axis=-1) * np.linalg.norm(before, axis=-1)
    return {"cosine of maps": float(((here * before).sum(-1) / norms).mean())}


def cut_to_half(arguments, run):
    """Loss of the whole model, and by what it rises with half of the heads and as much training in each way:
    gates that train towards it, the least important ones cut, random ones cut."""
    whole = headlab(arguments.program, "eval", run, "--threads", 1)
    heads = hl.open_run(run).heads()
    half = heads.sizes["layer"] * heads.sizes["head"] // 2
    common = ["--batches", 0, "--threads", 1]
    cut = ["prune", run, "--count", half, "--tune", TUNE, "--bench-batch", 1, *common]
    with tempfile.TemporaryDirectory() as folder:
        gated = pathlib.Path(folder) / "gated"
        headlab(arguments.program, "convert", run, "--to", "gated", "--target-heads", half, "--tune", TUNE,
                *common, "--out", gated)
        losses = {
            "gates": headlab(arguments.program, "prune", gated, "--by", "gates", "--count", half,
                             "--bench-batch", 1, *common)["loss"],
            "importance": headlab(arguments.program, *cut, "--out", f"{folder}/cut")["loss"],
            "random": headlab(arguments.program, *cut, "--by", "random", "--out", f"{folder}/random")["loss"]}
    return {f"half by {way}": loss - whole["loss"] for way, loss in losses.items()}


# By the claim and the arm: what is measured of each run.
OF_ARM = {
    ("02_collaborative", "mha"): [shared_conversions, matching_rank],
    ("07_reattention", "mha"): [map_cosine],
    ("10_half", "mha"): [cut_to_half],
}


def of_arm(arguments, claim, arm, runs):
    """What is measured of an arm for one claim, by name a list with one number a run."""
    found = {}
    for measure in OF_ARM.get((claim, arm), []):
        of_runs = [measure(arguments, run) for run in runs]
        found |= {name: [one[name] for one in of_runs] for name in of_runs[0]}
    return found


def file_of(name):
    return ROOT / f"configs/sweeps/claims/{name}.yaml"


def swept(arguments, name):
    """Runs of a sweep with the settings that tell them apart, and when and on what they were trained."""
    done = json.loads(said(arguments.program, "sweep", file_of(name), "train.threads=1", "--jobs",
                           arguments.jobs, "--out", arguments.out, "--json", progress=True))
    report = {"trained": provenance([origin(point["run"]) for point in done["points"]]),
              "command": f"headlab sweep configs/sweeps/claims/{name}.yaml train.threads=1"}
    return done["points"], report


def importance_at(arguments, run, step):
    checkpoint = pathlib.Path(run) / f"ckpt/step-{step:08}"
    return analysis(arguments, checkpoint, "--importance")["importance_global"].ravel()


def importance_in_training(arguments):
    """At each step the correlation of the heads' importance with that at the end, and how many of the lower
    half of the heads are of the lower half then."""
    points, report = swept(arguments, "11_importance")
    report["steps"] = {str(step): {"r": [], "overlap": []} for step in STEPS}
    for point in points:
        end = importance_at(arguments, point["run"], 2000)
        half = len(end) // 2
        for step in STEPS:
            at = importance_at(arguments, point["run"], step)
            both = set(np.argsort(at)[:half]) & set(np.argsort(end)[:half])
            report["steps"][str(step)]["r"].append(float(np.corrcoef(at, end)[0, 1]))
            report["steps"][str(step)]["overlap"].append(len(both) / half)
    return report


def first_step(steps, reached):
    """The first step from which on it is reached, or None."""
    at = np.flatnonzero(reached)
    return int(steps[at[0]]) if len(at) else None


def induction_heads(arguments):
    """Of two layers and of one: the best head's score at the end, the step at which it had passed half of
    that, the step at which the training loss had fallen half of its way; accuracy without these heads."""
    points, report = swept(arguments, "12_induction")
    report["layers"] = {}
    for point in points:
        run = hl.open_run(point["run"])
        heads, scalars = run.heads(), run.scalars
        score = heads.induction.max(("layer", "head"))
        loss = scalars.train_loss
        half = float(loss[0] + loss[-1]) / 2
        ranked = [(float(value), int(layer), int(head))
                  for (layer, head), value in np.ndenumerate(heads.induction.isel(step=-1).values)]
        found = [f"{layer}:{head}" for value, layer, head in sorted(ranked) if value > INDUCTION]
        one = {"score": float(score[-1]), "loss": float(loss[-1]),
               "score_step": first_step(score.step.values, score.values > float(score[-1]) / 2),
               "loss_step": first_step(loss.step.values, loss.values < half),
               "heads": len(found),
               "accuracy": headlab(arguments.program, "eval", point["run"], "--threads", 1)["accuracy"]}
        for name, gone in (("without_all", found), ("with_the_best", found[:-1])):
            if gone:
                one[name] = headlab(arguments.program, "prune", point["run"], "--heads", *gone,
                                    "--bench-batch", 1, "--threads", 1)["accuracy"]
        report["layers"].setdefault(str(heads.sizes["layer"]), []).append(one)
    return report


SWEEPS = {"11_importance": importance_in_training, "12_induction": induction_heads}


COLUMNS = {"score": "best head's score", "score_step": "step of half the score",
           "loss_step": "step of half the loss's fall", "heads": f"heads above {INDUCTION}",
           "loss": "training loss [nat]", "accuracy": "accuracy", "without_all": "without these heads",
           "with_the_best": "without all but the best"}


def table(name, report):
    """Of a sweep's claim: mean and standard deviation over the seeds."""
    if name == "11_importance":
        head = ["step", "correlation with importance at the end", "overlap of the lower halves"]
        rows = [[step, spread(found["r"], 2), spread(found["overlap"], 2)] for step, found in report["steps"].items()]
    else:
        head, rows = ["layers", *COLUMNS.values()], []
        for layers, runs in report["layers"].items():
            values = [[one[column] for one in runs if one.get(column) is not None] for column in COLUMNS]
            rows.append([layers, *(spread(found, 0 if column.endswith("step") else 3) if found else "-"
                                   for column, found in zip(COLUMNS, values))])
    return f"{report['trained']}; `scripts/{report['command']}`\n\n{comparison.table(head, rows)}"
