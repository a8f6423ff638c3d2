"""Rankings of neurons: criterion and statistics -> which neurons are kept first."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from analysis.corpora.spec import CorpusWeight
from analysis.criteria import Criterion, neuron_score_of
from analysis.criteria.weight_based import NORM_PRODUCT
from analysis.errors import CriterionError, StatsError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from analysis.numbers.arrays import FloatArray, NeuronScores
from analysis.progress import Progress
from analysis.ranking.choose import Choice, corpus_names, notes_on_others, routed_runs
from analysis.ranking.norms import neuron_norms
from analysis.stats.blend import blend_neurons
from analysis.stats.manifest import Part
from analysis.stats.neurons import NEURON_INDEX
from analysis.stats.store import StatsStore

NEURON_RANKING_COLUMNS = (*NEURON_INDEX, "score", "saliency", "rank", "num_tokens")


def read_neurons(
    criterion: Criterion,
    store: StatsStore,
    model: MoEModel,
    corpora: Sequence[CorpusWeight] = (),
    run_ids: Sequence[str] = (),
) -> Generator[Progress, None, Choice[pd.DataFrame]]:
    """The table for `criterion.neuron_score`; norms of weights are measured now."""
    neuron_score_of(criterion)  # before anything is read
    if criterion.source == "routed":
        parts = routed_runs(store, model, corpora, run_ids, criterion)
        chosen = chosen_neurons(parts)
        others = () if run_ids else store.of_model(model.identity, "routed")
        return replace(chosen, notes=notes_on_others(chosen.runs, others, criterion))
    if corpora or run_ids:
        raise StatsError(
            f"{criterion.label} reads no calibration corpus; leave out --calibrated-on and --run."
        )
    widths = computed_widths(model)
    owners = [(layer, expert) for layer in sorted(widths) for expert in range(len(widths[layer]))]
    counts = np.array([widths[layer][expert] for layer, expert in owners])
    layers, experts = np.repeat(np.array(owners), counts, axis=0).T
    neurons = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    table = pd.DataFrame(dict(zip(NEURON_INDEX, (layers, experts, neurons), strict=True)))
    if criterion.source == "weights":
        norms = yield from neuron_norms(model)
        flat = [of_expert for layer in sorted(norms) for of_expert in norms[layer]]
        table = table.assign(**{NORM_PRODUCT: np.concatenate(flat)})
    return Choice(table, (), ())


def chosen_neurons(parts: Sequence[Part]) -> Choice[pd.DataFrame]:
    """The statistics of neurons of these calibration runs, blended."""
    table = blend_neurons(parts).table
    return Choice(table, tuple(part.run for part in parts), corpus_names(parts))


def score_neurons(criterion: Criterion, table: pd.DataFrame) -> FloatArray:
    """The paper's number of every neuron, in the order of the table."""
    score = neuron_score_of(criterion)
    if criterion.within_layers and "output_max" not in table:
        raise CriterionError(
            f"{criterion.label} reads maxima, which a blend does not have; use one corpus."
        )
    return score(table)


def rank_neurons(criterion: Criterion, table: pd.DataFrame) -> pd.DataFrame:
    """Table `layer, expert, neuron, score, saliency, rank, num_tokens`, one row per neuron.

    rank 0 is kept first in the whole model, or within its layer if the criterion does not compare
    layers. Ties keep the lower layer, expert, neuron. A neuron whose expert no token reached has
    saliency 0, the minimum. num_tokens is empty if no run was read.
    """
    score = score_neurons(criterion, table)
    saliency = criterion.saliency(score)
    group = table["layer"].to_numpy() if criterion.within_layers else np.zeros(len(table))
    order = np.lexsort((np.arange(len(table)), -saliency, group))
    ranks = np.empty(len(table), dtype=np.int64)
    _, sizes = np.unique(group, return_counts=True)
    ranks[order] = np.concatenate([np.arange(size) for size in sizes])
    unknown = pd.Series(pd.NA, index=table.index, dtype="Int64")
    return table[list(NEURON_INDEX)].assign(
        score=score, saliency=saliency, rank=ranks, num_tokens=table.get("num_tokens", unknown)
    )


def neuron_saliency(
    criterion: Criterion, table: pd.DataFrame, widths: Mapping[int, Sequence[int]]
) -> NeuronScores:
    """Layer -> for each expert, the saliency of each of its neurons; higher = keep.

    `table` has a row per neuron in order, see `Criterion.neuron_score`; `widths` is by layer the
    number of neurons of each expert.
    """
    saliency = criterion.saliency(score_neurons(criterion, table))
    ends = np.cumsum([width for layer in sorted(widths) for width in widths[layer]])
    if ends[-1] != len(saliency):
        raise ValueError(f"{len(saliency)} saliencies of {ends[-1]} neurons")
    parts = iter(np.split(saliency, ends[:-1]))
    return {layer: tuple(next(parts) for _ in widths[layer]) for layer in sorted(widths)}
