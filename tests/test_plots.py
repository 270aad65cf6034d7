"""Pictures of heads: colour scales say their ends, and tell only apart what differs."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot as plt

from headlab_log import plots


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def grid(values, **about):
    values = np.asarray(values, dtype=float)
    return xr.DataArray(values, dims=("layer", "head"), name="loss_delta", attrs=about,
                        coords={"layer": range(len(values)), "head": range(values.shape[1])})


def coloured(figure):
    return figure.axes[0].images[0].get_array()


def marks(figure, numbers):
    """What stands at a colour bar within its range."""
    bar = figure.axes[-1]
    return [float(label.get_text().replace("−", "-")) for label, at in
            zip(bar.get_yticklabels(), bar.get_yticks()) if numbers[0] <= at <= numbers[1]]


def test_sixteen_cells_that_differ_by_less_than_their_interval_have_one_colour():
    values = grid(0.25 + 0.004 * np.random.default_rng(1).random((4, 4)))
    figure = plots.head_grid(values, interval=grid(np.full((4, 4), 0.01)), digits=3)
    assert np.ptp(coloured(figure)) < 1e-12
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[5] == f"{values.values.flat[5]:.3f}"  # the numbers stay
    assert np.ptp(coloured(plots.head_grid(values))) > 0


def test_what_differs_by_more_keeps_a_colour_of_its_own():
    values = grid([[0.01, 0.02, np.nan], [0.5, 0.03, -0.4]])
    shown = coloured(plots.head_grid(values, interval=grid(np.full((2, 3), 0.015))))
    assert np.allclose(shown[0, :2], 0.02) and np.isclose(shown[1, 1], 0.02)
    assert (shown[1, 0], shown[1, 2]) == (0.5, -0.4) and np.isnan(np.ma.filled(shown, np.nan)[0, 2])


def test_an_interval_that_is_not_known_joins_nothing():
    values = grid([[0.1, 0.1001], [0.2, 0.3]])
    shown = coloured(plots.head_grid(values, interval=grid(np.full((2, 2), np.nan))))
    assert np.array_equal(shown, values.values)


@pytest.mark.parametrize("values, ends", [([[0.2, 1.37]], (0, 1.37)), ([[-0.42, 0.1]], (-0.42, 0.42))])
def test_a_colour_bar_of_heads_says_its_ends(values, ends):
    figure = plots.head_grid(grid(values))
    figure.draw_without_rendering()
    said = marks(figure, ends)
    assert (min(said), max(said)) == pytest.approx(ends, abs=0.005)


@pytest.mark.parametrize("most", [1.0, 1.37, 4.2])
def test_a_colour_bar_of_maps_says_its_ends(most):
    tokens = {"query_text": ("query", ["a", "b"]), "key_text": ("key", ["a", "b"])}
    weights = xr.DataArray([[most, 0.0], [-0.1, 0.5]], dims=("query", "key"),
                           coords={**tokens, "layer": 0, "head": 0})
    figure = plots.attention_map(weights)
    figure.draw_without_rendering()
    said = marks(figure, (-most, most))
    assert (min(said), max(said)) == pytest.approx((-most, most), rel=0.01)
