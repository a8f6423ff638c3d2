"""How much work a repair is, and how much of it is done."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from analysis.calibration.blocks import layers_in_blocks
from analysis.model.layer_costs import LayerCosts, layer_costs
from analysis.model.moe_model import MoEModel
from analysis.progress import Costs, Progress, Tally, scaled
from pruning.plan.experts_per_token import selecting
from pruning.plan.plan import PruningPlan
from pruning.repair.batches import PlacedBatch
from pruning.repair.costs import fit_costs


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a repair, by layer and batch."""

    model: MoEModel
    plan: PruningPlan
    batches: Sequence[PlacedBatch]
    is_known: Callable[[int], bool]  # whether an interrupted repair has fitted a layer
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
        count, whole = len(self.batches), self.tally.whole
        return Progress("embedding", number + 1, count, "batches", whole=whole)

    def step(self, verb: str, layer: int, number: int, note: str = "") -> Progress:
        """A step that says what was done with a batch."""
        batches, at = len(self.batches), f"layer {layer}"
        done, unit = layer * batches + number + 1, "batches of a layer"
        return Progress(verb, done, self.depth * batches, unit, note, at, self.tally.whole)

    def read(self, layer: int, share: float = 1.0) -> None:
        """Count a layer that was read, or a share of it."""
        self.tally.add("read", share * self.costs.reading(layer))

    def ran(self, kind: str, layer: int, number: int, share: float = 1.0) -> None:
        """Count a batch that ran through a layer, or a share of that."""
        tokens = int(self.batches[number].tokens.mask.sum())
        self.tally.add(kind, share * self.costs.running(tokens, layer, kind=kind))

    def around(self, layer: int, number: int, times: int) -> None:
        """Count a batch that ran to a layer's experts, which it does again to its end."""
        tokens = int(self.batches[number].tokens.mask.sum())
        self.tally.add("multiply", times * self.costs.running_around(tokens, layer))

    def fitted(self, layer: int, share: float) -> None:
        """Count a layer whose damping is chosen, and of which so much is fitted, or all of it."""
        choosing, fitting = self._fit(layer)
        if layer not in self._shares:
            self._add(choosing)
        self._add(scaled(fitting, share - self._shares.get(layer, 0.0)))
        self._shares[layer] = share

    def gained_nothing(self, layer: int) -> None:
        """Expect no fit of a layer, for which no damping was chosen."""
        self.tally.leave_out(self._fit(layer)[1])
        self._shares[layer] = 1.0
        self._add(self._fit(layer)[0])

    def _add(self, costs: Costs) -> None:
        for kind, amount in costs.items():
            self.tally.add(kind, amount)

    @cached_property
    def _shares(self) -> dict[int, float]:
        """Layers whose damping is chosen -> the share that is fitted."""
        return {}

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
            is_known = is_fitted and self.is_known(layer)
            twice = layer in in_blocks and is_fitted and not is_known
            total["read"] += self.costs.reading(layer) * (1 + twice)
            for part in ({"observe": costs["observe"]}, *self._fit(layer)) if is_fitted else ():
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

    def _fit(self, layer: int) -> tuple[Costs, Costs]:
        return fit_costs(self.model, layer, len(self.plan.kept[layer]), self._tokens)
