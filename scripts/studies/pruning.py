"""How many heads can go before the loss rises, in which order, and what they were.

    scripts/studies/pruning [--seeds 3] [--jobs 2] [--out runs/study_pruning] [--set train.steps=100]

Trains the models of configs/char_mha.yaml and configs/induction_mha.yaml with several seeds, prunes
each head by head in several orders, trains gates to a number of heads, looks at what the heads do,
and prints what came of it in Markdown; OUT/pruning.png has the curves, OUT/study.json the numbers.
Runs and curves that OUT already holds are not repeated. In miniature what Michel, Levy, Neubig (2019), Voita
et al. (2019) and Olsson et al. (2022) did.
"""

import itertools
import json
import statistics

import study
from headlab_program import markdown, spread

TASKS = {
    # The loss may rise by so much (nat a token) before heads count as missed; heads that gate
    # training leaves.
    "char": {"config": "char_mha", "tolerance": 0.05, "left": [8, 4]},
    "induction": {"config": "induction_mha", "tolerance": 0.05, "left": [4, 2]},
}
IMPORTANCE = ["--by", "importance", "--reduction", "paper", "--norm", "global"]
ORDERS = {
    "importance": IMPORTANCE,
    "importance, ranked anew": [*IMPORTANCE, "--recompute"],
    "importance by layer": [*IMPORTANCE[:-1], "layer"],  # Michel et al.'s
    "single-head ablation": ["--by", "ablation"],
}
SHOWN = [*ORDERS, "random"]
COLOURS = {  # Okabe and Ito, told apart by colour-blind readers
    "importance": "#0072B2",
    "importance, ranked anew": "#56B4E9",
    "importance by layer": "#CC79A7",
    "single-head ablation": "#E69F00",
    "random": "#777777",
    "gates": "#D55E00",
    "importance, then as much training": "#009E73",
}
ROLES = {"induction": ("induction_repeated", 0.4), "previous token": ("prev_token", 0.5)}


def study_gates(bench, task, run, seed, heads):
    """Loss by heads kept: gates trained to that number, and as much training after pruning."""
    gates, tuned = {}, {}
    for left in TASKS[task]["left"]:
        study.say(f"{task} seed {seed}: gates for {left} of {heads} heads")
        gated = bench.fresh(f"gates/{task}-s{seed}-{left}")
        tune = ["--tune", bench.arguments.tune]
        bench.headlab("convert", run, "--to", "gated", "--target-heads", left, *tune, *bench.measured, "--out", gated)
        gates[left] = bench.prune(gated, "--by", "gates", "--count", heads - left)["loss"]
        pruned = bench.fresh(f"tuned/{task}-s{seed}-{left}")
        tuned[left] = bench.prune(run, *IMPORTANCE, "--count", heads - left, *tune, "--out", pruned)["loss"]
    return {"gates": gates, "importance, then as much training": tuned}


def removable(losses, tolerance):
    """How many heads go, one by one, before the loss has risen by more than the tolerance."""
    whole, *fewer = sorted(losses, reverse=True)
    tolerated = itertools.takewhile(lambda kept: losses[kept] - losses[whole] <= tolerance, fewer)
    return whole - min(tolerated, default=whole)


def study_model(bench, task, seed, run):
    study.say(f"{task} seed {seed}: pruning")
    whole = bench.headlab("analyze", run, *bench.measured)
    ablation = bench.headlab("ablate", run, *bench.measured)
    heads = list(ablation["removed"])
    orders = ORDERS | study.random_orders(bench.arguments.random)
    columns = ["loss_delta", "accuracy_delta", "p_holm", "p_examples"]
    return {
        "run": run, "heads": heads, "loss": ablation["loss"], "accuracy": ablation["accuracy"],
        "curves": {name: bench.curve(run, len(heads), name, *options) for name, options in orders.items()},
        "tuned": study_gates(bench, task, run, seed, len(heads)),
        "roles": roles_of(whole, heads),
        "ablation": {head: {name: ablation[name][n] for name in columns} for n, head in enumerate(heads)},
        "joint": joint_ablations(bench, run, whole, heads) if task == "induction" else {},
    }


def value(whole, name, head):
    layer, number = map(int, head.split(":"))
    found = whole["statistics"][name][layer][number]
    return float("nan") if found is None else found


def roles_of(whole, heads):
    return {role: [head for head in heads if value(whole, name, head) > threshold]
            for role, (name, threshold) in ROLES.items()}


def joint_ablations(bench, run, whole, heads):
    """Accuracy without all heads of a role, without all of them but the best, and without as many
    heads of no role."""
    roles = roles_of(whole, heads)
    sets = {}
    for role, (name, _) in ROLES.items():
        ranked = sorted(roles[role], key=lambda head: value(whole, name, head))
        if ranked:
            sets[f"all {role} heads"] = ranked
        if len(ranked) > 1:
            sets[f"all {role} heads but the best"] = ranked[:-1]
    others = [head for head in heads if not any(head in group for group in roles.values())]
    if others:
        sets["all heads of neither role"] = others
    return {name: {"heads": chosen, "accuracy": bench.prune(run, "--heads", *chosen)["accuracy"]}
            for name, chosen in sets.items()}


