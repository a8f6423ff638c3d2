"""Which neurons a plan prunes, and the effect of each scope."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.cache_keys import most_results
from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import CRITERIA
from analysis.errors import StatsError
from analysis.numbers.arrays import BoolArray
from analysis.ranking.choose import choose_stats
from analysis.stats.manifest import NEURONS
from app.charts.chart import made_by, model_fact
from app.tables.saliency_grid import rank
from pruning.plan.neuron_cuts import (
    NeuronField,
    expert_shares,
    field_of,
    neurons_pruned_by,
    pool_chance,
    pool_overlap,
    pruned_neurons,
)
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.plan.units import NeuronScope
from pruning.planning.choice import SCOPES, scopes_of
from pruning.planning.ranking import Ranking
from pruning.planning.side_by_side import SideBySide, scopes_side_by_side
from pruning.spec.spec import SpreadSpec

if TYPE_CHECKING:
    from app.loaded import Loaded

COMPARISON_COLUMNS: Final = (
    *("layer", "expert", "neurons", "removed", "kept_share", "saliency", "gone", "tenth"),
)


@most_results(6)
def neuron_field(ranking: Ranking) -> NeuronField:
    """The saliency of every neuron in one array."""
    return field_of(ranking.neurons)


@most_results(8)
def ranks_within(field: NeuronField, scope: NeuronScope) -> NDArray[np.int32]:
    """(neurons,) rank within the pool; see `NeuronField.ranks`."""
    return field.ranks(scope)


def field(loaded: Loaded) -> NeuronField:
    """The saliency of every neuron; see `Study.scores`."""
    return loaded.study.cached(neuron_field, loaded.scores)


def pruned(loaded: Loaded) -> BoolArray:
    """(neurons,): True if the plan prunes the neuron."""
    return loaded.study.cached(neurons_pruned_by, field(loaded), _plan(loaded))


def _plan(loaded: Loaded) -> PruningPlan:
    """The plan on screen, else that of the choices."""
    if loaded.shown and loaded.shown.plan.granularity == NEURON_GRANULARITY:
        return loaded.shown.plan
    return loaded.study.plan(loaded.neuron_spec)


def _by_corpus(loaded: Loaded, corpus: str) -> BoolArray:
    """(neurons,): True if the same share of every pool, by this corpus alone, has the neuron."""
    loaded = loaded.on((corpus,))
    neurons, scope = field(loaded), loaded.choices.spec.spread.scope
    ranks = loaded.study.cached(ranks_within, neurons, scope)
    return pruned_neurons(ranks, neurons.pools(scope), loaded.fraction)


def about(loaded: Loaded, *facts: str) -> str:
    """Provenance line of a chart of neurons."""
    scope = loaded.of_neurons().choices.spec.spread.scope
    runs = loaded.scores.choice.runs
    return made_by(
        model_fact(loaded),
        ", ".join(run.manifest.run_id for run in runs),
        loaded.choices.ranking_criterion.label,
        f"neurons compete within {SCOPES[scope].lower()}",
        f"sparsity {loaded.sparsity}",
        *facts,
    )


def measured_corpora(loaded: Loaded) -> list[str]:
    """The corpora on which every neuron was measured."""
    return [corpus for corpus, run in loaded.runs.items() if NEURONS in run.manifest.files]


def corpora_overlaps(loaded: Loaded) -> pd.DataFrame:
    """Table `corpus_a, corpus_b, overlap, chance`: agreement of pruned neurons by corpus pair."""
    loaded.routed_criterion()
    corpora = measured_corpora(loaded)
    if len(corpora) < 2:
        raise StatsError(
            f"The neurons of {loaded.model.name} were measured on {len(corpora)} corpus; "
            "calibrate on another with `--group gradient`."
        )
    loaded.check_removes()
    # The chance is that of equal shares.
    loaded = loaded.of_neurons()
    if loaded.choices.spec.spread.is_measured:
        spread = SpreadSpec(neuron_scope=str(NeuronScope.LAYER))
        loaded = loaded.choosing(spec=loaded.choices.spec.model_copy(update={"spread": spread}))
    masks = {corpus: _by_corpus(loaded, corpus) for corpus in corpora}
    pools = field(loaded).pools(loaded.choices.spec.spread.scope)
    chance = pool_chance(pools, loaded.fraction)
    rows = [
        (first, second, pool_overlap(masks[first], masks[second], pools), chance)
        for first, second in combinations(masks, 2)
    ]
    return pd.DataFrame(rows, columns=["corpus_a", "corpus_b", "overlap", "chance"])


def heapr_comparison(loaded: Loaded) -> pd.DataFrame:
    """Table of COMPARISON_COLUMNS: pruned share of each expert, with whole-expert HEAPr."""
    heapr, corpora = CRITERIA["heapr"], measured_corpora(loaded)
    used = [corpus for corpus, weight in loaded.weights.items() if weight > 0]
    if lacking := [corpus for corpus in used if corpus not in corpora]:
        raise StatsError(
            f"HEAPr of whole experts needs statistics of neurons, which {', '.join(lacking)} "
            "lacks; calibrate with `--group gradient`."
        )
    weighted = [parse_corpus_weight(text) for text in loaded.choices.corpora]
    stats = loaded.study.cached(
        choose_stats, heapr, loaded.study.store, loaded.model, weighted
    ).stats
    ranked = loaded.study.cached(rank, heapr, stats, loaded.choices.gate)
    present = ranked.grid.present
    experts = ranked.grid.index().assign(
        saliency=ranked.saliency[present], gone=ranked.pruned(loaded.fraction)[present]
    )
    shares = expert_shares(field(loaded), pruned(loaded))
    table = shares.merge(experts, on=["layer", "expert"], how="left")
    # By layer, because whole experts are chosen within each.
    place = table.groupby("layer")["saliency"].rank(method="first") - 1
    counts = table.groupby("layer")["saliency"].transform("size")
    return table.assign(tenth=(place * 10 // counts).astype("int64"))[list(COMPARISON_COLUMNS)]


def scopes(loaded: Loaded) -> SideBySide:
    """Sparsity per layer and FLOPs saved, in every scope and, if measured, by sensitivity."""
    study, spec = loaded.study, loaded.neuron_spec
    units = {scope: study.neurons(spec, scope) for scope in scopes_of(spec.ranking.criterion)}
    ranking = study.with_curves(loaded.neurons)
    return study.cached(scopes_side_by_side, ranking, spec, units)
