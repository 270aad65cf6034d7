"""Figures of heads with Matplotlib: over training, of maps, of all heads at once, of pruning.

Functions take what the reader gives and return the Figure; in a notebook, end the line with `;`.

    from headlab_log import plots
    plots.overview(hl.open_run("runs/char_mha")).savefig("run.png")
"""

from ..extras import needed

needed("matplotlib", "plots")

from .comparison import comparison
from .heads import head_grid, head_plane, head_roles
from .maps import all_maps, attention_map, maps_in_a_row
from .roofline import roofline
from .style import COLOURS, STYLE, name_and_unit
from .training import against_loss, losses, overview, statistics
from .variants import matrices, pruning, seeds

__all__ = ["COLOURS", "STYLE", "against_loss", "all_maps", "attention_map", "comparison",
           "head_grid", "head_plane", "head_roles", "losses", "maps_in_a_row", "matrices",
           "name_and_unit", "overview", "pruning", "roofline", "seeds", "statistics"]
