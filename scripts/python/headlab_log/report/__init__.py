"""One HTML page from one or several runs, or a comparison, that needs nothing else: no server, no network.

    from headlab_log import report
    html = report.build(["runs/char_mha", "runs/char_gated"])
"""

import contextlib
from collections.abc import Sequence

from ..compare import labels
from ..files import PathLike
from ..opening import open_run
from ..run import Run
from ..sweep import runs_of
from . import comparison, data, maps, page, words

MAX_BYTES = 15_000_000
STEPS = (500, 200, 80, 30)  # of statistics over training, as many as fit


def build(runs: Sequence[Run | PathLike], title: str | None = None,
          max_bytes: int = MAX_BYTES) -> str:
    """The page as text: losses, every statistic of every head, attention maps, roles, pruning.

    runs: open runs, paths of run directories, or folders of sweeps; or the folder of a comparison alone, whose
    tables and figures then stand above its runs. max_bytes: what the page may take, encoded; maps
    of further probes, then of earlier steps are left out to stay below it, and the page says so.
    Raises LogError where there is no such run.

    >>> from headlab_log import report
    >>> report.build([run], title="First run").startswith("<!DOCTYPE html>")
    True
    """
    return compose(runs, title, max_bytes)[0]


def compose(runs: Sequence[Run | PathLike], title: str | None = None, max_bytes: int = MAX_BYTES,
            version: str | None = None) -> tuple[str, list[str]]:
    """The page, and a list of sentences on what was left out of it for want of space.

    version: what `/version` answers where the page is served (see headlab_log.serve); the page
    asks for it, and loads itself anew when the answer has changed.
    """
    compared = comparison.among(runs)
    with contextlib.ExitStack() as opened:
        if compared:
            shown = comparison.Shown(compared, opened)
            runs, names = shown.runs, shown.labels
        else:
            runs = [one if isinstance(one, Run) else opened.enter_context(open_run(one))
                    for run in runs for one in ([run] if isinstance(run, Run) else runs_of(run))]
            shown, names = None, labels(runs)
        title = title or (compared.name if compared else data.default_title(runs))
        content, chunks, left_out = without_maps(runs, names, title, shown, max_bytes)
        content["version"] = version
        left_out += maps.add(content, runs, chunks, max_bytes - page.size(content, chunks))
        content["left_out"] = left_out
        return page.html(content, chunks), left_out


def without_maps(runs, names, title, shown, max_bytes):
    """Content and arrays but for maps, and what was left out to leave maps half of the room.

    shown: the comparison that the runs are of; None: of none.
    """
    for most in STEPS:
        chunks = data.Chunks()
        content = data.content(runs, names, chunks, most)
        content |= {"title": title, "comparison": shown.content if shown else None}
        for run, colour in zip(content["runs"], shown.colours if shown else ()):
            run["colour"] = colour
        words.add(content, runs)
        arrays = chunks.size()
        if 2 * arrays <= max_bytes - (page.size(content, chunks) - arrays):
            break
    logged = max((part["statistics"]["of"] for run in content["runs"]
                  for part in run["sites"].values() if part["statistics"]), default=0)
    if most == STEPS[0] or logged <= most:
        return content, chunks, list(shown.left_out) if shown else []
    return content, chunks, [*(shown.left_out if shown else ()), f"Statistics of heads are drawn at {most} of up to {logged} logged "
                             "steps, to keep the page's size (--max-mb); the log has all."]
