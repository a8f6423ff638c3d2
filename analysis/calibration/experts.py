"""The experts function that computes a layer's output and accumulates statistics in one pass.

It is registered in transformers' experts interface, so it receives the gate weights that the
model applies, and every (token, expert) pair is computed once. Shape suffixes: T tokens, K experts
per token, S = T*K routed pairs, E experts, D model width, M neurons of an expert.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from analysis.calibration.damage import LayerDamage, Scratch, reroute
from analysis.calibration.dense import add_router
from analysis.calibration.recording import Collection, Recorder, layer_dense, route
from analysis.calibration.removal import Removal, Without, check_removable
from analysis.calibration.sums import GroupSums
from analysis.errors import UnsupportedModelError
from analysis.families.base import MoEFamily, MoELayer
from analysis.model.forwards import listening, wrap_forward
from analysis.model.loaded_block import loaded_block
from analysis.model.moe_model import MoEModel
from analysis.model.routing import find_block, router_parts

IMPLEMENTATION = "moeprune_statistics"
_ACTIVE: ContextVar[Collection | None] = ContextVar("moeprune_collection", default=None)


def _project(x_RD: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool) -> Tensor:
    if transposed:
        product = x_RD @ weight
        return product if bias is None else product + bias
    return functional.linear(x_RD, weight, bias)


def activations(experts: nn.Module, expert: int, x_RD: Tensor) -> Tensor:
    """(R, M): the activations of an expert's neurons, which scale the columns of down."""
    name = "gate_up_proj" if experts.has_gate else "up_proj"
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    transposed = bool(experts.is_transposed)
    inner = _project(x_RD, getattr(experts, name)[expert], bias, transposed=transposed)
    gated: Tensor = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)  # type: ignore[operator]
    return gated


def expert_output(experts: nn.Module, expert: int, a_RM: Tensor) -> Tensor:
    """(R, D): f of one expert, from its neurons' activations, before the gate weight."""
    bias = experts.down_proj_bias[expert] if experts.has_bias else None  # type: ignore[index]
    weight: Tensor = experts.down_proj[expert]  # type: ignore[index]
    output = _project(a_RM, weight, bias, transposed=bool(experts.is_transposed))
    if getattr(experts, "has_post_expert_norm", False):
        normed: Tensor = experts.post_expert_norm(output)  # type: ignore[operator]
        return normed
    return output


def _in_graph(hidden_TD: Tensor) -> Tensor:
    """The same input, as the start of the graph unless it is part of one.

    Parameters are frozen, so nothing before the first experts needs a gradient. The same holds
    when a layer is recomputed in backward, which must save what it saved before.
    """
    if torch.is_grad_enabled() and not hidden_TD.requires_grad:
        return hidden_TD.detach().requires_grad_()
    return hidden_TD


def _collection() -> Collection | None:
    # Activation checkpointing runs the same tokens again inside backward.
    return _ACTIVE.get() if torch._C._current_graph_task_id() == -1 else None


