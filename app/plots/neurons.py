"""The charts of plans of neurons: what each layer loses, and the FLOPs that are saved."""

import pandas as pd

from analysis.drain import drain
from analysis.errors import PlanError
from app.charts.chart import Drawing
from app.charts.context import Context
from app.figures import neurons as figures
from pruning.atoms.selection import AtomScope
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.neuron_scopes import SideBySide, scopes_of, side_by_side
from pruning.planning.neurons import arena_of
from pruning.planning.ranking import select_measured
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest


def layers_chart(table: pd.DataFrame, about: str) -> Drawing:
    """The fraction of each layer's neurons that goes, of a table of `layer_shares`."""
    return Drawing(
        "neuron-layers",
        lambda dark: figures.layer_lines(table, dark=dark),
        table,
        figures.describe_layers(table),
        about,
    )


def flops_chart(table: pd.DataFrame, about: str, *, measured: bool) -> Drawing:
    """FLOPs of experts saved per token, of tables of `flops_saved` with a column `series`."""
    return Drawing(
        "neuron-flops",
        lambda dark: figures.flops_lines(table, measured=measured, dark=dark),
        table,
        figures.describe_flops(table, measured=measured),
        about,
    )


def layers_of_context(context: Context) -> Drawing:
    """What each layer loses under every scope, for a recipe.

    Raises:
        UserError: a criterion that ranks no neurons, or statistics that are missing.
    """
    return layers_chart(_scopes(context)[0].layers, context.about_neurons())


def flops_of_context(context: Context) -> Drawing:
    """FLOPs saved under every scope, for a recipe; see `layers_of_context`."""
    scopes, measured = _scopes(context)
    return flops_chart(scopes.flops, context.about_neurons(), measured=measured)


def _scopes(context: Context) -> tuple[SideBySide, bool]:
    """Every scope on the sparsity of a recipe; whether FLOPs follow a measured routing."""
    asked, model = context.request, context.model
    base = {
        "model": asked.model,
        "granularity": ATOMIC_GRANULARITY,
        "criterion": asked.criterion,
        "corpora": asked.corpora,
        "sparsity": asked.sparsity,
    }
    requests: dict[AtomScope, PlanRequest] = {
        scope: validated(PlanRequest, {**base, "atom_scope": str(scope)})
        for scope in scopes_of(asked.criterion)
    }
    first = next(iter(requests.values()))
    ranking = drain(select_measured(first, model, context.store))
    arenas = {scope: arena_of(ranking, request) for scope, request in requests.items()}
    found = side_by_side(first, model, arenas, ranking.routing)
    if found.layers.empty:
        raise PlanError(next(iter(found.refused.values())))
    return found, ranking.routing is not None
