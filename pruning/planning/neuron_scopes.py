"""The scopes of a budget of neurons side by side: what each layer loses, what FLOPs are saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.widths import expert_widths
from pruning.active import Routing
from pruning.atoms.selection import AtomScope
from pruning.neuron_views import flops_saved, layer_shares
from pruning.planning.neurons import Arena
from pruning.requests.plan import PlanRequest

SCOPES: Mapping[AtomScope, str] = {
    AtomScope.GLOBAL: "All layers",
    AtomScope.LAYER: "Each layer",
    AtomScope.EXPERT: "Each expert",
}
_PERCENTS = tuple(f"{percent}%" for percent in range(10, 100, 10))
_FLOPS_COLUMNS = ("series", "sparsity", "removed", "flops", "reduction")


def scopes_of(criterion: str) -> tuple[AtomScope, ...]:
    """The scopes in which a criterion can compare neurons."""
    within = get_criterion(criterion).within_layers
    return tuple(scope for scope in SCOPES if scope is not AtomScope.GLOBAL or not within)


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Every scope on one budget.

    Args:
        layers: of `layer_shares`, a series for each scope.
        flops: of `flops_saved` at growing sparsities, with the scope as `series`.
        refused: scope -> why it is not possible.
    """

    layers: pd.DataFrame
    flops: pd.DataFrame
    refused: dict[str, str]


def side_by_side(
    request: PlanRequest,
    model: MoEModel,
    arenas: Mapping[AtomScope, Arena],
    routing: Routing | None,
) -> SideBySide:
    """Every scope on the budget of a request.

    Args:
        request: its budget counts, not its scope.
        model: the source.
        arenas: the neurons that compete, by scope.
        routing: how often each expert is chosen; without it, all equally often.
    """
    removed, flops, refused = {}, [], {}
    for scope, arena in arenas.items():
        name = SCOPES[scope]
        try:
            removed[name] = arena.contest.removed(arena.budget(request, model))
        except PlanError as error:
            refused[name] = str(error)
            continue
        saved = flops_saved(model, arena.contest, _PERCENTS, routing, arena.experts)
        flops.append(saved.assign(series=name)[list(_FLOPS_COLUMNS)])
    saved_by_all = pd.concat(flops, ignore_index=True) if flops else pd.DataFrame()
    return SideBySide(layer_shares(removed, expert_widths(model)), saved_by_all, refused)
