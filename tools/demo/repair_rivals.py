"""What could stand in for a repair: one scalar a layer, constants for experts, another criterion.

None of them is in the product; docs/concepts/repair.md says what they give.

Shape suffixes: T tokens, K experts per token, R rows of one expert, D model width, E experts.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from analysis.calibration.experts import activations, expert_output
from analysis.calibration.feed import run_trunk
from analysis.calibration.recording import route
from analysis.drain import drain
from analysis.model.forwards import Forward, decoder_layers, listening, wrap_forward
from analysis.model.moe_model import MoEModel
from analysis.model.routing import find_block
from analysis.progress import Progress
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, keep_all
from pruning.repair.batches import PlacedBatch, Places
from pruning.repair.expert_store import ExpertStore
from pruning.repair.rows import Collector, experts_observed
from pruning.repair.solver import fit_layer

AddedBy = Callable[[int, Tensor], Tensor]  # expert, (R, D) its input -> (R, D) its output


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory and the text that rivals are fitted on."""

    source: MoEModel
    loaded: PreTrainedModel
    batches: Sequence[PlacedBatch]

    def experts(self, layer: int) -> nn.Module:
        """The experts of a layer."""
        block = find_block(self.loaded, self.source.family, layer)
        if block is None:
            raise ValueError(f"layer {layer} has no experts")
        return block.get_submodule("experts")

    def run(self) -> Iterator[PlacedBatch]:
        """Run all batches; each is yielded after its forward."""
        for batch in self.batches:
            with torch.no_grad():
                run_trunk(self.loaded, batch.tokens)
            yield batch


@contextmanager
def experts_replaced(experts: nn.Module, added_by: AddedBy) -> Iterator[None]:
    """While open, `added_by` gives what each expert adds, before its gate weight."""

    def around(_inner: Forward) -> Forward:
        def forward(hidden_TD: Tensor, index_TK: Tensor, weights_TK: Tensor) -> Tensor:
            routing = route(index_TK, int(experts.num_experts))  # type: ignore[arg-type]
            weights = torch.split(weights_TK.reshape(-1)[routing.order_S], routing.counts)
            output_TD = torch.zeros_like(hidden_TD)
            tokens = torch.split(routing.token_S, routing.counts)
            for expert, (token_R, weight_R) in enumerate(zip(tokens, weights, strict=True)):
                added_RD = added_by(expert, hidden_TD[token_R]) * weight_R[:, None]
                output_TD.index_add_(0, token_R, added_RD)
            return output_TD

        return forward

    with ExitStack() as restore:
        wrap_forward(experts, around, restore)
        yield


def mean_outputs(model: LoadedModel) -> dict[int, Tensor]:
    """Layer -> (E, D): the mean output of each expert over the tokens that choose it."""
    sums: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
    sizes: defaultdict[tuple[int, int], int] = defaultdict(int)

    def summing(layer: int, experts: nn.Module) -> AddedBy:
        def added(expert: int, x_RD: Tensor) -> Tensor:
            output_RD = expert_output(experts, expert, activations(experts, expert, x_RD))
            sums[layer, expert].append(output_RD.sum(0))
            sizes[layer, expert] += len(output_RD)
            return output_RD

        return added

    with ExitStack() as stack:
        for layer in model.source.layers:
            experts = model.experts(layer.index)
            stack.enter_context(experts_replaced(experts, summing(layer.index, experts)))
        for _ in model.run():
            pass
    return {
        layer.index: torch.stack(
            [
                torch.stack(sums[layer.index, expert]).sum(0) / max(sizes[layer.index, expert], 1)
                for expert in range(layer.num_experts)
            ]
        )
        for layer in model.source.layers
    }


@contextmanager
def constants_for_pruned(
    model: LoadedModel, plan: PruningPlan, means: Mapping[int, Tensor]
) -> Iterator[None]:
    """Pruned experts stay in the router and give their mean (MoNE's novices, arXiv:2507.00390)."""

    def added_of(layer: int, experts: nn.Module) -> AddedBy:
        kept = set(plan.kept[layer])

        def added(expert: int, x_RD: Tensor) -> Tensor:
            if expert in kept:
                return expert_output(experts, expert, activations(experts, expert, x_RD))
            return means[layer][expert].expand_as(x_RD)

        return added

    with ExitStack() as stack:
        for layer in plan.kept:
            experts = model.experts(layer)
            stack.enter_context(experts_replaced(experts, added_of(layer, experts)))
        yield