class ExpertsLoop:
    """The loop over the experts of a layer for one forward; it may pause between two experts.

    It adds the outputs as the stock loop does, and to the sums while collecting.
    """

    def __init__(self, experts: nn.Module, index_TK: Tensor, weights_TK: Tensor) -> None:
        self._experts = experts
        self._index_TK, self._weights_TK = index_TK, weights_TK
        self._routing = route(index_TK, int(experts.num_experts))  # type: ignore[arg-type]
        self._recorder = None
        if collection := _collection():
            self._recorder = Recorder(collection, collection.layer_of[experts], self._routing)

    def add(self, hidden_TD: Tensor, output_TD: Tensor) -> None:
        """Add to the output what the experts give whose weights are in place.

        `hidden_TD` is the input of all experts. Experts run in ascending order.
        """
        experts, routing, recorder = self._experts, self._routing, self._recorder
        damage = recorder.damage if recorder else None
        block = loaded_block(experts)
        weights = torch.split(self._weights_TK.reshape(-1)[routing.order_S], routing.counts)
        inputs = None
        if torch.is_grad_enabled():
            # One selection for all experts: in backward each selection costs a whole (T, D).
            inputs = torch.split(hidden_TD.index_select(0, routing.token_S), routing.counts)
        start = sum(routing.counts[: block.start])
        for place, expert in enumerate(block):
            count = routing.counts[expert]
            span = slice(start, start + count)
            start += count
            rows = routing.token_S[span]
            entering = None
            if damage:
                entering = _add_apart(experts, (expert, place), hidden_TD, damage)
            needed = rows if entering is None else torch.cat([rows, entering])
            if not len(needed):
                continue
            x_RD = inputs[expert] if inputs else hidden_TD.index_select(0, needed)
            a_RM = activations(experts, place, x_RD)
            if recorder and recorder.neurons:
                recorder.neurons.listen(experts, expert, span, a_RM)
            all_RD = expert_output(experts, place, a_RM)
            f_RD = all_RD if len(all_RD) == count else all_RD[:count]
            weighted_RD = f_RD * weights[expert][:, None]
            output_TD.index_add_(0, rows, weighted_RD.to(output_TD.dtype))
            if recorder:
                recorder.add(expert, span, f_RD)
                if damage:
                    damage.keep(expert, needed, all_RD)

    def close(self, hidden_TD: Tensor) -> None:
        """All experts ran."""
        if self._recorder:
            self._recorder.close(self._index_TK, self._weights_TK, hidden_TD)

    @property
    def is_dense(self) -> bool:
        """Whether experts are to run on every token."""
        return self._recorder is not None and self._recorder.dense is not None

    def add_dense(self, hidden_TD: Tensor, output_TD: Tensor) -> None:
        """Run the experts whose weights are in place on every token; the output is complete."""
        experts, block = self._experts, loaded_block(self._experts)

        def run(expert: int, x_RD: Tensor) -> Tensor:
            place = expert - block.start
            return expert_output(experts, place, activations(experts, place, x_RD))

        if self._recorder and self._recorder.dense:
            self._recorder.dense.add_experts(run, block, hidden_TD, output_TD)


def _collecting_experts(
    experts: nn.Module, hidden_TD: Tensor, index_TK: Tensor, weights_TK: Tensor
) -> Tensor:
    """Output of the routed experts, as the stock loop computes it; also adds to the sums."""
    loop = ExpertsLoop(experts, index_TK, weights_TK)
    hidden_TD = _in_graph(hidden_TD)
    output_TD = torch.zeros_like(hidden_TD)
    loop.add(hidden_TD, output_TD)
    loop.close(hidden_TD)
    loop.add_dense(hidden_TD, output_TD)
    return output_TD


def _add_apart(
    experts: nn.Module, at: tuple[int, int], hidden_TD: Tensor, damage: LayerDamage
) -> Tensor | None:
    """Tokens that also need an expert's output; None if gradients are on: then they run here.

    `at` is the expert, and its place among those whose weights are there.

    They enter no gradient and must stay out of the graph. Without gradients they share one
    product with the expert's own tokens: a product of a few rows costs as much as one of many.
    """
    expert, place = at
    entering = damage.entering(expert)
    if not torch.is_grad_enabled():
        return entering
    with torch.no_grad():
        a_RM = activations(experts, place, hidden_TD.index_select(0, entering))
        damage.keep(expert, entering, expert_output(experts, place, a_RM))
    return None


def _experts_modules(model: PreTrainedModel, described: MoEModel) -> dict[nn.Module, int]:
    """The experts modules of a model, which may be only a part of the described one."""
    modules: dict[nn.Module, int] = {}
    for layer in described.layers:
        block = find_block(model, described.family, layer.index)
        if block is None:
            continue
        module = block.get_submodule("experts")
        if not hasattr(module, "has_gate"):
            raise UnsupportedModelError(
                f"The experts of {described.family.label} in layer {layer.index} do not use "
                "transformers' experts interface, so their statistics cannot be collected."
            )
        modules[module] = layer.index
    if not modules:
        raise UnsupportedModelError(
            f"The loaded model has none of the sparse layers of {described.name}."
        )
    return modules


