"""How many heads can go before the loss rises, in which order, and what they were.

    scripts/studies/pruning [--seeds 3] [--jobs 2] [--out runs/study_pruning] [--set train.steps=100]

Trains the models of configs/char_mha.yaml and configs/induction_mha.yaml with several seeds, prunes
each head by head in several orders, trains gates to a number of heads, looks at what the heads do,
and prints what came of it in Markdown; OUT/pruning.png has the curves, OUT/study.json the numbers.
Runs and curves that OUT already holds are not repeated. In miniature what Michel, Levy, Neubig (2019), Voita
et al. (2019) and Olsson et al. (2022) did.
"""

import argparse
import concurrent.futures
import json
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from headlab_program import FIRST_SEED, ProgramError, spread  # noqa: E402
from study import Bench, add_options  # noqa: E402

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
        bench.say(f"{task} seed {seed}: gates for {left} of {heads} heads")
        gated = bench.fresh(f"gates/{task}-s{seed}-{left}")
        updates = ["--tune", bench.arguments.tune, "--threads", bench.arguments.threads]
        bench.headlab("convert", run, "--to", "gated", "--target-heads", left, *updates,
                      "--batches", bench.arguments.batches, "--out", gated)
        report = bench.prune(gated, "--by", "gates", "--count", heads - left)
        gates[left] = report["loss"]
        pruned = bench.fresh(f"tuned/{task}-s{seed}-{left}")
        report = bench.prune(run, *IMPORTANCE, "--count", heads - left,
                             "--tune", bench.arguments.tune, "--out", pruned)
        tuned[left] = report["loss"]
    return {"gates": gates, "importance, then as much training": tuned}


def removable(losses, tolerance):
    """How many heads go, one by one, before the loss has risen by more than the tolerance."""
    kept = sorted(losses, reverse=True)
    whole = losses[kept[0]]
    gone = 0
    for n in kept[1:]:
        if losses[n] - whole > tolerance:
            break
        gone = kept[0] - n
    return gone


def study_model(bench, task, seed, run):
    bench.say(f"{task} seed {seed}: pruning")
    whole = bench.headlab("analyze", run, *bench.measured)
    ablation = bench.headlab("ablate", run, *bench.measured)
    heads = whole_heads(ablation)
    curves = {}
    for name, options in ORDERS.items():
        curves[name] = bench.curve(run, len(heads), name, *options)
    for n in range(bench.arguments.random):
        name = f"random {n}"
        curves[name] = bench.curve(run, len(heads), name, "--by", "random", "--seed", str(n))
    return {
        "run": run,
        "heads": heads,
        "loss": ablation["loss"],
        "accuracy": ablation["accuracy"],
        "curves": curves,
        "tuned": study_gates(bench, task, run, seed, len(heads)),
        "roles": roles_of(whole, heads),
        "ablation": {head: {"loss_delta": loss, "accuracy_delta": accuracy, "p_holm": p,
                            "p_examples": examples}
                     for head, loss, accuracy, p, examples in zip(
                         ablation["removed"], ablation["loss_delta"], ablation["accuracy_delta"],
                         ablation["p_holm"], ablation["p_examples"])},
        "joint": joint_ablations(bench, task, run, whole, heads),
    }


def whole_heads(ablation):
    return list(ablation["removed"])


def value(whole, name, head):
    layer, number = map(int, head.split(":"))
    found = whole["statistics"][name][layer][number]
    return float("nan") if found is None else found


def roles_of(whole, heads):
    return {role: [head for head in heads if value(whole, name, head) > threshold]
            for role, (name, threshold) in ROLES.items()}


def joint_ablations(bench, task, run, whole, heads):
    """Accuracy without all heads of a role, without all of them but the best, and without as many
    heads of no role."""
    if task != "induction":
        return {}
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


def curves_named(model, order):
    """The curves of one order: one, or one for each draw of a random order."""
    return [c for name, c in model["curves"].items() if name == order or
            (order == "random" and name.startswith("random "))]


def all_orders():
    return [*ORDERS, "random"]


