"""Ranking and pruning of neurons in a context, and the effect of each scope."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrays import BoolArray
from analysis.cache_keys import most_results
from analysis.criteria import CRITERIA
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.model import MoEModel
from analysis.stats.choose import choose_stats, parse_corpus_weight
from analysis.stats.store import NEURONS, StatsStore
from app.charts.chart import made_by
from app.tables.ranked import rank
from pruning.neurons.cuts import (
    NeuronField,
    expert_shares,
    field_of,
    pool_chance,
    pool_overlap,
    pruned_neurons,
)
from pruning.neurons.selection import NeuronScope
from pruning.plan import NEURON_GRANULARITY, PruningPlan
from pruning.planning.choice import SCOPES, scopes_of
from pruning.planning.make import make_plan
from pruning.planning.measured import find_sensitivity, removed_by
from pruning.planning.neurons import Arena, arena_of
from pruning.planning.ranking import Ranking, Selection, select_measured
from pruning.planning.side_by_side import SideBySide, scopes_side_by_side
from pruning.requests.plan import SpecRequest
from pruning.sensitivity.record import SensitivityStore
from pruning.spec import BudgetSpec, PlanSpec, SpreadSpec, spec_of

if TYPE_CHECKING:
    from app.charts.context import Context

COMPARISON_COLUMNS: Final = (
    *("layer", "expert", "neurons", "removed", "kept_share", "saliency", "gone", "tenth"),
)


def of_neurons(context: Context) -> Context:
    """The context with neurons to remove, in the widest scope if it removes experts."""
    if context.by_neuron:
        return context
    ranking = context.request.plan.ranking
    spec = spec_of(
        criterion=ranking.criterion,
        corpora=ranking.corpora,
        granularity=NEURON_GRANULARITY,
        sparsity=context.sparsity,
        neuron_scope=str(scopes_of(ranking.criterion)[0]),
    )
    return replace(context, spec=spec)


def across_experts(context: Context) -> Context:
    """The context with the widest scope, if its own prunes every expert by the same share."""
    context = of_neurons(context)
    if context.spec.spread.scope is not NeuronScope.EXPERT:
        return context
    widest = scopes_of(context.spec.ranking.criterion)[0]
    return replace(context, spec=context.spec.changed(neuron_scope=str(widest)))


def neuron_request(context: Context) -> SpecRequest:
    """The requested plan of neurons."""
    return context.request_for(of_neurons(context).spec)


@most_results(8)
def rank_for(request: SpecRequest, model: MoEModel, store: StatsStore) -> Selection:
    """The scores of every neuron; measures weights without statistics."""
    return drain(select_measured(request, model, store))


def ranking_of(context: Context, request: SpecRequest) -> Selection:
    """The scores of every neuron by the criterion and corpora of a request; see `rank_for`."""
    bare = PlanSpec(ranking=request.plan.ranking, budget=BudgetSpec(sparsity="0"))
    plain = SpecRequest(model=request.model, plan=bare)
    return context.keep(rank_for, plain, context.model, context.store)


@most_results(6)
def neuron_field(ranking: Ranking) -> NeuronField:
    """The saliency of every neuron in one array."""
    return field_of(ranking.neurons)


@most_results(8)
def ranks_within(field: NeuronField, scope: NeuronScope) -> NDArray[np.int32]:
    """(neurons,) rank within the pool; see `NeuronField.ranks`."""
    return field.ranks(scope)


def field(context: Context) -> NeuronField:
    """The saliency of every neuron; see `ranking_of`."""
    return context.keep(neuron_field, ranking_of(context, neuron_request(context)))


def pruned(context: Context) -> BoolArray:
    """(neurons,): True if the neuron is pruned."""
    context = of_neurons(context)
    neurons, spread = field(context), context.spec.spread
    scope = spread.scope
    ranks = context.keep(ranks_within, neurons, scope)
    if spread.is_measured:
        sizes = neurons.pools(scope)
        counts = removed_by(_measured_plan(context), context.order.sizes, context.model)
        return np.asarray(ranks >= np.repeat(sizes - np.array(counts), sizes))
    return pruned_neurons(ranks, neurons.pools(scope), context.fraction)


def _measured_plan(context: Context) -> PruningPlan:
    """The plan whose layers lose what their sensitivity says."""
    if context.shown:
        return context.shown.plan
    request = neuron_request(context)
    return make_plan(measured_ranking(context, request), request.plan).plan


def about(context: Context, *facts: str) -> str:
    """Provenance line of a chart of neurons."""
    scope = of_neurons(context).spec.spread.scope
    runs = ranking_of(context, neuron_request(context)).choice.runs
    return made_by(
        context.head,
        ", ".join(run.manifest.run_id for run in runs),
        context.ranking_criterion.label,
        f"neurons compete within {SCOPES[scope].lower()}",
        f"sparsity {context.sparsity}",
        *facts,
    )


def measured_corpora(context: Context) -> list[str]:
    """The corpora on which every neuron was measured."""
    return [corpus for corpus, run in context.runs.items() if NEURONS in run.manifest.files]


def corpora_overlaps(context: Context) -> pd.DataFrame:
    """Table `corpus_a, corpus_b, overlap, chance`: agreement of pruned neurons by corpus pair."""
    context.routed_criterion()
    corpora = measured_corpora(context)
    if len(corpora) < 2:
        raise StatsError(
            f"The neurons of {context.model.name} were measured on {len(corpora)} corpus; "
            "calibrate on another with `--groups routed,gradient`."
        )
    context.check_removes()
    # The chance is that of equal shares.
    context = of_neurons(context)
    if context.spec.spread.is_measured:
        spread = SpreadSpec(neuron_scope=str(NeuronScope.LAYER))
        context = replace(context, spec=context.spec.model_copy(update={"spread": spread}))
    masks = {corpus: pruned(context.on((corpus,))) for corpus in corpora}
    pools = field(context).pools(context.spec.spread.scope)
    chance = pool_chance(pools, context.fraction)
    rows = [
        (first, second, pool_overlap(masks[first], masks[second], pools), chance)
        for first, second in combinations(masks, 2)
    ]
    return pd.DataFrame(rows, columns=["corpus_a", "corpus_b", "overlap", "chance"])


def heapr_comparison(context: Context) -> pd.DataFrame:
    """Table of COMPARISON_COLUMNS: pruned share of each expert, with whole-expert HEAPr."""
    heapr, corpora = CRITERIA["heapr"], measured_corpora(context)
    used = [corpus for corpus, weight in context.weights.items() if weight > 0]
    if lacking := [corpus for corpus in used if corpus not in corpora]:
        raise StatsError(
            f"HEAPr of whole experts needs statistics of neurons, which {', '.join(lacking)} "
            "lacks; calibrate with `--groups routed,gradient`."
        )
    weighted = [parse_corpus_weight(text) for text in context.corpora]
    stats = context.keep(choose_stats, heapr, context.store, context.model, weighted).stats
    ranked = context.keep(rank, heapr, stats, context.gate)
    present = ranked.grid.present
    experts = ranked.grid.index().assign(
        saliency=ranked.saliency[present], gone=ranked.pruned(context.fraction)[present]
    )
    shares = expert_shares(field(context), pruned(context))
    table = shares.merge(experts, on=["layer", "expert"], how="left")
    # By layer, because whole experts are chosen within each.
    place = table.groupby("layer")["saliency"].rank(method="first") - 1
    counts = table.groupby("layer")["saliency"].transform("size")
    return table.assign(tenth=(place * 10 // counts).astype("int64"))[list(COMPARISON_COLUMNS)]


def arena(context: Context, request: SpecRequest, scope: NeuronScope) -> Arena:
    """The neurons that compete in a scope, under the constraints of a request."""
    free = {"budget": BudgetSpec(), "spread": SpreadSpec(neuron_scope=str(scope))}
    spec = request.plan.model_copy(update=free)
    return context.keep(arena_of, ranking_of(context, request), spec)


def scopes(context: Context) -> SideBySide:
    """Sparsity per layer and FLOPs saved, in every scope and, if measured, by sensitivity."""
    request = neuron_request(context)
    possible = scopes_of(request.plan.ranking.criterion)
    arenas = {scope: arena(context, request, scope) for scope in possible}
    ranking = measured_ranking(context, request)
    return context.keep(scopes_side_by_side, ranking, request.plan.budget, arenas)


def measured_ranking(context: Context, request: SpecRequest) -> Selection:
    """The scores of every neuron, with the sensitivity of their order if it was measured."""
    store = SensitivityStore(context.store.directories)
    return context.keep(with_curves, ranking_of(context, request), request.plan, store)


def with_curves(ranking: Selection, spec: PlanSpec, store: SensitivityStore) -> Selection:
    """The ranking with the sensitivity that the measured schedule reads."""
    return replace(ranking, sensitivity=find_sensitivity(ranking, spec, store))
