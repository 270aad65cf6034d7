"""A map as a labelled array that is drawn as maps are read: the first query on top."""

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

    __slots__ = ()

    @property
    def plot(self) -> MapPlot:
        return MapPlot(self)