def print_losses(task, models):
    count = len(models[0]["heads"])
    left = TASKS[task]["left"]
    print(f"\nRise of the loss (nat a token) with so many of {count} heads left:\n")
    print("| order | " + " | ".join(str(n) for n in left) + " | heads that can go |")
    print("|---|" + "--:|" * (len(left) + 1))
    for order in all_orders():
        cells = [spread([c["loss"][n] - c["loss"][count]
                         for m in models for c in curves_named(m, order)]) for n in left]
        gone = spread([removable(c["loss"], TASKS[task]["tolerance"])
                       for m in models for c in curves_named(m, order)], 1)
        print(f"| {order} | " + " | ".join(cells) + f" | {gone} |")
    for name in models[0]["tuned"]:
        cells = [spread([m["tuned"][name][n] - m["loss"] for m in models]) for n in left]
        print(f"| {name} | " + " | ".join(cells) + " | |")


def last_place(model, order, heads):
    """Mean place of some heads in the orders of removal: 0 goes first, 1 last."""
    places = []
    for c in curves_named(model, order):
        places += [c["order"].index(head) / (len(c["order"]) - 1) for head in heads]
    return statistics.mean(places) if places else None


def print_roles(models):
    print("\nPlace in the order of removal (0 first, 1 last; mean over a model's heads):\n")
    print("| order | " + " | ".join(f"{role} heads" for role in ROLES) + " | heads of neither role |")
    print("|---|" + "--:|" * (len(ROLES) + 1))
    for order in all_orders():
        cells = []
        for role in [*ROLES, None]:
            places = []
            for m in models:
                special = {h for group in m["roles"].values() for h in group}
                group = m["roles"][role] if role else [h for h in m["heads"] if h not in special]
                place = last_place(m, order, group)
                places += [] if place is None else [place]
            cells.append(spread(places, 2) if places else "–")
        print(f"| {order} | " + " | ".join(cells) + " |")
    print("\nAccuracy of copying with heads ablated:\n")
    print("| ablated | accuracy | heads, seed by seed |")
    print("|---|--:|---|")
    print(f"| none | {spread([m['accuracy'] for m in models])} | |")
    names = list(dict.fromkeys(name for m in models for name in m["joint"]))
    for name in names:
        found = [m["joint"][name] for m in models if name in m["joint"]]
        chosen = "; ".join(", ".join(f["heads"]) for f in found)
        print(f"| {name} | {spread([f['accuracy'] for f in found])} | {chosen} |")


def draw(study, path):
    figure, axes = plt.subplots(1, len(study), figsize=(5.2 * len(study), 4), layout="constrained")
    for axis, (task, models) in zip(axes, study.items()):
        count = len(models[0]["heads"])
        for order in all_orders():
            curves = [c["loss"] for m in models for c in curves_named(m, order)]
            gone = range(count + 1)
            means = [statistics.mean(c[count - n] for c in curves) for n in gone]
            axis.plot(gone, means, color=COLOURS[order], label=order)
            axis.fill_between(gone, [min(c[count - n] for c in curves) for n in gone],
                              [max(c[count - n] for c in curves) for n in gone],
                              color=COLOURS[order], alpha=0.15, linewidth=0)
        for name, marker in (("gates", "o"), ("importance, then as much training", "s")):
            left = TASKS[task]["left"]
            axis.plot([count - n for n in left],
                      [statistics.mean(m["tuned"][name][n] for m in models) for n in left],
                      marker, color=COLOURS[name], label=name)
        axis.set(title=f"{TASKS[task]['config']}, {len(models)} seeds", xlabel="heads removed",
                 ylabel="validation loss [nat a token]")
        axis.set_xticks(range(0, count + 1, 2 if count > 8 else 1))
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--jobs", type=int, default=2, help="models at a time")
    parser.add_argument("--tune", type=int, default=400, help="updates of gate training")
    parser.add_argument("--tasks", default=",".join(TASKS))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    tasks = arguments.tasks.split(",")
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    runs = bench.trained([TASKS[task]["config"] for task in tasks], seeds, arguments.jobs)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:  # the work is elsewhere
        models = {(task, seed): pool.submit(study_model, bench, task, seed,
                                            runs[TASKS[task]["config"], seed])
                  for task in tasks for seed in seeds}
        study = {task: [models[task, seed].result() for seed in seeds] for task in tasks}
    (arguments.out / "study.json").write_text(json.dumps(study, indent=1))
    print(bench.heading())
    for task, models in study.items():
        print(f"\n### {TASKS[task]['config']}: loss {spread([m['loss'] for m in models])}, accuracy "
              f"{spread([m['accuracy'] for m in models])}, {len(models)} seeds")
        print_losses(task, models)
        if task == "induction":
            print_roles(models)
    if len(study) > 1:
        draw(study, arguments.out / "pruning.png")


if __name__ == "__main__":
    try:
        main()
    except ProgramError as error:
        sys.exit(str(error))