def curves_of(models, order):
    """The curves of an order, of all models."""
    return [curve for model in models for curve in study.of_order(model["curves"], order)]


def print_losses(task, models):
    count = len(models[0]["heads"])
    left = TASKS[task]["left"]
    rows = []
    for order in SHOWN:
        losses = [curve["loss"] for curve in curves_of(models, order)]
        gone = [removable(one, TASKS[task]["tolerance"]) for one in losses]
        rows.append([order, *(spread([one[n] - one[count] for one in losses]) for n in left), spread(gone, 1)])
    for name in models[0]["tuned"]:
        rows.append([name, *(spread([m["tuned"][name][n] - m["loss"] for m in models]) for n in left), None])
    print(f"\nRise of the loss (nat a token) with so many of {count} heads left:\n")
    print(markdown(["order", *left, "heads that can go"], rows), end="")


def places(models, order, role):
    """Place of the heads of a role (None: of neither) in the order of removal, a mean a model, as a cell."""
    found = []
    for model in models:
        special = {head for group in model["roles"].values() for head in group}
        group = model["roles"][role] if role else [head for head in model["heads"] if head not in special]
        orders = [curve["order"] for curve in curves_of([model], order)]
        if group:
            found.append(statistics.mean(one.index(head) / (len(one) - 1) for one in orders for head in group))
    return spread(found, 2) if found else "–"


def print_roles(models):
    print("\nPlace in the order of removal (0 first, 1 last; mean over a model's heads):\n")
    rows = [[order, *(places(models, order, role) for role in [*ROLES, None])] for order in SHOWN]
    print(markdown(["order", *(f"{role} heads" for role in ROLES), "heads of neither role"], rows), end="")
    rows = [["none", spread([m["accuracy"] for m in models]), None]]
    for name in dict.fromkeys(name for m in models for name in m["joint"]):
        found = [m["joint"][name] for m in models if name in m["joint"]]
        rows.append([name, spread([one["accuracy"] for one in found]),
                     "; ".join(", ".join(one["heads"]) for one in found)])
    print("\nAccuracy of copying with heads ablated:\n")
    print(markdown(["ablated", "accuracy", "heads, seed by seed"], rows, "|---|--:|---|"), end="")


def draw(measured, path):
    figure, axes = study.pyplot().subplots(1, len(measured), figsize=(5.2 * len(measured), 4), layout="constrained")
    for axis, (task, models) in zip(axes, measured.items()):
        count = len(models[0]["heads"])
        for order in SHOWN:
            gone = range(count + 1)
            losses = [[curve["loss"][count - n] for n in gone] for curve in curves_of(models, order)]
            study.draw_band(axis, gone, losses, COLOURS[order], order)
        for name, marker in (("gates", "o"), ("importance, then as much training", "s")):
            left = TASKS[task]["left"]
            means = [statistics.mean(m["tuned"][name][n] for m in models) for n in left]
            axis.plot([count - n for n in left], means, marker, color=COLOURS[name], label=name)
        axis.set(title=f"{TASKS[task]['config']}, {len(models)} seeds", xlabel="heads removed",
                 ylabel="validation loss [nat a token]")
        axis.set_xticks(range(0, count + 1, 2 if count > 8 else 1))
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=120)


def main():
    parser = study.parser_of(__doc__, "runs/study_pruning", seeds=3, random=3, threads=1, batches=8, set=[])
    parser.add_argument("--jobs", type=int, default=2, help="models at a time")
    parser.add_argument("--tune", type=int, default=400, help="updates of gate training")
    parser.add_argument("--tasks", default=",".join(TASKS))
    arguments = parser.parse_args()
    bench = study.Bench(arguments)
    tasks = arguments.tasks.split(",")
    runs = bench.trained([TASKS[task]["config"] for task in tasks], arguments.jobs)
    models = study.in_parallel(
        arguments.jobs, lambda task, seed: study_model(bench, task, seed, runs[TASKS[task]["config"], seed]),
        [(task, seed) for task in tasks for seed in bench.seeds])
    measured = {task: [models[task, seed] for seed in bench.seeds] for task in tasks}
    (arguments.out / "study.json").write_text(json.dumps(measured, indent=1))
    print(f"{bench.heading()}; first {arguments.batches} validation batches")
    for task, models in measured.items():
        print(f"\n### {TASKS[task]['config']}: loss {spread([m['loss'] for m in models])}, accuracy "
              f"{spread([m['accuracy'] for m in models])}, {len(models)} seeds")
        print_losses(task, models)
        if task == "induction":
            print_roles(models)
    if len(measured) > 1:
        draw(measured, arguments.out / "pruning.png")


if __name__ == "__main__":
    study.run(main)
