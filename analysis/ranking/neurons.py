"""Rankings of neurons: criterion and statistics of neurons -> which are kept first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.arrays import FloatArray
from analysis.criteria import CRITERIA, Criterion
from analysis.errors import CriterionError
from analysis.model import MoEModel
from analysis.ranking.norms import NEURON_NORMS, NeuronScores
from analysis.stats.blend import Mixture, Part
from analysis.stats.choose import Choice, CorpusWeight, corpus_names, notes_on_others, routed_runs
from analysis.stats.grid import Grid
from analysis.stats.neurons import NEURON_INDEX, NeuronStats, load_neuron_stats, num_neurons
from analysis.stats.store import StatsStore

NEURON_RANKING_COLUMNS = (*NEURON_INDEX, "score", "saliency", "rank", "num_tokens")


def blend_neurons(parts: Sequence[Part]) -> NeuronStats:
    """Statistics of neurons of a mix of corpora, each counting by its weight, not by its length.

    Of several runs the mix lacks the maxima, which do not mix.

    Raises:
        StatsError: a run without statistics of neurons, or runs that cannot be blended.
    """
    stats = [load_neuron_stats(part.run) for part in parts]
    if len(stats) == 1:
        return stats[0]  # a common factor changes no mean
    mixture = Mixture([part.run for part in parts])
    factors = mixture.factors([part.weight for part in parts])
    sums = {
        name: sum(
            factor * each.table[name].to_numpy(dtype=np.float64)
            for factor, each in zip(factors, stats, strict=True)
        )
        for name in ("output_sq", "slope_sq", "num_tokens")
    }
    corpora = tuple(corpus for each in stats for corpus in each.manifest.corpora)
    manifest = replace(stats[0].manifest, corpora=corpora, made={})
    return NeuronStats(manifest, stats[0].table[list(NEURON_INDEX)].assign(**sums))


def choose_neurons(
    criterion: Criterion,
    store: StatsStore,
    model: MoEModel,
    corpora: Sequence[CorpusWeight] = (),
    run_ids: Sequence[str] = (),
) -> Choice[NeuronStats]:
    """The statistics of neurons that `criterion` reads: of runs by id or corpus, or the only one.

    Raises:
        CriterionError: the criterion scores no neurons.
        StatsError: see `routed_runs`; or a run has no statistics of neurons.
    """
    neuron_score_of(criterion)  # before anything is read
    parts = routed_runs(store, model, corpora, run_ids, criterion)
    runs = tuple(part.run for part in parts)
    others = () if run_ids else store.of_model(model.identity, "routed")
    return Choice(
        blend_neurons(parts), runs, corpus_names(parts), notes_on_others(runs, others, criterion)
    )


def neuron_score_of(criterion: Criterion) -> Callable[[pd.DataFrame], FloatArray]:
    """How a criterion scores neurons.

    Raises:
        CriterionError: it scores whole experts only; names those that score neurons.
    """
    if criterion.neuron_score is None:
        known = ", ".join(each.name for each in CRITERIA.values() if each.neuron_score)
        raise CriterionError(
            f"{criterion.label} scores no neurons; those that do: {known}, and of weights "
            f"alone {NEURON_NORMS}."
        )
    return criterion.neuron_score


def score_neurons(criterion: Criterion, stats: NeuronStats) -> FloatArray:
    """The paper's number of every neuron, in the order of the table.

    Raises:
        CriterionError: the criterion scores whole experts only, or reads what a blend lacks.
    """
    score = neuron_score_of(criterion)
    if criterion.within_layers and "output_max" not in stats.table:
        raise CriterionError(
            f"{criterion.label} reads maxima, which a blend does not have; name one corpus."
        )
    return score(stats.table)


def rank_neurons(criterion: Criterion, stats: NeuronStats) -> pd.DataFrame:
    """Table `layer, expert, neuron, score, saliency, rank, num_tokens`, one row a neuron.

    rank 0 is the first to keep over the whole model, or within its layer where the criterion
    compares no layers. Ties keep the lower layer, expert, neuron. A neuron whose expert no token
    reached has saliency 0, the lowest there is.

    Raises:
        CriterionError: see `score_neurons`.
    """
    score = score_neurons(criterion, stats)
    saliency = criterion.saliency(score)
    table = stats.table
    group = table["layer"].to_numpy() if criterion.within_layers else np.zeros(len(table))
    order = np.lexsort((np.arange(len(table)), -saliency, group))
    ranks = np.empty(len(table), dtype=np.int64)
    _, sizes = np.unique(group, return_counts=True)
    ranks[order] = np.concatenate([np.arange(size) for size in sizes])
    return table[list(NEURON_INDEX)].assign(
        score=score, saliency=saliency, rank=ranks, num_tokens=table["num_tokens"]
    )


def unmeasured_saliency(criterion: Criterion, widths: Mapping[int, Sequence[int]]) -> NeuronScores:
    """What a criterion that reads no statistics says of every neuron: layer -> for each expert.

    Args:
        criterion: of source "none".
        widths: layer -> neurons of each expert.
    """
    owners = [(layer, expert) for layer in sorted(widths) for expert in range(len(widths[layer]))]
    counts = [widths[layer][expert] for layer, expert in owners]
    table = pd.DataFrame(owners, columns=["layer", "expert"])
    table = table.loc[np.repeat(np.arange(len(owners)), counts)].reset_index(drop=True)
    saliency = criterion.saliency(neuron_score_of(criterion)(table))
    parts = iter(np.split(saliency, np.cumsum(counts)[:-1]))
    return {layer: tuple(next(parts) for _ in widths[layer]) for layer in sorted(widths)}


def neuron_saliency(criterion: Criterion, stats: NeuronStats) -> NeuronScores:
    """Layer -> for each expert, a saliency for each of its neurons; higher = keep.

    Raises:
        CriterionError: see `score_neurons`.
    """
    saliency = criterion.saliency(score_neurons(criterion, stats))
    grid = Grid(stats.manifest.model.layers)
    ends = np.cumsum(num_neurons(stats.table, grid))[:-1]
    parts = iter(np.split(saliency, ends))
    return {
        layer.index: tuple(next(parts) for _ in range(layer.num_experts)) for layer in grid.layers
    }
