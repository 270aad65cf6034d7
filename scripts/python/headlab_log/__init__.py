"""Reads the logs of headlab: attention heads over training, as labelled xarray objects.

    import headlab_log as hl
    run = hl.open_run("runs/char_mha")
    run.heads().entropy.sel(layer=1, head=3).plot()
"""

from .arrays import write_arrays
from .compare import compare, differences, labels
from .comparison import ComparedTask, Comparison, open_comparison
from .exports import to_bertviz, to_circuitsvis, to_csv, to_pandas, to_transformer_lens
from .files import LogError, LogWarning, open_group, pick
from .offline import bertviz_html, circuitsvis_html
from .opening import open_run
from .run import Run
from .sweep import open_sweep
from .tensorboard import to_tensorboard
from .text import visible

__all__ = ["ComparedTask", "Comparison", "LogError", "LogWarning", "Run", "bertviz_html", "circuitsvis_html",
           "compare", "differences", "labels", "open_comparison", "open_group", "open_run", "open_sweep", "pick",
           "to_bertviz", "to_circuitsvis", "to_csv", "to_pandas", "to_tensorboard", "to_transformer_lens",
           "visible", "write_arrays"]
