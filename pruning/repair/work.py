"""How much work a repair is, and how much of it is done."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from analysis.calibration.blocks import layers_in_blocks
from analysis.model.layer_costs import LayerCosts, layer_costs
from analysis.model.moe_model import MoEModel
from analysis.progress import Costs, Progress, Tally, Whole, cost, scaled
from pruning.plan.experts_per_token import selecting
from pruning.plan.plan import PruningPlan
from pruning.repair.batches import PlacedBatch
from pruning.repair.costs import fit_costs
from pruning.repair.effort import CHOOSING, FITTING


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a repair, by layer and batch."""

    model: MoEModel
    plan: PruningPlan
    batches: Sequence[PlacedBatch]
    # Whether an interrupted repair gained by the fit of a layer; None: it has not tried it.
    known_gain: Callable[[int], bool | None]
    at_once: int  # experts that are loaded at once; 0: all

    @cached_property
    def sparse(self) -> Collection[int]:
        """Layers with experts."""
        return {layer.index for layer in self.model.layers}

    @cached_property
    def depth(self) -> int:
        """Layers that run."""
        return max(self.sparse) + 1

    @cached_property
    def first(self) -> int:
        """The first layer that loses something, or selects fewer experts per token."""
        return min(
            layer.index
            for layer in self.model.layers
            if len(self.plan.kept[layer.index]) < layer.num_experts
            or self.plan.kept_neurons.get(layer.index)
            or selecting(layer, self.plan.top_k) != layer
        )

    def differs(self, layer: int) -> bool:
        """Whether original and repaired model differ from a layer on."""
        return layer >= self.first

    def is_fitted(self, layer: int) -> bool:
        """Whether a layer is fitted."""
        return layer in self.sparse and self.differs(layer)

    def embedded(self, number: int) -> Progress:
        """The step after the embeddings of a batch."""
        count, whole = len(self.batches), self.whole
        return Progress("embedding", number + 1, count, "batches", whole=whole)

    def step(self, verb: str, layer: int, number: int, note: str = "") -> Progress:
        """A step that says what was done with a batch."""
        batches, at = len(self.batches), f"layer {layer}"
        done, unit = layer * batches + number + 1, "batches of a layer"
        return Progress(verb, done, self.depth * batches, unit, note, at, self.whole)

    @property
    def whole(self) -> Whole:
        """How far the repair is. Of layers to come as many gain by a fit as of those so far."""
        whole, share = self.tally.whole, statistics.fmean(self._gains.values() or [1])
        total = dict(whole.total)
        for layer in self._tried.keys() - self._gains.keys() if share < 1 else ():
            for stage in FITTING:
                for kind, amount in self._tried[layer][stage].items():
                    total[kind] -= (1 - share) * amount
        return replace(whole, total=total)

    def read(self, layer: int, share: float = 1.0) -> None:
        """Count a layer that was read, or a share of it."""
        self.tally.add("read", share * self.costs.reading(layer))

    def takes_memory(self, nbytes: int) -> None:
        """Expect so many bytes of memory to be taken that the process does not have."""
        self.tally.expect({"allocate": cost("allocate", nbytes)})

    def took_memory(self, nbytes: int) -> None:
        """Count so many of them as taken."""
        self.tally.add("allocate", cost("allocate", nbytes))

    def ran(self, kind: str, layer: int, number: int, share: float = 1.0) -> None:
        """Count a batch that ran through a layer, or a share of that."""
        tokens = int(self.batches[number].tokens.mask.sum())
        self.tally.add(kind, share * self.costs.running(tokens, layer, kind=kind))

    def around(self, layer: int, number: int, times: int) -> None:
        """Count a batch that ran to a layer's experts, which it does again to its end."""
        tokens = int(self.batches[number].tokens.mask.sum())
        self.tally.add("multiply", times * self.costs.running_around(tokens, layer))

    def reached(self, layer: int, stage: str, share: float) -> None:
        """Count so much of a stage of a layer's fit, and all of those before it."""
        if stage in FITTING:
            self._gains[layer] = True
        done = self._stages[layer]
        for name in CHOOSING + FITTING:
            costs = self._tried[layer][name]
            more = (share if name == stage else 1.0) - done[name]
            done[name] += more
            for kind, amount in costs.items():
                self.tally.add(kind, more * amount)
            if name == stage:
                break

    def fitted(self, layer: int) -> None:
        """Count all stages of a layer's fit."""
        self.reached(layer, FITTING[-1], 1.0)

    def gained_nothing(self, layer: int) -> None:
        """Expect no more of a layer's fit than was done: no damping was chosen."""
        self._gains[layer] = False
        for stage, costs in self._tried[layer].items():
            self.tally.leave_out(scaled(costs, 1 - self._stages[layer][stage]))

    @cached_property
    def _tried(self) -> Mapping[int, Mapping[str, Costs]]:
        """What the stages of the fits cost, by layer; of those that no earlier run has tried."""
        layers = filter(self.is_fitted, range(self.depth))
        return {layer: self._fit(layer) for layer in layers if layer not in self._gains}

    @cached_property
    def _gains(self) -> dict[int, bool]:
        """Whether a fit gained something, by layer for which that is known."""
        gains = {layer: self.known_gain(layer) for layer in range(self.depth)}
        return {layer: gain for layer, gain in gains.items() if gain is not None}

    @cached_property
    def _stages(self) -> defaultdict[int, defaultdict[str, float]]:
        """By layer, the share that is done of each stage of its fit."""
        return defaultdict(partial(defaultdict, float))

    @cached_property
    def costs(self) -> LayerCosts:
        """What layers cost."""
        return layer_costs(self.model)

    @cached_property
    def tally(self) -> Tally:
        """The work of all layers; what an interrupted repair has fitted is done."""
        total, before = defaultdict[str, float](float), defaultdict[str, float](float)
        in_blocks = layers_in_blocks(self.model, self.at_once)
        for layer in range(self.depth):
            costs = {
                kind: self.costs.running(self._tokens, layer, kind=kind)
                for kind in ("multiply", "observe", "run repaired")
            }
            is_fitted, two = self.is_fitted(layer), self.differs(layer)
            is_known = is_fitted and layer in self._gains
            twice = layer in in_blocks and is_fitted and not is_known
            total["read"] += self.costs.reading(layer) * (1 + twice)
            stages = self._fit(layer) if is_fitted else {}
            if is_known and not self._gains[layer]:
                stages = {stage: stages[stage] for stage in CHOOSING}
            observing = {"observe": costs["observe"]} if is_fitted else {}
            for part in (observing, *stages.values()):
                for sums in (total, before)[: 1 + is_known]:
                    for kind, amount in part.items():
                        sums[kind] += amount
            if not is_fitted or is_known:
                total["multiply"] += costs["multiply"]
            if two:
                total["run repaired"] += costs["run repaired"]
            if layer in in_blocks:
                around = self.costs.running_around(self._tokens, layer)
                total["multiply"] += (1 + two) * around
        return Tally(total, before)

    @cached_property
    def _tokens(self) -> int:
        return sum(int(batch.tokens.mask.sum()) for batch in self.batches)

    def _fit(self, layer: int) -> Mapping[str, Costs]:
        return fit_costs(self.model, layer, len(self.plan.kept[layer]), self._tokens)
