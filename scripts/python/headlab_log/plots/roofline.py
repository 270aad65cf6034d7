"""How near layers of heads come to what the machine reaches."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..roofline import Roofline
from .style import COLOURS

MARKERS = "osD^vP*X"  # a shape each


def roofline(found: Roofline) -> Figure:
    """FLOP/s over FLOPs a byte that is moved, below the roof of the machine; found: read_roofline() of a file.

    A colour a layer, a marker a shape; filled: forward and backward, hollow: forward alone. A point above the slope
    moves its bytes within the caches.
    """
    figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
    intensities = np.array([point.intensity for point in found.points])
    ridge = found.flops / found.bytes
    x = np.geomspace(min(intensities.min(), ridge) / 2, max(intensities.max(), ridge) * 2, 200)
    axes.plot(x, np.minimum(found.flops, x * found.bytes) / 1e9, color="black", lw=1)
    labels = list(dict.fromkeys(point.label for point in found.points))
    shapes = list(dict.fromkeys(point.shape for point in found.points))
    colours = COLOURS if len(labels) <= len(COLOURS) else plt.get_cmap("turbo")(np.linspace(0, 1, len(labels)))
    for point in found.points:
        colour = colours[labels.index(point.label)]
        axes.plot(point.intensity, point.speed / 1e9, MARKERS[shapes.index(point.shape) % len(MARKERS)], ms=5,
                  color=colour, mfc=colour if point.both else "none", alpha=0.8)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs a byte that is moved", ylabel="GFLOP/s",
             title=f"roof: products {found.flops / 1e9:.0f} GFLOP/s, copies {found.bytes / 1e9:.1f} GB/s")
    axes.grid(alpha=0.3)
    handles = [Line2D([], [], ls="", marker="o", color=colours[n], label=label)
               for n, label in enumerate(labels)]
    handles += [Line2D([], [], ls="", marker=MARKERS[n % len(MARKERS)], color="grey", label=shape)
                for n, shape in enumerate(shapes)]
    handles += [Line2D([], [], ls="", marker="o", color="grey", mfc="none", label="hollow: forward alone")]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    return figure
