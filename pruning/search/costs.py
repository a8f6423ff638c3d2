"""What runs over samples cost before they run: candidates, curves, whole searches. No torch."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final

from analysis.model.layer_costs import layer_costs, logits_cost, output_weights
from analysis.model.moe_model import MoEModel
from analysis.progress import LOADING, NOTHING, RUNNING_ORIGINAL, Costs, Parts, Whole
from pruning.measures.result import MEASURES
from pruning.plan.units import Removed
from pruning.requests.search_settings import SearchSettings

# Of the cost of comparing logits: each of two heads with its probabilities, and each of the two
# measures that sum over the vocabulary. A loss looks one token up.
_HEAD: Final = 0.27
_SUM: Final = 0.23
_LOOKED_UP: Final = frozenset({"nll", "full_nll"})
# Probabilities of the original are kept in free memory, of which nobody knows how much there is.
_KEPT_BYTES: Final = 2 << 30


@dataclass(frozen=True)
class RunCosts:
    """What runs over some samples cost."""

    reading: float = 0.0  # of the whole model
    trunk: float = 0.0  # reading its layers alone
    layers: tuple[float, ...] = ()  # of all samples through each layer
    sparse: tuple[int, ...] = ()  # which of these have experts
    head: float = 0.0
    by_layers: bool = False  # all candidates run in one pass, which states its own costs

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        model: MoEModel,
        tokens: int,
        positions: int,
        measures: Iterable[str],
        *,
        by_layers: bool,
        keeps_original: bool = True,
    ) -> "RunCosts":
        """The costs of a model on samples of so many tokens and scored positions.

        `measures`: names of those that compare it with the original, whose probabilities are kept
        for the next candidate, unless it runs by layers.
        """
        costs = layer_costs(model)
        keeps = keeps_original and not by_layers
        heads = 2.0 - (_kept_share(model, positions) if keeps else 0.0)
        sums = {MEASURES[name].sums for name in measures} - _LOOKED_UP
        return cls(
            costs.reading(*costs.num_bytes),
            costs.reading(*range(model.depth)),
            tuple(costs.running(tokens, layer) for layer in range(model.depth)),
            tuple(layer.index for layer in model.layers),
            logits_cost(model, positions) * (_HEAD * heads + _SUM * len(sums)),
            by_layers,
        )

    def whole(self, positions: Sequence[int]) -> Costs:
        """Loading, the original, and runs that start at these positions; see `run`."""
        runs = self.runs(positions)
        return runs | {"read": self.reading, "multiply": runs["multiply"] + sum(self.layers)}

    def runs(self, positions: Sequence[int]) -> dict[str, float]:
        """Runs that start at these positions; see `run`."""
        runs = {"multiply": 0.0, "compare": 0.0}
        for position in positions:
            runs = {kind: runs[kind] + amount for kind, amount in self.run(position).items()}
        return runs

    def run(self, position: int) -> Costs:
        """A run that starts at a layer with experts, by its position; negative: at the first."""
        return self.last_layers(len(self.layers) - self._first(position))

    def _first(self, position: int) -> int:
        return self.sparse[position] if 0 <= position < len(self.sparse) else 0

    def last_layers(self, count: int) -> Costs:
        """A run through so many layers, the last ones."""
        first = max(0, len(self.layers) - count)
        return {"multiply": self._running[first], "compare": self.head}

    def one_pass(self, positions: Sequence[int]) -> Costs:
        """One pass by layers of the original, and of runs that leave others at these positions."""
        if not positions:
            return {}
        runs = self.runs(positions)
        return runs | {"read": self.trunk, "multiply": runs["multiply"] + self._running[0]}

    def by_layer(self, passes: Sequence[float]) -> list[float]:
        """What each layer costs that the original and so many runs pass; the last with the head."""
        running = [cost * (1 + count) for cost, count in zip(self.layers, passes, strict=True)]
        running[-1] += self.head * passes[-1]
        return running

    def passes(self, positions: Sequence[int]) -> list[float]:
        """How many runs that start at these positions pass each layer; see `run`."""
        firsts = [self._first(position) for position in positions]
        return [sum(first <= layer for first in firsts) for layer in range(len(self.layers))]

    @cached_property
    def _running(self) -> list[float]:
        """Of the layers from each one on; 0 behind the last."""
        return [sum(self.layers[first:]) for first in range(len(self.layers) + 1)]

    def child(self, max_steps: int) -> Costs:
        """A child on average, which shares the layers before its first change.

        tau switches change 2 tau layers at random, so the first of them lies at 1 / (2 tau + 1).
        """
        draws = range(1, max_steps + 1)
        first = [1 / (2 * min(pair) + 1) for pair in product(draws, draws)]
        share = 1.0 if self.by_layers else 1 - statistics.mean(first)
        return {"multiply": share * self._running[0], "compare": self.head}


def _kept_share(model: MoEModel, positions: int) -> float:
    """The part of the original's probabilities that is expected to be kept."""
    vocabulary = output_weights(model) // max(1, model.hidden_size)
    return min(1.0, _KEPT_BYTES / max(1, 4 * positions * vocabulary))


