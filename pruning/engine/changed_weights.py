"""Expert weights that a plan changes in a loaded model: by its repair, and by fewer bits.

Nothing is written to the model: while the experts run, they have other parameters.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from analysis.errors import PlanError
from analysis.families.base import MoEFamily
from analysis.model.loaded_block import loaded_block
from pruning.engine.quantised import quantised
from pruning.engine.repaired_weights import DOWN, new_down
from pruning.plan.plan import PruningPlan

Weights = Mapping[str, Tensor]  # by name of the parameter, stacked over experts
MakeWeights = Callable[[nn.Module], Weights]


class ChangedWeights:
    """The changed weights of one plan, made when a layer first runs.

    Another plan takes the place of the last, so at most one copy of a model's experts is kept.
    """

    def __init__(self) -> None:
        self._plan: PruningPlan | None = None
        self._layers: dict[int, Weights] = {}

    def by_layer(self, family: MoEFamily, plan: PruningPlan) -> dict[int, MakeWeights]:
        """Layer -> what makes its weights of the experts, for layers that the plan changes."""
        repair = plan.repair
        repaired = {n for n in plan.kept if repair is not None and repair.file(n).is_file()}
        return {
            layer: partial(self._of, family, plan, layer)
            for layer in plan.kept
            if layer in repaired or plan.bits_in(layer)
        }

    def _of(self, family: MoEFamily, plan: PruningPlan, layer: int, experts: nn.Module) -> Weights:
        if plan is not self._plan:
            self._plan, self._layers = plan, {}
        if layer not in self._layers:
            self._layers[layer] = _changed(experts, family, plan, layer)
        return self._layers[layer]


def _changed(experts: nn.Module, family: MoEFamily, plan: PruningPlan, layer: int) -> Weights:
    new: dict[str, Tensor] = {}
    if plan.repair and (path := plan.repair.file(layer)).is_file():
        new[DOWN] = new_down(experts, family, path)
    return {**new, **_in_bits(experts, new, plan, layer)} if plan.bits_in(layer) else new


def _in_bits(experts: nn.Module, new: Weights, plan: PruningPlan, layer: int) -> Weights:
    """All projections of the kept experts in fewer bits; groups count kept neurons only."""
    if not hasattr(experts, "has_gate"):
        raise PlanError(
            f"Fewer bits cannot be simulated in layer {layer}: its experts do not use "
            "transformers' experts interface; evaluate the plan without --bits."
        )
    bits, block = plan.bits_in(layer), loaded_block(experts)
    neurons = plan.kept_neurons.get(layer, {})
    changed = {}
    for name in ("gate_up_proj" if experts.has_gate else "up_proj", DOWN):
        stacked_EXX = new.get(name, experts.get_parameter(name).detach()).clone()
        for expert in (kept for kept in plan.kept[layer] if kept in block):
            matrix_XX = stacked_EXX[expert - block.start]
            matrix_RC = matrix_XX.T if experts.is_transposed else matrix_XX
            if name == DOWN and expert in neurons:
                kept = list(neurons[expert])
                matrix_RC[:, kept] = quantised(matrix_RC[:, kept], bits)
            else:
                matrix_RC.copy_(quantised(matrix_RC, bits))
        changed[name] = stacked_EXX
    return changed


@contextmanager
def weights_replaced(experts: nn.Module, make: MakeWeights) -> Iterator[None]:
    """Inside the block, the experts have other parameters."""
    parameters: dict[str, Any] = experts._parameters
    before = {}
    for name, new in make(experts).items():
        before[name] = parameters[name]
        parameters[name] = nn.Parameter(new.to(before[name].device), requires_grad=False)
    try:
        yield
    finally:
        parameters |= before
