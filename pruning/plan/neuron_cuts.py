"""Pruned neurons as arrays, for tables and figures over the millions of neurons of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.cache_keys import IdentityKey
from analysis.lazy import pd
from analysis.numbers.sparsity import num_removed
from pruning.plan.kept import kept_ids
from pruning.plan.units import NeuronScope

if TYPE_CHECKING:
    from analysis.numbers.arrays import BoolArray, FloatArray, IntArray, NeuronScores
    from pruning.plan.plan import PruningPlan

SHARE_COLUMNS = ("layer", "expert", "neurons", "removed", "kept_share", "kept_saliency")
HISTOGRAM_COLUMNS = ("layer", "low", "high", "kept", "pruned")
CUT_COLUMNS = ("layer", "neurons", "removed", "cut", "zeros")
NEURON_TABLE_COLUMNS = ("rank", "neuron", "saliency", "kept")


@dataclass(frozen=True, eq=False)
class NeuronField(IdentityKey):
    """A saliency for every neuron of a model, ordered by layer, expert and neuron."""

    layers: IntArray  # (experts,) decoder index
    experts: IntArray  # (experts,) id
    widths: IntArray  # (experts,) neurons
    saliency: FloatArray  # (neurons,) higher = keep

    @property
    def owner(self) -> IntArray:
        """(neurons,) position of each neuron's expert."""
        return np.repeat(np.arange(len(self.widths)), self.widths)

    def pools(self, scope: NeuronScope) -> IntArray:
        """Sizes of the consecutive groups whose neurons compete with each other."""
        if scope is NeuronScope.EXPERT:
            return self.widths
        if scope is NeuronScope.GLOBAL:
            return np.array([len(self.saliency)], dtype=np.int64)
        return np.array([self.widths[self.layers == n].sum() for n in np.unique(self.layers)])

    def ranks(self, scope: NeuronScope) -> NDArray[np.int32]:
        """(neurons,) rank within the pool, 0 = first to keep; ties keep the earlier neuron."""
        ranks = np.empty(len(self.saliency), dtype=np.int32)
        start = 0
        for size in self.pools(scope).tolist():
            order = np.argsort(-self.saliency[start : start + size], kind="stable")
            ranks[start + order] = np.arange(size, dtype=np.int32)
            start += size
        return ranks


def field_of(scores: NeuronScores) -> NeuronField:
    """Scores by layer and expert as one array."""
    owners = [(layer, expert) for layer in sorted(scores) for expert in range(len(scores[layer]))]
    parts = [scores[layer][expert] for layer, expert in owners]
    layers, experts = np.array(owners, dtype=np.int64).T
    widths = np.array([len(part) for part in parts], dtype=np.int64)
    return NeuronField(layers, experts, widths, np.concatenate(parts))


def pruned_neurons(
    ranks: NDArray[np.int32], pools: Sequence[int] | IntArray, sparsity: Fraction
) -> BoolArray:
    """(neurons,) True where the neuron is pruned: floor(sparsity * size) of every pool.

    The choice is that of `Units` without constraints, but without lists of ids. See
    `NeuronField.ranks` and `NeuronField.pools`.
    """
    sizes = np.asarray(pools, dtype=np.int64)
    stay = sizes - np.array([num_removed(int(size), sparsity) for size in sizes])
    return np.asarray(ranks >= np.repeat(stay, sizes))


def neurons_pruned_by(field: NeuronField, plan: PruningPlan) -> BoolArray:
    """(neurons,) True where the plan prunes the neuron, alone or with its expert."""
    pruned = np.ones(len(field.saliency), dtype=bool)
    starts = np.cumsum(field.widths) - field.widths
    for layer, expert, width, start in zip(
        *(column.tolist() for column in (field.layers, field.experts, field.widths, starts)),
        strict=True,
    ):
        if expert in plan.kept.get(layer, (expert,)):
            ids = kept_ids(plan.kept_neurons, layer, expert, width)
            pruned[start + np.array(ids, dtype=np.int64)] = False
    return pruned


def expert_shares(field: NeuronField, pruned: BoolArray) -> pd.DataFrame:
    """Table of SHARE_COLUMNS, one row per expert: the shares of it that stay.

    `kept_share` is of its neurons, `kept_saliency` of the sum of their saliency; 1 of none.
    """
    num_pruned = np.bincount(field.owner[pruned], minlength=len(field.widths))
    stay = field.widths - num_pruned
    # An expert without neurons counts as kept.
    share = np.where(field.widths > 0, stay / np.maximum(field.widths, 1), 1.0)
    gone, sums = (
        np.bincount(field.owner, weights, minlength=len(field.widths))
        for weights in (np.where(pruned, field.saliency, 0), field.saliency)
    )
    saliency = 1 - np.divide(gone, sums, out=np.zeros_like(sums), where=sums > 0)
    columns = (field.layers, field.experts, field.widths, num_pruned, share, saliency)
    return pd.DataFrame(dict(zip(SHARE_COLUMNS, columns, strict=True)))