def search_parts(costs: RunCosts, settings: SearchSettings) -> Parts:
    """All parts of a search."""
    child = costs.child(settings.max_steps)
    children = settings.generations * (settings.population - settings.elites)
    founders = costs.runs([-1] * settings.population)
    searching = {kind: founders[kind] + children * amount for kind, amount in child.items()}
    if costs.by_layers:
        passes = 1 + settings.generations
        searching["multiply"] += passes * sum(costs.layers)
        return Parts({"searching": searching | {"read": passes * costs.trunk}})
    parts: dict[str, Costs] = {
        "searching": searching,
        LOADING: {"read": costs.reading},
        RUNNING_ORIGINAL: {"multiply": sum(costs.layers)},
    }
    return Parts(parts)


def search_passes(costs: RunCosts, settings: SearchSettings) -> list[float]:
    """How many candidates of a search are expected to pass each layer; see `RunCosts.child`."""
    draws, depth = range(1, settings.max_steps + 1), len(costs.layers)
    changed = [2 * min(pair) for pair in product(draws, draws)]
    children = settings.generations * (settings.population - settings.elites)
    return [
        settings.population
        + children * statistics.mean(1 - (1 - (layer + 1) / depth) ** count for count in changed)
        for layer in range(depth)
    ]


class SearchTally:
    """Counts the work of a search.

    Before it runs, a candidate costs the layers from the first on in which it differs from all that
    are kept: the one before and the parents, or by layers those of the same pass. Children to come
    cost as those of the last generation.
    """

    def __init__(self, costs: RunCosts, max_steps: int) -> None:
        self._costs, self._child = costs, costs.child(max_steps)
        self._done, self._before = Counter[str](), Counter[str]()
        self._waiting: dict[Removed, Costs] = {}
        self._pass = NOTHING  # by layers, of the generation

    def begin(
        self, unknown: Sequence[Removed], kept: Sequence[Removed], *, are_children: bool
    ) -> None:
        """A generation: its candidates to be measured, in order, and what else they start from."""
        costs, positions = self._costs, []
        for number, removed in enumerate(unknown):
            original, last = [(0,) * len(removed)], unknown[max(0, number - 1) : number]
            others = [*original, *unknown[:number]] if costs.by_layers else [*kept, *last]
            positions.append(max((_alike(removed, other) for other in others), default=-1))
        runs = [costs.run(position) for position in positions]
        if costs.by_layers:
            self._pass = Whole(costs.one_pass(positions))
        else:
            self._waiting = dict(zip(unknown, runs, strict=True))
        if are_children and runs:
            self._child = {kind: statistics.mean(run[kind] for run in runs) for kind in runs[0]}

    def prepare(self, whole: Whole) -> None:
        """How far the pass is in which all candidates of the generation run."""
        self._pass = whole

    def prepared(self) -> None:
        """The pass is over."""
        self._done.update(self._pass.done)
        self._before.update(self._pass.before)
        self._pass = NOTHING

    def known(self, layers: float) -> None:
        """A candidate that an earlier run measured, in which so many layers ran."""
        costs = self._costs.last_layers(round(layers))
        self._done.update(costs)
        self._before.update(costs)

    def measured(self, removed: Removed, layers: float) -> None:
        """A candidate, for which so many layers ran; by layers its pass has counted."""
        if self._waiting.pop(removed, None) is not None:
            self._done.update(self._costs.last_layers(round(layers)))

    def whole(self, children: int, generations: int) -> Whole:
        """How far the search is, with so many children in so many generations to come."""
        total = Counter[str](self._done)
        for costs in self._waiting.values():
            total.update(costs)
        total.update({kind: children * amount for kind, amount in self._child.items()})
        if self._costs.by_layers and children:
            passes = {"read": self._costs.trunk, "multiply": sum(self._costs.layers)}
            total.update({kind: generations * amount for kind, amount in passes.items()})
        return Whole(dict(total), dict(self._done), dict(self._before)) + self._pass


def _alike(one: Removed, other: Removed) -> int:
    """Number of layers from the first on in which two candidates are equal; at most all but two.

    All candidates remove equally many, so two that differ do so in two layers.
    """
    limit = max(0, len(one) - 2)
    return next((n for n in range(limit) if one[n] != other[n]), limit)
