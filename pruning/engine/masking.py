"""Virtual pruning: a loaded model computes as if some experts or neurons were gone.

The router's own forward runs on tensors cut to the kept experts, and the ids that it returns are
mapped back, so the result equals that of a physically pruned model bit for bit. Tensors are cut
when their module is called, as accelerate puts offloaded weights in place only then.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from analysis.errors import PlanError
from analysis.families.base import MoEFamily
from analysis.model.forwards import Forward, wrap_forward
from analysis.model.routing import Holder, RouterParts, cut, find_block, router_parts
from pruning.engine.changed_weights import ChangedWeights, weights_replaced
from pruning.engine.neuron_masking import neuron_mask, neurons_masked
from pruning.plan.experts_per_token import TopK
from pruning.plan.kept import check_kept
from pruning.plan.plan import PruningPlan

_MARK = "_moeprune_masked"


@contextmanager
def masked(
    model: nn.Module, family: MoEFamily, plan: PruningPlan, changed: ChangedWeights | None = None
) -> Iterator[None]:
    """Inside the block, `model` computes what its pruned and repaired version would.

    Router logits have one column per kept expert, as after pruning; expert ids stay those of the
    original model. On exit, also by an exception, everything is as before. The transformers model
    is in memory or offloaded by accelerate. The plan is checked against it, not its identity, which
    a loaded model lacks. `changed` keeps the weights that a repair or fewer bits change for the
    next block of the same plan.
    """
    if _MARK in model.__dict__:
        raise RuntimeError("The model is masked already; leave that block before masking again.")
    routings = {
        layer: router_parts(_block(model, family, layer), family, layer)
        for layer in {**plan.kept, **plan.top_k}
    }
    config: Any = model.config
    layers = family.layers(config.to_dict()) if family.groups else ()
    grouped = {layer.index: layer for layer in layers}
    for layer, ids in plan.kept.items():
        if ids[-1] >= (count := routings[layer].num_experts):
            raise PlanError(
                f"The plan keeps expert {ids[-1]} in layer {layer}, which has {count} experts "
                f"(0..{count - 1})."
            )
        if grouped:
            check_kept(grouped[layer], ids)
    masks = []
    for layer, neurons in plan.kept_neurons.items():
        experts = _block(model, family, layer).get_submodule("experts")
        mask = neuron_mask(experts, layer, neurons, is_transposed=bool(experts.is_transposed))
        masks.append((experts, mask))
    with ExitStack() as restore:
        model.__dict__[_MARK] = True
        restore.callback(model.__dict__.pop, _MARK)
        _silence_balancing_loss(model, restore)
        _select_fewer(routings, family, plan.top_k, restore)
        for layer, ids in plan.kept.items():
            if len(ids) < routings[layer].num_experts:
                _prune(routings[layer], torch.tensor(ids), restore)
        for experts, mask in masks:
            _wrap(experts, partial(neurons_masked, experts, mask), restore)
        # Made when a layer first runs; neurons are masked in them.
        for layer, make in (changed or ChangedWeights()).by_layer(family, plan).items():
            experts = _block(model, family, layer).get_submodule("experts")
            _wrap(experts, partial(weights_replaced, experts, make), restore)
        yield


def _select_fewer(
    routings: Mapping[int, RouterParts], family: MoEFamily, top_k: TopK, restore: ExitStack
) -> None:
    """Let routers select at most as many experts as a plan says, by layer."""
    for layer, most in top_k.items():
        parts, key = routings[layer], "top_k"
        modules = {parts.block, *parts.router.modules()}
        holders: list[Any] = [module for module in modules if key in module.__dict__]
        if family.shares_top_k:  # it reads a configuration that all layers share
            router: Any = parts.router
            restore.callback(setattr, router, "config", router.config)
            router.config, key = copy.copy(router.config), family.top_k_key
            holders = [router.config]
        for holder in holders:
            own = getattr(holder, key)
            restore.callback(setattr, holder, key, own)
            setattr(holder, key, min(own, most))


def _silence_balancing_loss(model: nn.Module, restore: ExitStack) -> None:
    # The balancing loss uses the original model's number of experts and would fail.
    top: Any = model.config
    for config in {id(candidate): candidate for candidate in (top, top.get_text_config())}.values():
        if output := getattr(config, "output_router_logits", False):
            config.output_router_logits = False
            restore.callback(setattr, config, "output_router_logits", output)


def _block(model: nn.Module, family: MoEFamily, layer: int) -> nn.Module:
    block = find_block(model, family, layer)
    if block is None:
        raise PlanError(f"The plan names layer {layer}, which has no router in the loaded model.")
    return block


def _prune(parts: RouterParts, kept: torch.Tensor, restore: ExitStack) -> None:
    for holder in parts.holders:
        if holder.module is not parts.router:
            _wrap(holder.module, partial(cut, holder, kept), restore)
    router_holder = next(
        (holder for holder in parts.holders if holder.module is parts.router), None
    )
    cut_router = partial(cut, router_holder or Holder(parts.router, {}), kept)
    _wrap(parts.router, cut_router, restore, kept)


def _wrap(
    module: nn.Module,
    changed: Callable[[], Any],
    restore: ExitStack,
    kept: torch.Tensor | None = None,
) -> None:
    """Run the module's forward inside `changed()`; with `kept`, map back the ids it returns."""

    def around(inner: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            with changed():
                result = inner(*args, **kwargs)
            if kept is None:
                return result
            *others, indices = result
            return (*others, kept.to(indices.device)[indices])

        return forward

    wrap_forward(module, around, restore)