def layer_cuts(field: NeuronField, pruned: BoolArray) -> pd.DataFrame:
    """Table of CUT_COLUMNS, one row per layer.

    `cut` is the highest pruned saliency of the layer, missing if nothing is pruned. Where neurons
    compete within each expert, an expert may prune higher ones than another keeps. `zeros` counts
    neurons of saliency 0, which a logarithmic scale cannot show.
    """
    rows = []
    ends = np.cumsum(field.pools(NeuronScope.LAYER))
    parts = zip(np.split(field.saliency, ends[:-1]), np.split(pruned, ends[:-1]), strict=True)
    for layer, (values, is_pruned) in zip(np.unique(field.layers).tolist(), parts, strict=True):
        cut = float(values[is_pruned].max()) if is_pruned.any() else float("nan")
        rows.append((layer, len(values), int(is_pruned.sum()), cut, int((values == 0).sum())))
    return pd.DataFrame(rows, columns=list(CUT_COLUMNS))


def saliency_histogram(field: NeuronField, pruned: BoolArray, bins: int = 48) -> pd.DataFrame:
    """Table of HISTOGRAM_COLUMNS: neurons of each layer by saliency, in equal steps of its log10.

    `low` and `high` are the saliencies that bound the step; `kept` and `pruned` count neurons.
    Neurons of saliency 0 or less are left out.
    """
    is_positive = field.saliency > 0
    if not is_positive.any():
        return pd.DataFrame(columns=list(HISTOGRAM_COLUMNS))
    logs = np.log10(field.saliency[is_positive])
    low, high = float(logs.min()), float(logs.max())
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    step = np.clip(np.searchsorted(edges, logs, side="right") - 1, 0, bins - 1)
    layers, row = np.unique(np.repeat(field.layers, field.widths)[is_positive], return_inverse=True)
    cells = (row * 2 + pruned[is_positive]) * bins + step
    counts = np.bincount(cells, minlength=len(layers) * 2 * bins).reshape(len(layers), 2, bins)
    bounds = 10**edges
    ends = (np.tile(bounds[:-1], len(layers)), np.tile(bounds[1:], len(layers)))
    columns = (np.repeat(layers, bins), *ends, counts[:, 0].ravel(), counts[:, 1].ravel())
    return pd.DataFrame(dict(zip(HISTOGRAM_COLUMNS, columns, strict=True)))


def neurons_of(field: NeuronField, pruned: BoolArray, layer: int, expert: int) -> pd.DataFrame:
    """Table of NEURON_TABLE_COLUMNS of one expert, first to keep on top; ranks count from 0."""
    (places,) = np.nonzero((field.layers == layer) & (field.experts == expert))
    if not len(places):
        raise KeyError((layer, expert))
    start = int(field.widths[: places[0]].sum())
    where = slice(start, start + int(field.widths[places[0]]))
    values, is_pruned = field.saliency[where], pruned[where]
    order = np.argsort(-values, kind="stable")
    columns = (np.arange(len(values)), order, values[order], ~is_pruned[order])
    return pd.DataFrame(dict(zip(NEURON_TABLE_COLUMNS, columns, strict=True)))


def pool_overlap(first: BoolArray, second: BoolArray, pools: Sequence[int] | IntArray) -> float:
    """Mean over pools of |A & B| / |A|, as for experts over layers; NaN when nothing is pruned.

    Neurons that compete over all layers are one pool, because two corpora may prune different
    numbers in a layer. In a pool both prune equally many, so the measure is symmetric.
    """
    sizes = np.asarray(pools, dtype=np.int64)
    pool = np.repeat(np.arange(len(sizes)), sizes)
    removed = np.bincount(pool[first], minlength=len(sizes))
    shared = np.bincount(pool[first & second], minlength=len(sizes))
    used = removed > 0
    return float((shared[used] / removed[used]).mean()) if used.any() else float("nan")


def pool_chance(pools: Sequence[int] | IntArray, sparsity: Fraction) -> float:
    """Expected overlap of two random choices: the mean share that goes, over pools that lose any.

    NaN when nothing is pruned.
    """
    sizes = np.asarray(pools, dtype=np.int64)
    counts = np.array([num_removed(int(size), sparsity) for size in sizes])
    used = counts > 0
    return float((counts[used] / sizes[used]).mean()) if used.any() else float("nan")
