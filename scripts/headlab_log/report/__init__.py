"""One HTML page from one or several runs that needs nothing else: no server, no network.

    from headlab_log import report
    html = report.build(["runs/char_mha", "runs/char_gated"])
"""

import contextlib

from ..compare import labels
from ..run import Run, open_run
from . import data, maps, page

MAX_BYTES = 15_000_000


def build(runs, title=None, max_bytes=MAX_BYTES):
    """The page as text: losses, every statistic of every head, attention maps, roles, pruning.

    runs: open runs or paths of run directories. max_bytes: what the page may take, encoded; maps
    of further probes, then of earlier steps are left out to stay below it, and the page says so.
    Raises LogError where there is no such run.

    >>> from headlab_log import report
    >>> report.build([run], title="First run").startswith("<!DOCTYPE html>")
    True
    """
    return compose(runs, title, max_bytes)[0]


def compose(runs, title=None, max_bytes=MAX_BYTES, version=None):
    """The page, and a list of sentences on what was left out of it for want of space.

    version: what `/version` answers where the page is served (see headlab_log.serve); the page
    asks for it, and loads itself anew when the answer has changed.
    """
    with contextlib.ExitStack() as opened:
        runs = [run if isinstance(run, Run) else opened.enter_context(open_run(run))
                for run in runs]
        chunks = data.Chunks()
        content = data.content(runs, labels(runs), chunks)
        content["title"] = title or data.default_title(runs)
        content["version"] = version
        left = max_bytes - page.size(content, chunks)
        left_out = maps.add(content, runs, chunks, left)
        content["left_out"] = left_out
        return page.html(content, chunks), left_out
