"""Reads the logs of headlab: attention heads over training, as labelled xarray objects.

    import headlab_log as hl
    run = hl.open_run("runs/char_mha")
    run.heads().entropy.sel(layer=1, head=3).plot()
"""

from .compare import compare, labels
from .files import LogError, LogWarning, open_group
from .run import Run, open_run, pick
from .text import visible

__all__ = ["LogError", "LogWarning", "Run", "compare", "labels", "open_group", "open_run", "pick",
           "visible"]
