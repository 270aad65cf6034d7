"""Shows a run in the terminal while it trains: progress, loss curves, a statistic of every head."""

import argparse
import contextlib
import math
import os
import pathlib
import select
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Sequence

import numpy as np

from .command import TERMINATED, taken, told_plainly
from .extras import needed
from .files import LogError, LogWarning, PathLike
from .measures import by_measure
from .opening import find_run, open_run
from .program import program_name
from .run import Run
from .text import printable, shell_word

TRAINING, VALIDATION = (153, 153, 153), (0, 114, 178)
RECENT = 20  # logged rows by which the remaining time is judged
PATIENCE = 5  # looks in a row at a log that cannot be read: a new one is being made, or mended
SMALLEST = 9  # lines of a plot that is worth its place
LOWEST = 5  # lines of a plot that is one at all
LEGEND = "loss [nat]: line: training batch, o: validation"
WHOLE = ", #: of the whole split"


def lines_of(run: Run, width: int = 80, height: int | None = None, colour: bool = False,
             statistic: str | None = None, site: str | None = None) -> list[str]:
    """The lines that show a run, of at most `width` columns; where `height` is given, so many.

    statistic: of the heads, at a site; default: entropy or the first there is, at the first site.
    LogError: there is no such statistic or site.

    >>> from headlab_log.watch import lines_of
    >>> lines_of(run)[0]
    'char_mha s1337: mha, 2 layers, 3 heads, finished'
    """
    if "scalars" not in run:
        return wrapped([f"{run.path}: has just been started; waiting for its log.h5"], width)
    if not run.scalars.sizes["step"]:
        return wrapped([headline(run), "nothing is logged yet"], width)
    above = wrapped([headline(run), *progress(run, width)], width)
    below = heads_table(run, width, colour, statistic, site)
    room = 16 if height is None else min(height - len(above) - len(below), 20)
    if room < SMALLEST:  # rather fewer heads than no curves
        more = wrapped(["... (a higher window has more)"], width)
        kept = max(height - len(above) - SMALLEST - len(more), 0)
        below = [*below[:kept], *more]
        room = height - len(above) - len(below)
    plot = loss_plot(run, width, room, colour) if room >= LOWEST else []
    return (above + plot + below)[:height]


def wrapped(lines, width):
    return [part for line in lines for part in textwrap.wrap(printable(line), width)]


def headline(run):
    model = run.config.get("model", {})
    sizes = [f"{model.get(name, '?')} {name if model.get(name) != 1 else name[:-1]}"
             for name in ("layers", "heads")]
    said = {"stopped": "stopped before its end; the same command goes on",
            "killed": f"its writer was killed; `{program_name()} repair {shell_word(run.path / 'log.h5')}` mends it",
            "failed": ": ".join(filter(None, ["failed", run.status.get("reason")]))}
    return f"{run.label}: " + ", ".join([run.kind, *sizes, said.get(run.state, run.state)])


def progress(run, width):
    """How far it is, how fast, and the last losses."""
    scalars = run.scalars
    step, steps = int(scalars.step[-1]), total_steps(run)
    parts = [f"step {step}"]
    if steps:
        parts = [f"step {step} of {steps}", f"{100 * step // steps} %"]
    speed = [float(value) for value in scalars.get("tokens_per_s", [])[-1:]]
    parts += [f"{value:,.0f} tokens/s" for value in speed if value > 0]
    if steps and run.state == "running" and (left := seconds_left(scalars, steps)) is not None:
        parts.append(f"{duration(left)} left")
    text = ", ".join(parts)
    if steps:
        cells = max(min(width - len(text) - 3, 30), 0)
        done = cells * step // steps
        text = f"[{'#' * done}{'-' * (cells - done)}] {text}"
    losses = f"loss: training {float(scalars.train_loss[-1]):.4f} nat"
    if "eval" in run and run.evaluations.sizes["step"]:
        evaluations = run.evaluations
        at = int(evaluations.step[-1])
        on = evaluations.measured.values[-1].split(",")[0]
        losses += f", validation {float(evaluations.val_loss[-1]):.4f} nat (step {at}, {on})"
    return [text, losses]


def total_steps(run):
    """Updates of the whole run, in which its manifest counts epochs, too; None: not to be known."""
    asked = run.config.get("train", {})
    known = run.manifest.get("steps", None if asked.get("epochs") else asked.get("steps"))
    return known if isinstance(known, int) and known > 0 else None


