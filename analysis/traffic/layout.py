"""Layout: which planes of an array of routed experts are which layers of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.numbers.arrays import IntArray
from analysis.traffic.arrays import Ids


@dataclass(frozen=True, slots=True)
class Layout:
    """The sparse layers of a model, whose routers chose."""

    name: str  # the model's, for messages
    layers: tuple[MoELayer, ...]
    depth: int | None = None  # decoder layers, dense ones included; None: not known

    def __post_init__(self) -> None:
        if len({layer.top_k for layer in self.layers}) > 1:
            raise StatsError(
                f"The layers of {self.name} choose different numbers of experts, which routed "
                "experts of a server do not tell apart."
            )

    @property
    def top_k(self) -> int:
        """Experts per token, of every layer."""
        return self.layers[0].top_k

    def planes(self, count: int) -> IntArray:
        """The plane of each sparse layer, of so many.

        Servers give a plane for each decoder layer, with zeros in those of dense layers; others
        leave dense layers out.
        """
        indices = np.array([layer.index for layer in self.layers], dtype=np.int64)
        if count == len(indices):
            return np.arange(count, dtype=np.int64)
        if not self._fits(count):
            depth = f" of {self.depth}" if self.depth else ""
            raise ValueError(
                f"it has {count} layers a token; {self.name} has experts in {len(indices)}{depth}"
            )
        return indices

    def _fits(self, count: int) -> bool:
        if count == len(self.layers):
            return True
        return count == self.depth if self.depth else count > self.layers[-1].index

    def shaped(self, flat: Ids, tokens: int | None) -> Ids:
        """(tokens, planes, top-k) of ids without a shape, a plane for each decoder layer.

        `tokens` are those that a forward read, if known; fewer may be here, see `RoutedTokens`.
        """
        if self.depth is None and tokens and not flat.size % (tokens * self.top_k):
            return flat.reshape(tokens, -1, self.top_k)
        if self.depth is None:
            raise ValueError(
                f"its ids have no shape, and the layers of {self.name} are not known; name the "
                "checkpoint with --model"
            )
        width = self.depth * self.top_k
        if tokens and flat.size > tokens * width and not flat.size % (tokens * self.depth):
            return flat.reshape(tokens, self.depth, -1)  # more experts for each of the tokens
        if flat.size % width:
            raise ValueError(
                f"it has {flat.size:,} ids, which are no {self.top_k} experts in each of the "
                f"{self.depth} layers of {self.name} for a whole number of tokens"
            )
        return flat.reshape(-1, self.depth, self.top_k)
