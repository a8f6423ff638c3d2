"""What a verification costs before it runs: bytes, new memory, matrix products. No torch."""

from dataclasses import dataclass
from functools import reduce
from typing import Final

from analysis.families.base import SlotKind
from analysis.model.heads import loaded_bytes
from analysis.model.layer_costs import LayerCosts, layer_costs, output_weights
from analysis.model.moe_model import MoEModel
from analysis.model.parts import layer_weights
from analysis.progress import Costs, added, cost
from pruning.plan.plan import PruningPlan

CHECK_TOKENS: Final = 128  # that a verification runs unless it is told
# Bytes of a weight in memory, by the dtype of a comparison, else by the checkpoint's (else 2).
_ITEM_BYTES: Final = {"float32": 4, "float64": 8, "F32": 4, "F64": 8}
_ROW_TOKENS: Final = 32


def item_bytes(model: MoEModel, computed: str = "") -> int:
    """Bytes of a weight in memory, in the dtype of a comparison or else the checkpoint's own."""
    return _ITEM_BYTES.get(computed or model.dtype, 2)


def compared_dtype(plan: PruningPlan) -> str:
    """The dtype of a comparison with the original: without neurons, sums run in another order."""
    return "float64" if plan.kept_neurons else "float32"


def token_shape(model: MoEModel, tokens: int) -> tuple[int, int]:
    """(rows, length) of at least so many tokens, in rows that fit the model's context."""
    most = int(model.config.get("max_position_embeddings") or _ROW_TOKENS)
    length = min(tokens, _ROW_TOKENS, most)
    return -(-tokens // length), length


def check_costs(nbytes: int) -> Costs:
    """Of so many bytes of an export, hashed and compared with the source's."""
    return {"check": cost("check", nbytes)}


@dataclass(frozen=True, slots=True)
class RunCosts:
    """What it costs to run a model once for a check, in all and by parts."""

    model: MoEModel
    layers: LayerCosts
    tokens: int
    computed: str = ""  # the dtype of a comparison, by name; empty: the checkpoint's own
    stacks: int = 0  # bytes of memory that experts are stacked in, one layer after the other
    by_layers: bool = False

    @property
    def total(self) -> Costs:
        """Of the whole run."""
        return added(self.loading, self.multiplying)

    @property
    def loading(self) -> Costs:
        """Of what is read, and of the memory that it takes."""
        nbytes, sparse = loaded_bytes(self.model), 0
        if self.by_layers:
            sparse = sum(self.layers.num_bytes[layer.index] for layer in self.model.layers)
        costs = added(self.reading(sparse), self.reading_anew(nbytes - sparse))
        return added(costs, self.taking(self.stacks))

    @property
    def multiplying(self) -> Costs:
        """Of the tokens through all layers, with their logits."""
        trunk = (layer for layer in self.layers.active if layer != self.model.depth)
        return added(self.running(*trunk), self.logits)

    def reading(self, nbytes: float) -> Costs:
        """Of so many bytes of the checkpoint that become weights in memory that is there."""
        kind = "read float32" if self.computed else "read"
        return {kind: cost(kind, nbytes)}

    def reading_anew(self, nbytes: float) -> Costs:
        """Of so many bytes of the checkpoint that become weights in memory that is not there."""
        growth = item_bytes(self.model, self.computed) / item_bytes(self.model)
        return added(self.reading(nbytes), self.taking(growth * nbytes))

    def taking(self, nbytes: float) -> Costs:
        """Of so many bytes of memory that the process did not have."""
        return {"allocate": cost("allocate", nbytes)}

    def running(self, *layers: int) -> Costs:
        """Of the tokens through some layers."""
        return self._products(sum(self.layers.active.get(layer, 0) for layer in layers))

    @property
    def logits(self) -> Costs:
        """Of the tokens' logits."""
        return self._products(output_weights(self.model))

    def _products(self, weights: int) -> Costs:
        kind = "multiply float32" if self.computed else "multiply"
        times = 2 if self.computed == "float64" else 1
        return {kind: cost(kind, times * self.tokens * weights)}


def run_costs(
    model: MoEModel, tokens: int, computed: str = "", *, by_layers: bool, at_once: int = 0
) -> RunCosts:
    """Of so many tokens; by layers, these are loaded whole, or `at_once` experts of them."""
    item = item_bytes(model, computed)
    stacks = stack_bytes(model, item) if by_layers and not at_once else 0
    return RunCosts(model, layer_costs(model), tokens, computed, stacks, by_layers)


def stack_bytes(model: MoEModel, item: int) -> int:
    """Bytes of memory that experts are stacked in, so many for a weight, by layers.

    Those of a layer go where those of the one before were, if these took as much. What is
    dequantised, or is one tensor on disk already, is not stacked.
    """
    if model.quantisation or any(slot.kind is SlotKind.STACKED for slot in model.slots.values()):
        return 0
    routed = layer_weights(model, heads=False).routed
    sizes = [item * routed[layer] for layer in sorted(routed)]
    return sum(size for last, size in zip([0, *sizes], sizes, strict=False) if size != last)


def export_costs(source: MoEModel, written: int) -> Costs:
    """To verify an export of so many bytes that is not there yet, up to its logits."""
    own, compared = (
        run_costs(source, CHECK_TOKENS, computed, by_layers=False) for computed in ("", "float32")
    )
    exported = (added(costs.reading_anew(written), costs.multiplying) for costs in (own, compared))
    return reduce(added, (check_costs(written), *exported, compared.total))
