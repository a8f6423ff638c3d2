"""Which neurons stay: the most salient, within each expert, within each layer, or of all layers."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.errors import PlanError, unknown_name
from analysis.ranking.norms import NeuronScores
from pruning.atoms.budget import ExpertKey, Pool, pool_of, shares_of
from pruning.atoms.kept import KeptAtoms, ordered_atoms
from pruning.budget import Budget
from pruning.constraints import Room


class AtomScope(StrEnum):
    """Among which neurons a budget is spent."""

    EXPERT = "expert"  # the same number in every expert: fills one width without zeros
    LAYER = "layer"  # HEAPr-L
    GLOBAL = "global"  # HEAPr-G


def parse_scope(text: str) -> AtomScope:
    """A scope by name."""
    known = [str(scope) for scope in AtomScope]
    if text not in known:
        raise PlanError(unknown_name("scope of a budget of neurons", text, known))
    return AtomScope(text)


def pools_of(rooms: Mapping[ExpertKey, Room], scope: AtomScope) -> list[tuple[ExpertKey, ...]]:
    """Experts whose neurons compete with each other, in order of layer and id."""
    keys = list(rooms)
    if scope is AtomScope.GLOBAL:
        return [tuple(keys)]
    if scope is AtomScope.EXPERT:
        return [(key,) for key in keys]
    layers = dict.fromkeys(layer for layer, _ in keys)
    return [tuple(key for key in keys if key[0] == layer) for layer in layers]


@dataclass(frozen=True, eq=False)
class Contest:
    """Neurons that compete for their places: the least salient go first.

    Ties keep the lower layer, then the lower expert, then the lower neuron. Neurons of an expert go
    in steps of its room, those of a step together; an expert may lose all.
    """

    saliency: NeuronScores  # layer -> for each expert, a number for each neuron; higher stays
    # How many each expert may lose, see `atom_rooms`.
    rooms: Mapping[ExpertKey, Room] = field(repr=False)
    scope: AtomScope  # who competes with whom
    # How many neurons each pool loses of a budget.
    spread: Callable[[Sequence[Pool], Budget], Sequence[int]] = shares_of

    def __post_init__(self) -> None:
        for layer, held in self.saliency.items():
            if not all(np.isfinite(each).all() for each in held):
                raise PlanError(f"The saliency of a neuron in layer {layer} is no finite number.")

    @cached_property
    def _members(self) -> list[tuple[ExpertKey, ...]]:
        return pools_of(self.rooms, self.scope)

    @cached_property
    def pools(self) -> list[Pool]:
        """What those who compete can lose together."""
        return [pool_of([self.rooms[key] for key in keys]) for keys in self._members]

    @property
    def size(self) -> int:
        """Neurons that compete, all pools together."""
        return sum(room.size for room in self.rooms.values())

    @cached_property
    def _queues(self) -> list[NDArray[np.intp]]:
        """For each pool, whose turn it is to lose a step: positions of its experts."""
        return [self._queue(keys) for keys in self._members]

    def _queue(self, keys: Sequence[ExpertKey]) -> NDArray[np.intp]:
        costs = [_step_costs(self.saliency[layer][e], self.rooms[layer, e]) for layer, e in keys]
        lengths = [len(each) for each in costs]
        owner = np.repeat(np.arange(len(keys)), lengths)
        turn = np.concatenate([np.arange(length) for length in lengths])
        # Within an expert costs never fall, so the cheapest of all come in order. Of equal ones
        # the later expert loses first.
        return owner[np.lexsort((turn, -owner, np.concatenate(costs)))]

    @property
    def order_digest(self) -> str:
        """SHA-256 of the order in which neurons go, whatever the budget."""
        sha = hashlib.sha256(repr(self._members).encode())
        for keys, queue in zip(self._members, self._queues, strict=True):
            sha.update(queue.astype("<i4").tobytes())
            for layer, expert in keys:
                room, values = self.rooms[layer, expert], self.saliency[layer][expert]
                sha.update(f"{layer}:{expert}:{room.least}:{room.step}".encode())
                sha.update(np.argsort(-values, kind="stable").astype("<i4").tobytes())
        return sha.hexdigest()

    def removed(self, budget: Budget) -> dict[ExpertKey, int]:
        """How many neurons each expert loses; they sum to the budget."""
        gone: dict[ExpertKey, int] = {}
        shares = self.spread(self.pools, budget)
        for keys, share, queue in zip(self._members, shares, self._queues, strict=True):
            least = [self.rooms[key].least for key in keys]
            step = self.rooms[keys[0]].step
            steps = np.bincount(queue[: (share - sum(least)) // step], minlength=len(keys))
            gone |= zip(keys, (np.array(least) + step * steps).tolist(), strict=True)
        return gone

    def kept(
        self, removed: Mapping[ExpertKey, int], experts: Mapping[int, Sequence[int]] | None = None
    ) -> KeptAtoms:
        """The neurons that stay, of every expert that loses some.

        `experts` are those that stay, of layers that lose whole ones; the others are left out.
        """
        stays = {layer: frozenset(ids) for layer, ids in (experts or {}).items()}
        kept: dict[int, dict[int, tuple[int, ...]]] = {}
        for (layer, expert), gone in removed.items():
            if gone == 0 or expert not in stays.get(layer, {expert}):
                continue
            values = self.saliency[layer][expert]
            best = np.argsort(-values, kind="stable")[: len(values) - gone]
            kept.setdefault(layer, {})[expert] = tuple(np.sort(best).tolist())
        return ordered_atoms(kept)


def _step_costs(values: NDArray[np.float64], room: Room) -> NDArray[np.float64]:
    """Saliency lost by each further step of an expert, from its least removal to its most."""
    ascending = np.sort(values)[room.least : room.most]
    # Sums of as many addends in the same order, each no smaller: rounding keeps them in order.
    costs: NDArray[np.float64] = ascending.reshape(-1, room.step).sum(axis=1)
    return costs
