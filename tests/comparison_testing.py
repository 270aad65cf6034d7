"""What tests of comparisons share: a small one of four arms, of which one has no place, and how it is run.
The fixture `compared` of conftest.py is that comparison, finished."""

import json
import os
import subprocess

from conftest import program

TASK = """name: small
data: {kind: induction, symbols: 16, context: 16, eval_examples: 64}
model: {kind: decoder, layers: 1, d_model: 16, heads: 2}
train: {steps: 24, batch: 4, warmup: 4, min_lr: 1.0e-4, eval_every: 8, eval_batches: 1, threads: 1,
        checkpoint: {every: 4}}
log: {every: 4, stats_every: 8, attention: {every: 0}}
"""
COMPARISON = """tasks: [small.yaml]
kinds: [mha, {name: wider, set: {model.head_dim: 16}}, {name: again, attention: mha}, linformer]
rates: [1.0e-3, 4.0e-3]
choose_seeds: 9
seeds: [1, 2, 3]
"""


def start(bench, *words, out="runs"):
    jobs = [] if "--jobs" in words else ["--jobs", "2"]
    return subprocess.Popen(
        [os.path.abspath(program()), "compare", "c.yaml", "--out", out, *jobs, *words],
        cwd=bench, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compare(bench, *words, out="runs", code=0):
    process = start(bench, *words, out=out)
    printed, said = process.communicate()
    assert process.returncode == code, said
    return printed, said


def folder_of(bench, out="runs"):
    """The folder of the only comparison there."""
    found, = (bench / out / "comparisons").iterdir()
    return found


def written(folder, arms, seeds=(1, 2, 3), **task):
    """A compare.json as the program writes it, of one task and these arms; the first is the baseline."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"comparison": f"/elsewhere/runs/comparisons/{folder.name}", "baseline": arms[0]["name"],
            "seeds": list(seeds), "choose_seeds": [],
            "tasks": [{"name": "small", "measured_on": {"split": "val", "examples": 64.0, "whole_split": 1.0},
                       "notices": [], "arms": arms, **task}]}
    (folder / "compare.json").write_text(json.dumps(kept))
    return folder


def written_arm(name, mean, difference=None, reported=False):
    """An arm of it, whose losses of three seeds lie .01 apart about a mean; difference: its mean."""
    values = [mean - 0.01, mean, mean + 0.01]
    metric = {"values": values, "mean": mean, "std": 0.01, "n": 3, "difference": difference and {
        "values": [difference] * 3, "mean": difference, "std": 0.0, "interval": [difference - .02, difference + .02],
        "bootstrap": None, "p": 0.01, "p_holm": 0.02 if reported else 0.2, "reported": reported,
        "without_spread": False}}
    return {"name": name, "state": "compared", "reason": "", "parameters": 1000, "steps": 24,
            "rate": {"chosen": 0.001, "at_edge": False, "tried": []}, "metrics": {"val/loss": metric}, "notices": [],
            "curve": [{"step": step, "flops": 1e6 * step, "wall_s": step, "val/loss": mean + 8 / step,
                       "interval": [mean + 8 / step - 0.5, mean + 8 / step + 0.5], "examples": 64}
                      for step in (8, 16, 24)],
            "runs": [{"seed": seed, "run": f"/elsewhere/runs/small/{name}-s{seed}", "status": "finished"}
                     for seed in (1, 2, 3)]}
