"""Which neurons stay: the most salient of each expert, of each layer, or of the whole model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.errors import PlanError, unknown_name
from pruning.plan.constraints import Room, sum_of
from pruning.plan.kept_neurons import KeptNeurons, ordered_neurons
from pruning.plan.neuron_budget import ExpertKey, shares_of

if TYPE_CHECKING:
    from analysis.numbers.arrays import NeuronScores
    from pruning.plan.budget import Budget


class NeuronScope(StrEnum):
    """Which neurons compete for a budget."""

    EXPERT = "expert"  # the same number in every expert: one width, no zeros
    LAYER = "layer"  # HEAPr-L
    GLOBAL = "global"  # HEAPr-G


def parse_scope(text: str) -> NeuronScope:
    """The scope of this name."""
    names = [str(scope) for scope in NeuronScope]
    if text not in names:
        raise PlanError(unknown_name("scope of a budget of neurons", text, names))
    return NeuronScope(text)


def pools_of(rooms: Mapping[ExpertKey, Room], scope: NeuronScope) -> list[tuple[ExpertKey, ...]]:
    """Groups of experts whose neurons compete with each other, by layer and id."""
    keys = list(rooms)
    if scope is NeuronScope.GLOBAL:
        return [tuple(keys)]
    if scope is NeuronScope.EXPERT:
        return [(key,) for key in keys]
    layers = dict.fromkeys(layer for layer, _ in keys)
    return [tuple(key for key in keys if key[0] == layer) for layer in layers]


@dataclass(frozen=True, eq=False)
class Contest:
    """Neurons that compete to stay: the least salient go first.

    Ties keep the lower layer, then the lower expert, then the lower neuron. An expert loses neurons
    in steps of its room, all of a step together, and may lose all.
    """

    saliency: NeuronScores  # layer -> expert -> (neurons,) higher = keep
    rooms: Mapping[ExpertKey, Room] = field(repr=False)  # see `neuron_rooms`
    scope: NeuronScope  # which neurons compete
    # How many neurons of a budget each pool loses.
    spread: Callable[[Sequence[Room], Budget], Sequence[int]] = shares_of

    def __post_init__(self) -> None:
        for layer, arrays in self.saliency.items():
            if not all(np.isfinite(each).all() for each in arrays):
                raise PlanError(f"The saliency of a neuron in layer {layer} is no finite number.")

    @cached_property
    def _members(self) -> list[tuple[ExpertKey, ...]]:
        return pools_of(self.rooms, self.scope)

    @cached_property
    def pools(self) -> list[Room]:
        """The groups that compete, and what each may lose."""
        return [sum_of([self.rooms[key] for key in keys]) for keys in self._members]

    @property
    def size(self) -> int:
        """Neurons of all pools."""
        return sum(room.size for room in self.rooms.values())

    @cached_property
    def _queues(self) -> list[NDArray[np.intp]]:
        """For each pool, the positions of its experts in the order in which they lose a step."""
        return [self._queue(keys) for keys in self._members]

    def _queue(self, keys: Sequence[ExpertKey]) -> NDArray[np.intp]:
        # Saliency lost with each further step of an expert, between its least and most removal.
        costs = []
        for layer, expert in keys:
            room = self.rooms[layer, expert]
            ascending = np.sort(self.saliency[layer][expert])[room.least : room.most]
            # As many addends in the same order, none smaller: rounding keeps the sums in order.
            costs.append(ascending.reshape(-1, room.step).sum(axis=1))
        lengths = [len(each) for each in costs]
        owner = np.repeat(np.arange(len(keys)), lengths)
        turn = np.concatenate([np.arange(length) for length in lengths])
        # Within an expert costs ascend, so sorting keeps its steps in order. Of equal costs the
        # later expert loses first.
        return owner[np.lexsort((turn, -owner, np.concatenate(costs)))]

    @property
    def order_digest(self) -> str:
        """SHA-256 of the order in which neurons go, which does not depend on the budget."""
        sha = hashlib.sha256(repr(self._members).encode())
        for keys, queue in zip(self._members, self._queues, strict=True):
            sha.update(queue.astype("<i4").tobytes())
            for layer, expert in keys:
                room, values = self.rooms[layer, expert], self.saliency[layer][expert]
                sha.update(f"{layer}:{expert}:{room.least}:{room.step}".encode())
                sha.update(np.argsort(-values, kind="stable").astype("<i4").tobytes())
        return sha.hexdigest()

    def removed(self, budget: Budget) -> dict[ExpertKey, int]:
        """Neurons that each expert loses; they sum to the budget."""
        removed: dict[ExpertKey, int] = {}
        shares = self.spread(self.pools, budget)
        for keys, share, queue in zip(self._members, shares, self._queues, strict=True):
            least = [self.rooms[key].least for key in keys]
            step = self.rooms[keys[0]].step
            steps = np.bincount(queue[: (share - sum(least)) // step], minlength=len(keys))
            removed |= zip(keys, (np.array(least) + step * steps).tolist(), strict=True)
        return removed

    def kept(
        self, removed: Mapping[ExpertKey, int], experts: Mapping[int, Sequence[int]] | None = None
    ) -> KeptNeurons:
        """The neurons that stay in every expert that loses some.

        `experts` are those that stay in layers that lose whole experts; the others are left out.
        """
        stays = {layer: frozenset(ids) for layer, ids in (experts or {}).items()}
        kept: dict[int, dict[int, tuple[int, ...]]] = {}
        for (layer, expert), count in removed.items():
            if count == 0 or expert not in stays.get(layer, {expert}):
                continue
            values = self.saliency[layer][expert]
            best = np.argsort(-values, kind="stable")[: len(values) - count]
            kept.setdefault(layer, {})[expert] = tuple(np.sort(best).tolist())
        return ordered_neurons(kept)
