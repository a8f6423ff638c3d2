"""Virtual pruning: a loaded model that routes as if some experts were gone.

The router's own forward runs on tensors cut to the kept experts, and the ids it returns are
mapped back, so the result is bit for bit that of a physically pruned model. The cut is made when
the router is called: accelerate puts offloaded weights in place only then.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from analysis.errors import PlanError, UnsupportedModelError
from analysis.families import MoEFamily
from pruning.plan import PruningPlan

_MARK = "_moeprune_masked"


@contextmanager
def masked(model: nn.Module, family: MoEFamily, plan: PruningPlan) -> Iterator[None]:
    """Inside the block, `model` computes what its pruned version would.

    Router logits have one column per kept expert, as after pruning; expert ids stay those of the
    full model. On exit, also by an exception, everything is as before.

    Args:
        model: a loaded transformers model, in memory or offloaded by accelerate.
        family: its architecture.
        plan: the experts that stay; checked against the routers' sizes, not against the identity,
            which a loaded model does not have.

    Raises:
        PlanError: the plan names a layer or an expert that the model lacks.
        UnsupportedModelError: a router holds tensors that the family's table does not name.
        RuntimeError: the model is masked already.
    """
    if _MARK in model.__dict__:
        raise RuntimeError("The model is masked already; leave that block before masking again.")
    routers = {layer: _router(model, family, layer, ids) for layer, ids in plan.kept.items()}
    with ExitStack() as restore:
        model.__dict__[_MARK] = True
        restore.callback(model.__dict__.pop, _MARK)
        _silence_balancing_loss(model, restore)
        for layer, ids in plan.kept.items():
            router = routers[layer]
            if len(ids) < _rows(router, family):
                _wrap(router, family.router_parameters, ids, restore)
        yield


def _silence_balancing_loss(model: nn.Module, restore: ExitStack) -> None:
    # The loss over router logits is computed with the full model's one count and would fail.
    config: Any = model.config
    if wanted := getattr(config, "output_router_logits", False):
        config.output_router_logits = False
        restore.callback(setattr, config, "output_router_logits", wanted)


def _rows(router: nn.Module, family: MoEFamily) -> int:
    # An offloaded weight is on the meta device, where it still has its shape.
    return int(router.get_parameter(family.router_parameters[0]).shape[0])


def _router(model: nn.Module, family: MoEFamily, layer: int, ids: tuple[int, ...]) -> nn.Module:
    """The router of a layer, once it is known that the plan fits it."""
    try:
        router = model.get_submodule(family.router_module(layer))
    except AttributeError as error:
        raise PlanError(
            f"The plan names layer {layer}, which has no router in the loaded model."
        ) from error
    rows = _rows(router, family)
    if ids[-1] >= rows:
        raise PlanError(
            f"The plan keeps expert {ids[-1]} in layer {layer}, which has {rows} experts "
            f"(0..{rows - 1})."
        )
    held = {name for name, _ in (*router.named_parameters(), *router.named_buffers())}
    unknown = sorted(held - set(family.router_parameters))
    if unknown:
        raise UnsupportedModelError(
            f"The router of layer {layer} holds {unknown[0]!r}, of which the family "
            f"{family.label} does not say how it depends on the experts."
        )
    return router


def _wrap(
    router: nn.Module, names: tuple[str, ...], ids: tuple[int, ...], restore: ExitStack
) -> None:
    # accelerate replaces `forward` by its hook and calls `_old_forward` once weights are in place.
    attribute = "_old_forward" if "_old_forward" in router.__dict__ else "forward"
    own = attribute in router.__dict__
    inner: Callable[..., Any] = getattr(router, attribute)
    kept = torch.tensor(ids)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _cut(router, names, kept):
            *others, indices = inner(*args, **kwargs)
        return (*others, kept.to(indices.device)[indices])

    setattr(router, attribute, forward)
    if own:
        restore.callback(setattr, router, attribute, inner)
    else:
        restore.callback(delattr, router, attribute)


@contextmanager
def _cut(router: nn.Module, names: tuple[str, ...], kept: torch.Tensor) -> Iterator[None]:
    """The router with its expert-indexed tensors and counts cut to the kept experts."""
    attributes: dict[str, int] = {"num_experts": len(kept)}
    if "top_k" in router.__dict__:
        attributes["top_k"] = min(router.__dict__["top_k"], len(kept))
    with ExitStack() as restore:
        for name in names:
            _cut_tensor(router._parameters, name, kept, restore)
            _cut_tensor(router._buffers, name, kept, restore)
        before = {name: router.__dict__[name] for name in attributes if name in router.__dict__}
        restore.callback(router.__dict__.update, before)
        router.__dict__.update({name: attributes[name] for name in before})
        yield


def _cut_tensor(held: Any, name: str, kept: torch.Tensor, restore: ExitStack) -> None:
    if (tensor := held.get(name)) is not None:
        restore.callback(held.__setitem__, name, tensor)
        # Indexing keeps the graph, so a gradient reaches the kept rows.
        held[name] = tensor[kept.to(tensor.device)]
