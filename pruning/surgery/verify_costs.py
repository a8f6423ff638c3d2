"""What a verification runs, and what it costs before: bytes, new memory, products. No torch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from analysis.model.heads import loaded_bytes
from analysis.model.layer_costs import LayerCosts, layer_costs, output_weights
from analysis.model.moe_model import MoEModel
from analysis.model.parts import stack_bytes
from analysis.progress import Costs, added, cost
from pruning.plan.plan import PruningPlan
from pruning.surgery.layer_memory import layer_memory

CHECK_TOKENS: Final = 128  # that a verification runs unless it is told
_ITEM_BYTES: Final = {"float32": 4, "float64": 8}  # of a weight in memory, by dtype; of others 2
_STORED: Final = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16"}
_ROW_TOKENS: Final = 32
_FEWEST_ROWS: Final = 32  # of an expert; fewer take as long


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtypes of a forward, by name."""

    stored: str = "auto"  # that weights are rounded to first; "auto": the checkpoint's
    computed: str = ""  # empty: the same


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """A model to be run once on the tokens of a check."""

    model: MoEModel
    precision: Precision = Precision()
    plan: PruningPlan | None = None  # whose removed parts are masked; None: as it is


@dataclass(frozen=True, slots=True)
class Sides:
    """An export, and the original that it is compared with."""

    exported: MoEModel
    source: MoEModel
    plan: PruningPlan
    dequantised: bool = False  # whether FP8 of the original is BF16 in the export

    @property
    def passes(self) -> tuple[ForwardPass, ForwardPass]:
        """The original, its removed experts and neurons masked, and the export.

        Dequantised weights are BF16, so both are rounded to that first.
        """
        dtype = compared_dtype(self.plan)
        precision = Precision("bfloat16" if self.dequantised else dtype, dtype)
        original = ForwardPass(self.source, precision, self.plan)
        return original, ForwardPass(self.exported, precision)


def own_dtype(model: MoEModel) -> str:
    """The dtype in which transformers loads a checkpoint: what it states, first of all."""
    config = model.checkpoint.config
    stated = str(config.get("dtype") or config.get("torch_dtype"))
    return stated if stated in _STORED.values() else _STORED.get(model.dtype, "auto")


def item_bytes(model: MoEModel, computed: str = "") -> int:
    """Bytes of a weight in memory, in the dtype of a comparison or else the checkpoint's own."""
    return _ITEM_BYTES.get(computed or own_dtype(model), 2)


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
    stacks: int = 0  # bytes of memory that it takes to stack experts in, one layer after the other
    by_layers: bool = False
    at_once: int = 0  # experts of a layer that are loaded at once; 0: all

    @property
    def total(self) -> Costs:
        """Of the whole run."""
        return added(self.opening, added(self.loading, self.multiplying))

    @property
    def opening(self) -> Costs:
        """Of making a model whose weights are loaded later."""
        count = len(self.model.checkpoint.tensors)
        return {"open": cost("open", count)} if self.by_layers else {}

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
        stored = _ITEM_BYTES.get(_STORED.get(self.model.dtype, ""), 2)
        growth = item_bytes(self.model, self.computed) / stored
        return added(self.reading(nbytes), self.taking(growth * nbytes))

    def taking(self, nbytes: float) -> Costs:
        """Of so many bytes of memory that the process did not have."""
        return {"allocate": cost("allocate", nbytes)}

    def running(self, *layers: int) -> Costs:
        """Of the tokens through some layers."""
        return self._products(sum(map(self._weights, layers)))

    def _weights(self, layer: int) -> float:
        """Weights of a layer that a token is multiplied with.

        Of experts more where they see few tokens: their weights are read from memory all the same.
        """
        active, around = (of.get(layer, 0) for of in (self.layers.active, self.layers.around))
        rows = max(1.0, self.tokens * self._shares.get(layer, 1.0))  # of those that see any
        return around + (active - around) * max(1.0, _FEWEST_ROWS / rows)

    @property
    def _shares(self) -> dict[int, float]:
        """By layer, the share of tokens that an expert sees."""
        return {layer.index: layer.top_k / layer.num_experts for layer in self.model.layers}

    @property
    def logits(self) -> Costs:
        """Of the tokens' logits."""
        return self._products(output_weights(self.model))

    def _products(self, weights: float) -> Costs:
        kind = "multiply float32" if self.computed else "multiply"
        times = 2 if self.computed == "float64" else 1
        return {kind: cost(kind, times * self.tokens * weights)}


def run_costs(model: MoEModel, tokens: int, computed: str = "") -> RunCosts:
    """Of so many tokens through a model that is in memory as a whole."""
    return RunCosts(model, layer_costs(model), tokens, computed)


def costs_in_step(
    passes: Iterable[ForwardPass], tokens: int, *, at_once: int | None = None
) -> Iterator[RunCosts]:
    """Of so many tokens through each of some models, layer by layer.

    Layers are loaded whole, or `at_once` experts of them; by default as many as fit. The memory of
    a layer goes to the next one, of whichever model, if it is enough.
    """
    there = 0
    for one in passes:
        model, computed = one.model, one.precision.computed
        item, repaired = item_bytes(model, computed), one.plan is not None and one.plan.repair
        some, stacks = at_once, 0
        if some is None:
            some = layer_memory(model, item, repaired=bool(repaired)).at_once
        for size in stack_bytes(model, item).values() if not some else ():
            stacks, there = (stacks + size, size) if size > there else (stacks, there)
        costs = run_costs(model, tokens, computed)
        yield replace(costs, stacks=stacks, by_layers=True, at_once=some)


def export_costs(source: MoEModel, written: int) -> Costs:
    """To verify an export of so many bytes that is not there yet, up to its logits."""
    own, compared = (run_costs(source, CHECK_TOKENS, computed) for computed in ("", "float32"))
    exported = (added(costs.reading_anew(written), costs.multiplying) for costs in (own, compared))
    return reduce(added, (check_costs(written), *exported, compared.total))
