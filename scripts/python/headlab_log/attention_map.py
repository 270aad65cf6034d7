"""A map as a labelled array that is drawn as maps are read: the first query on top."""

from typing import Self

import xarray as xr
from xarray.plot.accessor import DataArrayPlotAccessor


class MapPlot(DataArrayPlotAccessor):
    """`.plot()` of any array; of one over query and key, rows are queries, the first on top."""

    __slots__ = ()

    def __call__(self, **options):
        if set(self._da.dims) == {"query", "key"}:
            options = {"x": "key", "y": "query", "yincrease": False} | options
        return super().__call__(**options)


class AttentionMap(xr.DataArray):
    """What `Run.map` returns; what is computed from one is one, too."""

    __slots__ = ("_image",)

    @property
    def plot(self) -> MapPlot:
        return MapPlot(self)

    @property
    def image(self) -> xr.DataArray | None:
        """What its model looked at, (channel, row, column) of bytes; None: a text.

        What is computed from a map has none: xarray hands on only what lies on the map's own axes.
        """
        return getattr(self, "_image", None)

    @classmethod
    def with_image(cls, weights: xr.DataArray, image: xr.DataArray | None) -> Self:
        found = cls(weights)
        found._image = image
        return found
