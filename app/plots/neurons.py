"""The charts of plans of neurons: what each layer loses, and the FLOPs that are saved."""

import pandas as pd

from analysis.drain import drain
from analysis.errors import PlanError
from app.figures import neurons as figures
from app.plots.chart import Chart
from app.plots.scene import Scene
from pruning.atoms.selection import AtomScope
from pruning.planning.neuron_scopes import SideBySide, scopes_of, side_by_side
from pruning.planning.neurons import arena_of, neuron_evidence
from pruning.requests.base import validated
from pruning.requests.neurons import NeuronRequest


def layers_chart(table: pd.DataFrame, about: str) -> Chart:
    """The fraction of each layer's neurons that goes, of a table of `layer_shares`."""
    return Chart(
        "neuron-layers",
        lambda dark: figures.layer_lines(table, dark=dark),
        table,
        figures.describe_layers(table),
        about,
    )


def flops_chart(table: pd.DataFrame, about: str, *, measured: bool) -> Chart:
    """FLOPs of experts saved per token, of tables of `flops_saved` with a column `series`."""
    return Chart(
        "neuron-flops",
        lambda dark: figures.flops_lines(table, measured=measured, dark=dark),
        table,
        figures.describe_flops(table, measured=measured),
        about,
    )


def layers_of_scene(scene: Scene) -> Chart:
    """What each layer loses under every scope, for a recipe.

    Raises:
        UserError: a criterion that ranks no neurons, or statistics that are missing.
    """
    return layers_chart(_scopes(scene)[0].layers, scene.about_neurons())


def flops_of_scene(scene: Scene) -> Chart:
    """FLOPs saved under every scope, for a recipe; see `layers_of_scene`."""
    scopes, measured = _scopes(scene)
    return flops_chart(scopes.flops, scene.about_neurons(), measured=measured)


def _scopes(scene: Scene) -> tuple[SideBySide, bool]:
    """Every scope on the sparsity of a recipe; whether FLOPs follow a measured routing."""
    asked, model = scene.request, scene.model
    base = {
        "model": asked.model,
        "criterion": asked.criterion,
        "corpora": asked.corpora,
        "sparsity": asked.sparsity,
    }
    requests: dict[AtomScope, NeuronRequest] = {
        scope: validated(NeuronRequest, {**base, "atom_scope": str(scope)})
        for scope in scopes_of(asked.criterion)
    }
    first = next(iter(requests.values()))
    evidence = drain(neuron_evidence(first, model, scene.store))
    arenas = {
        scope: arena_of(request, model, evidence.saliency) for scope, request in requests.items()
    }
    found = side_by_side(first, model, arenas, evidence.routing)
    if found.layers.empty:
        raise PlanError(next(iter(found.refused.values())))
    return found, evidence.routing is not None