def fitted_scalars(model: LoadedModel, plan: PruningPlan) -> dict[int, float]:
    """Layer -> the factor of its routed output that brings the layer's output closest."""
    scalars: dict[int, float] = {}
    layers = decoder_layers(model.loaded, model.source.family)
    original: dict[int, list[Tensor]] = {number: [] for number in plan.kept}
    with ExitStack() as restore:
        for number in plan.kept:
            wrap_forward(layers[number], listening(original[number].append), restore)
        for _ in model.run():
            pass
    for number in plan.kept:
        outputs: list[Tensor] = []
        routed: list[Tensor] = []
        with ExitStack() as restore:
            restore.enter_context(scaled(model, plan, scalars))
            wrap_forward(layers[number], listening(outputs.append), restore)
            wrap_forward(model.experts(number), listening(routed.append), restore)
            batches = list(model.run())
        above = below = 0.0
        for batch, full, pruned, added in zip(
            batches, original[number], outputs, routed, strict=True
        ):
            lacking_TD = (full - pruned).reshape(added.shape)[batch.counted_T].double()
            added_TD = added[batch.counted_T].double()
            above += float((lacking_TD * added_TD).sum())
            below += float(added_TD.square().sum())
        scalars[number] = 1 + above / below
    return scalars


@contextmanager
def scaled(model: LoadedModel, plan: PruningPlan, scalars: Mapping[int, float]) -> Iterator[None]:
    """The pruned model, with the routed output of layers times a factor."""

    def times(factor: float) -> Callable[[Forward], Forward]:
        return lambda inner: lambda *args, **kwargs: inner(*args, **kwargs) * factor

    with ExitStack() as restore:
        for number, factor in scalars.items():
            wrap_forward(model.experts(number), times(factor), restore)
        restore.enter_context(masked(model.loaded, model.source.family, plan))
        yield


def unexplained(model: LoadedModel) -> Generator[Progress, None, dict[int, list[float]]]:
    """Layer -> what a repair cannot make up for if that expert alone goes; higher: keep.

    The squared error of the routed output on the held-out rows, after the best change of all other
    experts' down projections: the criterion that a repair suggests.
    """
    whole, store = keep_all(model.source), ExpertStore()
    places = Places.of(model.batches, model.loaded.device)
    errors: dict[int, list[float]] = {}
    for layer in model.source.layers:
        experts = model.experts(layer.index)
        full: list[Tensor] = []
        with ExitStack() as restore:
            wrap_forward(experts, listening(full.append), restore)
            batches = list(model.run())
        errors[layer.index] = []
        down: Tensor = experts.get_parameter("down_proj").detach()
        for expert in range(layer.num_experts):
            yield Progress(f"layer {layer.index}", expert, layer.num_experts, "experts")
            kept = tuple(index for index in range(layer.num_experts) if index != expert)
            plan = PruningPlan(whole.model, {layer.index: kept})
            collector = Collector(dict.fromkeys(kept), places, down[:0])
            outputs: list[Tensor] = []
            for number, batch in enumerate(batches):
                observe = collector.observer(number, store)
                with ExitStack() as restore, torch.no_grad():
                    restore.enter_context(experts_observed(experts, observe))
                    wrap_forward(experts, listening(outputs.append), restore)
                    restore.enter_context(masked(model.loaded, model.source.family, plan))
                    run_trunk(model.loaded, batch.tokens)
                collector.end(number, full[number] - outputs[number])
            rows = collector.rows(store)
            squares = float(rows.held.residual_TD.double().square().sum())
            result = drain(fit_layer(rows, store))
            store.clear()
            errors[layer.index].append(squares * min([1.0, *result.held_out.values()]))
    return errors