def seconds_left(scalars, steps):
    recent = scalars.isel(step=slice(-RECENT, None))
    done = int(recent.step[-1] - recent.step[0])
    if done == 0:
        return None
    return float(recent.wall_time[-1] - recent.wall_time[0]) / done * (steps - int(recent.step[-1]))


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s`, `2 h 5 min`.

    >>> from headlab_log.watch import duration
    >>> duration(200)
    '3 min 20 s'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def loss_plot(run, width, height, colour):
    plotext = needed("plotext", "watch")
    scalars = run.scalars
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    # plotext leaves out a title that its frame, without the numbers beside it, has no room for.
    parts = by_measure(run.evaluations) if "eval" in run else []
    legend = LEGEND + (WHOLE if len(parts) > 1 else "")
    figure.title(legend if width >= len(legend) + 10 else legend.partition(":")[0])
    figure.label("step")
    steps, losses = scalars.step.values, scalars.train_loss.values
    there = np.isfinite(losses)
    if not there.any():
        return ["no finite loss yet"]
    training = figure.signal(steps[there].tolist(), losses[there].tolist(),
                             marker=plotext.marker("braille", pixel=TRAINING))
    figure.draw(training.lines() if there.sum() > 1 else training)
    values = [losses[there]]
    for n, (_, rows) in enumerate(parts):
        known = rows.val_loss.dropna("step")
        if not known.size:
            continue
        figure.draw(figure.signal(known.step.values.tolist(), known.values.tolist(),
                                  marker=plotext.marker("#" if n else "o", pixel=VALIDATION)))
        values.append(known.values)
    for axis, numbers in (("x", steps), ("y", np.concatenate(values))):
        low, high = float(numbers.min()), float(numbers.max())
        ticks = round_ticks(low, high, 5)
        ruler = figure.ruler(axis)
        ruler.ticks(ticks, [f"{tick:g}" for tick in ticks])
        if low < high:
            ruler.lim(low, high)
    return figure.build().string(colorless=not colour).rstrip("\n").split("\n")


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """Up to about `count` round numbers from low to high.

    >>> from headlab_log.watch import round_ticks
    >>> round_ticks(1.7, 4.2, 5)
    [2.0, 2.5, 3.0, 3.5, 4.0]
    """
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * f for f in (1, 2, 5, 10, 20) if (high - low) / (power * f) <= count + 0.5)
    return [round(n * step, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def heads_table(run, width, colour, statistic=None, site=None):
    """One statistic of every head at the last step, a line a layer; blank: no such head."""
    if site is None and not run.sites:
        return wrapped(["no statistics of heads are logged"], width)
    site = site or run.sites[0]
    if site not in run.sites:
        raise LogError(f"{run.path}: no site {site!r}; there are {', '.join(run.sites) or 'none'}")
    heads = run.heads(site)
    names = [name for name in heads.data_vars
             if heads[name].dims == ("step", "layer", "head") and name != "head_mask"]
    if statistic is None:
        known = names
        if heads.sizes["step"]:  # a kind without a map has no entropy
            known = [name for name in names if np.isfinite(heads[name].values[-1]).any()]
            if names and not known:
                return wrapped([f"no statistic of heads has a number: compute() of kind {run.kind!r} "
                                "tells its observer nothing (docs/own_kind.md)"], width)
        statistic = "entropy" if "entropy" in known else next(iter(known), None)
    if statistic not in names:
        raise LogError(f"{run.path}: no statistic {statistic!r} of heads at site {site!r}; "
                       f"there are {', '.join(names) or 'none'}")
    if not heads.sizes["step"]:
        return wrapped([f"{statistic} of heads: nothing logged yet"], width)
    last = heads[statistic].isel(step=-1)
    unit = last.attrs.get("units", "1")
    at = "" if len(run.sites) == 1 else f" at {site}"
    title = f"{statistic} {'' if unit == '1' else f'[{unit}] '}of heads{at}, step {int(last.step)}"
    return [*wrapped([title], width), *table_lines(last, width, colour)]


def table_lines(values, width, colour):
    """(layer, head) as a table, in blocks of as many heads as fit."""
    size, lines = 7, []
    fit = max((width - 6) // size, 1)
    numbers = values["head"].values
    for start in range(0, len(numbers), fit):
        block = values.isel(head=slice(start, start + fit))
        lines.append("layer " + "".join(f"{f'H{n}':>{size}}" for n in block["head"].values))
        for row in block:
            cells = "".join(cell(float(value), values, size, colour) for value in row)
            lines.append(f"{int(row['layer']):>5} {cells}".rstrip())
    return lines


def cell(value, values, size, colour):
    """A number, on a ground that is the brighter the higher it is among `values`."""
    if math.isnan(value):
        return " " * size
    text = f"{number(value):>{size}}"
    if not colour:
        return text
    colormaps = needed("matplotlib", "watch").colormaps
    low, high = float(values.min()), float(values.max())
    red, green, blue, _ = colormaps["cividis"]((value - low) / (high - low or 1), bytes=True)
    ink = 30 if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else 97
    return f"\x1b[{ink};48;2;{red};{green};{blue}m{text}\x1b[0m"


def number(value: float) -> str:
    """Four digits, in six characters at the most.

    >>> from headlab_log.watch import number
    >>> [number(value) for value in (0.5, -12.3456, 1234.5, 0.00012, -123456)]
    ['0.500', '-12.35', '1234', '1e-04', '-1e+05']
    """
    size = abs(value)
    if size >= 10000 or 0 < size < 0.001:
        return f"{value:.0e}"
    return f"{value:.{3 - int(math.log10(max(size, 1)))}f}"


@contextlib.contextmanager
def screen():
    """The terminal's other screen without a cursor; whatever happens, the usual one comes back."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def show(lines):
    """Over what was there before, without a flicker."""
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines[:-1])
                     + f"{lines[-1]}\x1b[K\x1b[J")
    sys.stdout.flush()


def look(path: PathLike) -> Run:
    """The run as it is now, read into memory. LogError: there is none, or none that logs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogWarning)  # the headline says it
        run = open_run(path)
    if "scalars" not in run and run.status.get("status", "running") != "running":
        raise LogError(f"{run.path}: nothing to watch: it has no log.h5")
    for group in ("scalars", "eval", *(f"heads/{site}" for site in run.sites)):
        if group in run:
            run.group(group)
    return run


@contextlib.contextmanager
def asked_to_end():
    """Whether Ctrl-C or SIGTERM came within a number of seconds, as a function of these: at once where
    one does. The command ends with their exit code afterwards.

    An exception, which they raise usually, is lost where it meets a weak reference's callback or a
    destructor, of which reading and drawing are full; and a lock that the handler takes may be held by
    what it interrupts. The second time it is raised all the same.
    """
    heard, told = os.pipe()
    codes = []

    def ask(number, _):
        codes.append(128 + number)
        os.write(told, b"!")
        signal.signal(number, usual[number])

    usual = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda seconds: bool(codes or select.select([heard], [], [], seconds)[0])
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        os.close(heard)
        os.close(told)
    if codes:
        sys.exit(codes[0])


def watch(path: PathLike, interval: float, statistic: str | None = None, site: str | None = None,
          colour: bool = True) -> Run | None:
    """Shows the run in place until it has ended; returns it."""
    find_run(pathlib.Path(path))  # LogError: looking again would not help
    failures = 0
    with asked_to_end() as asked, screen():
        while not asked(0):
            width, height = shutil.get_terminal_size()
            try:
                run, failures = look(path), 0
            except LogError as error:
                failures += 1
                if failures == PATIENCE:
                    raise
                show(wrapped([f"{error}; looking again"], width))
            else:
                show(lines_of(run, width, height, colour, statistic, site))
                if "scalars" in run and run.state != "running":
                    return run
            asked(interval)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="watch", description="Shows a run in the terminal while it trains: how far it is, its "
        "loss curves and a statistic of every head; ends when the run has ended. Prints it once "
        "where the output is no terminal.")
    parser.add_argument("run", metavar="RUN", help="run directory, running, ended or just started")
    parser.add_argument("--interval", type=float, default=2, metavar="S",
                        help="seconds between looks (default: 2)")
    parser.add_argument("--once", action="store_true", help="print it as it is now")
    parser.add_argument("--statistic", help="of heads, e.g. mean_distance (default: entropy)")
    parser.add_argument("--site", help="which attention (default: the first)")
    parser.add_argument("--serve", action="store_true", help="show it in a browser instead")
    parser.add_argument("--port", type=int, default=0, help="of --serve (default: a free one)")
    options = parser.parse_args(arguments)
    if options.interval <= 0:
        parser.error("--interval must be more than 0")
    terminal = sys.stdout.isatty()
    colour = terminal and not os.environ.get("NO_COLOR")
    with told_plainly("watch"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # the screen comes back
        path = taken("watch", options.run)
        if options.serve:
            from .serve import serve

            return serve([path], options.port)
        chosen = options.statistic, options.site
        if terminal and not options.once:
            run = watch(path, options.interval, *chosen, colour)
        else:
            run = look(path)
        print("\n".join(lines_of(run, shutil.get_terminal_size().columns, None, colour, *chosen)))
