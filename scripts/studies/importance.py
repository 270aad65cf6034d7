"""Which importance by gradient loses least when heads go: every reduction and norm, ranked once and
anew, with and without a head that every layer keeps, beside single-head ablation and random orders.

    scripts/studies/importance [--kinds mha,moh,dcmha] [--seeds 3] [--out runs/study_pruning]

Trains configs/char_KIND.yaml and configs/induction_KIND.yaml with several seeds, removes their heads
in eight steps in every order, without any update, and prints in Markdown by how much the loss had
risen with 25, 50 and 75 % of the heads gone. Runs and curves that OUT already holds are not repeated.
The norm `none` is not measured: `global` divides all by one number, so that both rank alike. Two hours
on two cores.
"""

import collections
import itertools
import statistics

import matplotlib.ticker

import study
from headlab_program import markdown, spread

REDUCTIONS = ["paper", "per_position", "batch"]
NORMS = ["layer", "global"]
STEPS = 8  # in which all heads go; `ranked anew` ranks before each
SHARES = [0.25, 0.5, 0.75]  # of the heads gone
KEEPING = ["paper, layer", "paper, global", "single-head ablation"]  # orders measured also so that
KEPT = "one a layer kept"
DRAWN = {  # in the picture, with colours of Okabe and Ito
    "paper, layer": "#56B4E9",
    "paper, global": "#0072B2",
    "single-head ablation": "#E69F00",
    "random": "#777777",
}


def orders(draws, anew):
    """Options of prune by the name of the order."""
    found = {}
    ways = {"": [], ", ranked anew": ["--recompute"]} if anew else {"": []}
    for way, more in ways.items():
        for reduction, norm in itertools.product(REDUCTIONS, NORMS):
            ranked = ["--by", "importance", "--reduction", reduction, "--norm", norm]
            found[f"{reduction}, {norm}{way}"] = [*ranked, *more]
        found[f"single-head ablation{way}"] = ["--by", "ablation", *more]
        for order in KEEPING:
            found[f"{order}, {KEPT}{way}"] = [*found[order + way], "--keep-per-layer", "1"]
    return found | study.random_orders(draws)


def measure(bench, run):
    """Loss by number of heads left, by order."""
    return {order: bench.curve(run, STEPS, order, *options)["loss"] for order, options
            in orders(bench.arguments.random, not bench.arguments.once).items()}


def rises(losses):
    """Rise of the loss at each share of heads gone."""
    heads = max(losses)
    return [losses[heads - round(share * heads)] - losses[heads] for share in SHARES]


def names(curves):
    """The orders of a model, of which the random one may have several curves."""
    return list(dict.fromkeys("random" if order.startswith("random ") else order for order in curves))


def print_rises(name, models):
    rows = []
    for order in names(models[0]):
        values = [rises(losses) for curves in models for losses in study.of_order(curves, order)]
        rows.append([order, *(spread(of_share) for of_share in zip(*values))])
    whole = spread([max(curves["random 0"].items())[1] for curves in models])
    print(f"\n### {name}: loss {whole}, {len(models)} seeds\n")
    print(markdown(["order", *(f"{share:.0%} gone" for share in SHARES)], rows), end="")


def print_pairs(models):
    """Every order against the first, model by model: the mean over the shares of heads gone."""
    of_model = [{order: statistics.mean(rise for losses in study.of_order(curves, order) for rise in rises(losses))
                 for order in names(curves)} for curves in models]
    first, *others = of_model[0]
    rows = []
    for order in others:
        less = [m[order] - m[first] for m in of_model]
        rows.append([order, f"{sum(d < 0 for d in less)} of {len(less)}", f"{statistics.median(less):.3f}",
                     f"{min(less):.3f} to {max(less):.3f}"])
    print(f"\n### Mean over the three shares, model by model, less that of `{first}`\n")
    print(markdown(["order", "lower in", "median", "lowest to highest"], rows), end="")


def draw(measured, path):
    tasks = list(dict.fromkeys(task for task, _ in measured))
    columns = max(sum(t == task for t, _ in measured) for task in tasks)
    figure, axes = study.pyplot().subplots(len(tasks), columns, figsize=(4 * columns, 3.2 * len(tasks)),
                                           layout="constrained", squeeze=False)
    for (task, kind), models in measured.items():
        column = [k for t, k in measured if t == task].index(kind)
        axis = axes[tasks.index(task)][column]
        for order, colour in DRAWN.items():
            curves = [losses for m in models for losses in study.of_order(m, order)]
            heads = max(curves[0])
            gone = sorted(heads - left for left in curves[0])
            study.draw_band(axis, gone, [[c[heads - n] - c[heads] for n in gone] for c in curves], colour, order)
        axis.set(title=f"{task}_{kind}", xlabel="heads removed", ylabel="rise of the loss [nat a token]")
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


def main():
    parser = study.parser_of(__doc__, "runs/study_pruning", seeds=3, random=3, threads=1, batches=8, set=[])
    parser.add_argument("--tasks", default="char,induction")
    parser.add_argument("--kinds", default="mha,moh,dcmha")
    parser.add_argument("--once", action="store_true", help="leave out what is ranked anew")
    bench = study.Bench(parser.parse_args())
    models = list(itertools.product(bench.arguments.tasks.split(","), bench.arguments.kinds.split(",")))
    runs = bench.trained([f"{task}_{kind}" for task, kind in models])
    measured = collections.defaultdict(list)
    for seed, (task, kind) in itertools.product(bench.seeds, models):
        study.say(f"{task}_{kind} seed {seed}")
        measured[task, kind].append(measure(bench, runs[f"{task}_{kind}", seed]))
    measured = dict(sorted(measured.items()))
    print(f"{bench.heading()}; first {bench.arguments.batches} validation batches")
    for (task, kind), of_seeds in measured.items():
        print_rises(f"{task}_{kind}", of_seeds)
    print_pairs([curves for of_seeds in measured.values() for curves in of_seeds])
    draw(measured, bench.out / "importance.png")


if __name__ == "__main__":
    study.run(main)
