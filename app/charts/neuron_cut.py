"""Ranking and pruning of neurons in a context, and the effect of each scope."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrays import BoolArray
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
from pruning.plan import NEURON_GRANULARITY
from pruning.planning.choice import SCOPES, PlanChoice, plan_request, scopes_of
from pruning.planning.measured import find_sensitivity, removed_by
from pruning.planning.neurons import Arena, arena_of
from pruning.planning.ranking import Ranking, Selection, select_measured
from pruning.planning.side_by_side import SideBySide, scopes_side_by_side
from pruning.requests.plan import BUDGETS, PlanRequest
from pruning.sensitivity.record import SensitivityStore

if TYPE_CHECKING:
    from app.charts.context import Context

COMPARISON_COLUMNS: Final = (
    *("layer", "expert", "neurons", "removed", "kept_share", "saliency", "gone", "tenth"),
)


def neuron_choice(context: Context) -> PlanChoice:
    """The neuron options; for commands the widest scope of the criterion."""
    if context.plan.by_neuron:
        return context.plan
    return PlanChoice(NEURON_GRANULARITY, scope=scopes_of(context.request.criterion)[0])


def of_neurons(context: Context) -> Context:
    """The context with neurons to remove, as commands ask for by the name of a chart."""
    by_neuron = context.plan.by_neuron
    return context if by_neuron else replace(context, plan=neuron_choice(context))


def across_experts(context: Context) -> Context:
    """The context with the widest scope, if its own prunes every expert by the same share."""
    choice = neuron_choice(context)
    if choice.scope is not NeuronScope.EXPERT:
        return context
    widest = scopes_of(context.request.criterion)[0]
    return replace(context, plan=replace(choice, scope=widest))


def neuron_request(context: Context) -> PlanRequest:
    """The requested plan of neurons."""
    criterion = context.ranking_criterion
    base = {
        "model": context.named,
        "criterion": criterion.name,
        "corpora": context.corpora if criterion.source == "routed" else (),
        "sparsity": context.sparsity,
        "stats_dir": context.stats_dir,
    }
    return plan_request(neuron_choice(context), base)


def rank_for(request: PlanRequest, model: MoEModel, store: StatsStore) -> Selection:
    """The scores of every neuron; measures weights without statistics."""
    return drain(select_measured(request, model, store))


def ranking_of(context: Context, request: PlanRequest) -> Selection:
    """The scores of every neuron by the criterion and corpora of a request; see `rank_for`."""
    bare = PlanRequest(
        model=request.model,
        granularity=request.granularity,
        criterion=request.criterion,
        corpora=request.corpora,
        sparsity="0",
    )
    return context.keep(rank_for, bare, context.model, context.store)


def neuron_field(ranking: Ranking) -> NeuronField:
    """The saliency of every neuron in one array."""
    return field_of(ranking.neurons)


def ranks_within(field: NeuronField, scope: NeuronScope) -> NDArray[np.int32]:
    """(neurons,) rank within the pool; see `NeuronField.ranks`."""
    return field.ranks(scope)


def field(context: Context) -> NeuronField:
    """The saliency of every neuron; see `ranking_of`."""
    return context.keep(neuron_field, ranking_of(context, neuron_request(context)))


def pruned(context: Context) -> BoolArray:
    """(neurons,): True if the neuron is pruned."""
    neurons, scope = field(context), neuron_choice(context).scope
    ranks = context.keep(ranks_within, neurons, scope)
    if context.plan.by_neuron and context.plan.is_measured and context.shown:
        sizes = neurons.pools(scope)
        counts = removed_by(context.shown.plan, context.order.sizes, context.model)
        return np.asarray(ranks >= np.repeat(sizes - np.array(counts), sizes))
    return pruned_neurons(ranks, neurons.pools(scope), context.fraction)


def about(context: Context, *facts: str) -> str:
    """Provenance line of a chart of neurons."""
    choice = neuron_choice(context)
    runs = ranking_of(context, neuron_request(context)).choice.runs
    return made_by(
        context.head,
        ", ".join(run.manifest.run_id for run in runs),
        context.ranking_criterion.label,
        f"neurons compete within {SCOPES[choice.scope].lower()}",
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
    context = replace(context, plan=replace(context.plan, schedule="uniform"))
    masks = {corpus: pruned(context.on((corpus,))) for corpus in corpora}
    pools = field(context).pools(neuron_choice(context).scope)
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


def arena(context: Context, request: PlanRequest, scope: NeuronScope) -> Arena:
    """The neurons that compete in a scope, under the constraints of a request."""
    free = dict.fromkeys(BUDGETS) | {"sparsity": "", "schedule": "uniform"}
    unbudgeted = request.model_copy(update={**free, "neuron_scope": str(scope)})
    return context.keep(arena_of, ranking_of(context, request), unbudgeted)


def scopes(context: Context) -> SideBySide:
    """Sparsity per layer and FLOPs saved, in every scope and, if measured, by sensitivity."""
    request = neuron_request(context)
    arenas = {scope: arena(context, request, scope) for scope in scopes_of(request.criterion)}
    return context.keep(scopes_side_by_side, measured_ranking(context, request), request, arenas)


def measured_ranking(context: Context, request: PlanRequest) -> Selection:
    """The scores of every neuron, with the sensitivity of their order if it was measured."""
    store = SensitivityStore(context.store.directories)
    return context.keep(with_curves, ranking_of(context, request), request, store)


def with_curves(ranking: Selection, request: PlanRequest, store: SensitivityStore) -> Selection:
    """The ranking with the sensitivity that the measured schedule reads."""
    return replace(ranking, sensitivity=find_sensitivity(ranking, request, store))