def _add_routing(
    layer: MoELayer,
    family: MoEFamily,
    routed: tuple[Tensor, ...],
    without: Without | None = None,
) -> None:
    """Add a router's output to the sums, after each of its forwards while collecting.

    `without` gives its output without an expert; None if not needed.
    """
    collection = _collection()
    if collection is None:
        return
    if family.returns_probabilities:
        routed = (routed[0].log(), *routed[1:])  # logits up to a constant
    if "router" in collection.sums.groups:
        add_router(collection.sums, layer.index, routed, collection.mask_T)
    if "dense" in collection.sums.groups:
        dense = layer_dense(collection, layer.index, routed[0].device)
        dense.add_router(routed[0])
        dense.add_choice(routed[-1])
    if without is not None:
        collection.rerouted[layer.index] = reroute(
            routed, without, layer.num_experts, collection.mask_T
        )


def _listen_to_routers(
    model: PreTrainedModel, described: MoEModel, sums: GroupSums, restore: ExitStack
) -> None:
    if sums.groups == ("routed",):
        return
    family = described.family
    for layer in described.layers:
        if "damage" in sums.groups:
            check_removable(family, layer)
        if block := find_block(model, family, layer.index):
            parts = router_parts(block, family, layer.index)
            add = partial(_add_routing, layer, family)
            if "damage" in sums.groups:
                Removal(parts, layer).attach(add, restore)
            else:
                wrap_forward(parts.router, listening(add), restore)


@contextmanager
def collecting(
    model: PreTrainedModel,
    described: MoEModel,
    sums: GroupSums,
    numbers: Mapping[int, int] = MappingProxyType({}),
) -> Iterator[None]:
    """While open, every forward of `model` adds to `sums`; use `batch_mask` for padded batches.

    The model may hold only some of the described layers, which may run one at a time. `numbers`
    are those of layers that have other numbers in the sums, as the layers of heads have.
    """
    if IMPLEMENTATION not in ALL_EXPERTS_FUNCTIONS:
        ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _collecting_experts)
    # Of each part: the text part of some models has another than the whole.
    previous = model.get_experts_implementation()
    modules = {
        module: numbers.get(layer, layer)
        for module, layer in _experts_modules(model, described).items()
    }
    with ExitStack() as restore:
        _listen_to_routers(model, described, sums, restore)
        token = _ACTIVE.set(Collection(modules, sums))
        restore.callback(_ACTIVE.reset, token)
        restore.callback(model.set_experts_implementation, previous)
        model.set_experts_implementation(IMPLEMENTATION)
        # transformers only warns where it finds no experts interface in the model's own file.
        configs: list[Any] = [experts.config for experts in modules]
        if any(config._experts_implementation != IMPLEMENTATION for config in configs):
            raise UnsupportedModelError(
                f"transformers cannot change how the experts of {type(model).__name__} compute, so "
                "their statistics cannot be collected; load the model by its class in transformers."
            )
        yield


@contextmanager
def not_collecting() -> Iterator[None]:
    """Inside the block nothing is added to the sums of `collecting`."""
    token = _ACTIVE.set(None)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def paused_loop(experts: nn.Module, index_TK: Tensor, weights_TK: Tensor) -> ExpertsLoop:
    """The loop for the last forward, before its first expert; it keeps what it needs of that."""
    if collection := _collection():
        collection.scratch = Scratch()
    return ExpertsLoop(experts, index_TK, weights_TK)


def batch_mask(
    mask_BT: Tensor | None, shard_BT: Tensor | None = None, sample_BT: Tensor | None = None
) -> None:
    """Describe the positions of the next forward.

    `mask_BT` is True at tokens that enter the sums (None: all); `shard_BT` is the int64 token shard
    of each (None: the first); `sample_BT` the int64 sample of each, for the group `dense`.
    """
    collection = _ACTIVE.get()
    if collection is None:
        raise ValueError("batch_mask outside of collecting()")
    collection.mask_T = None if mask_BT is None else mask_BT.reshape(-1)
    collection.shard_T = None if shard_BT is None else shard_BT.reshape(-1)
    collection.sample_T = None if sample_BT is None else sample_BT.reshape(-1)
