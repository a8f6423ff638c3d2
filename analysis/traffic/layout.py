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

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse an array (tokens, planes, top-k) of another model; one of no tokens is of any."""
        tokens, planes, top_k = shape
        if not tokens:
            return
        self.planes(planes)
        if top_k != self.top_k:
            raise ValueError(
                f"it has {top_k} experts a token in each layer, and {self.name} chooses "
                f"{self.top_k}; its counts would not be comparable"
            )

    def _fits(self, count: int) -> bool:
        if count == len(self.layers):
            return True
        return count == self.depth if self.depth else count > self.layers[-1].index

    def shaped(self, flat: Ids, tokens: int | None) -> Ids:
        """(tokens, planes, top-k) of ids without a shape, a plane for each decoder layer.

        `tokens` are those that a forward read, if known; fewer may be here, see `RoutedTokens`.
        """
        if not flat.size:
            return np.zeros((0, 0, 0), dtype=flat.dtype)
        depth = self.layers[-1].index + 1
        if self.depth is None and tokens and flat.size == tokens * depth * self.top_k:
            return flat.reshape(tokens, depth, self.top_k)
        if self.depth is None:
            raise ValueError(
                f"its ids have no shape, and the depth of {self.name} is not known; name the "
                "checkpoint with --model"
            )
        width = self.depth * self.top_k
        if tokens and flat.size > tokens * width and not flat.size % (tokens * self.depth):
            wide = flat.reshape(tokens, self.depth, -1)
            if flat.size % width or self._are_distinct(wide):
                return wide  # more experts for each of the tokens; else more tokens: drafts
        if flat.size % width:
            raise ValueError(
                f"it has {flat.size:,} ids, which are no {self.top_k} experts in each of the "
                f"{self.depth} layers of {self.name} for a whole number of tokens"
            )
        return flat.reshape(-1, self.depth, self.top_k)

    def _are_distinct(self, ids: Ids) -> bool:
        """Whether no layer has an expert twice for a token, as in no other shape of these ids.

        Rows of several layers or tokens, read as one, soon hold an expert twice.
        """
        chosen = np.sort(ids[:, self.planes(ids.shape[1])], axis=2)
        is_twice = (chosen[..., 1:] == chosen[..., :-1]).any(axis=2) & (chosen > 0).any(axis=2)
        return not is_twice.any()
