"""Grid: the experts of a model's layers, as rows of a table and as an array."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.families.base import MoELayer
from analysis.lazy import pd
from analysis.numbers.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Grid:
    """Maps (layer, expert) rows to a (layers, experts) array, NaN beyond a layer's experts."""

    layers: tuple[MoELayer, ...]

    @property
    def counts(self) -> IntArray:
        """Experts of each layer."""
        return np.array([layer.num_experts for layer in self.layers], dtype=np.int64)

    @property
    def num_experts(self) -> int:
        """Experts of all layers."""
        return int(self.counts.sum())

    @property
    def present(self) -> BoolArray:
        """(layers, max experts): True where there is an expert."""
        return np.arange(self.counts.max(initial=0))[None, :] < self.counts[:, None]

    def fold(self, rows: ArrayLike) -> FloatArray:
        """Rows in (layer, expert) order -> array, NaN where there is no expert."""
        present = self.present
        array = np.full(present.shape, np.nan)
        array[present] = np.asarray(rows, dtype=np.float64)
        return array

    def index(self) -> "pd.DataFrame":
        """Table `layer, expert`, in order."""
        rows, experts = np.nonzero(self.present)
        layers = np.array([layer.index for layer in self.layers], dtype=np.int64)
        return pd.DataFrame({"layer": layers[rows], "expert": experts.astype(np.int64)})
