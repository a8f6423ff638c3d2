"""Which neurons go, as arrays: for tables and figures over the millions of neurons of a model.

The same choice as `Contest` makes without constraints, without a list of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from analysis.arrays import BoolArray, FloatArray, IntArray
from analysis.lazy import pd
from analysis.ranking.norms import NeuronScores
from analysis.sparsity import num_removed
from pruning.atoms.selection import AtomScope

SHARE_COLUMNS = ("layer", "expert", "neurons", "removed", "kept_share")
HISTOGRAM_COLUMNS = ("layer", "low", "high", "kept", "pruned")
CUT_COLUMNS = ("layer", "neurons", "removed", "cut", "zeros")
NEURON_TABLE_COLUMNS = ("rank", "neuron", "saliency", "kept")


@dataclass(frozen=True, eq=False)
class NeuronField:
    """A saliency for every neuron of a model, in order of layer, expert and neuron."""

    # Layers, experts: (experts,) whose neurons these are, in that order.
    layers: IntArray
    experts: IntArray
    widths: IntArray  # (experts,) how many neurons each has
    saliency: FloatArray  # (neurons,) higher = keep

    @property
    def owner(self) -> IntArray:
        """(neurons,) position of each neuron's expert."""
        return np.repeat(np.arange(len(self.widths)), self.widths)

    def pools(self, scope: AtomScope) -> IntArray:
        """Sizes of the groups whose neurons compete with each other; they follow one another."""
        if scope is AtomScope.EXPERT:
            return self.widths
        if scope is AtomScope.GLOBAL:
            return np.array([len(self.saliency)], dtype=np.int64)
        return np.array([self.widths[self.layers == n].sum() for n in np.unique(self.layers)])

    def ranks(self, scope: AtomScope) -> NDArray[np.int32]:
        """(neurons,) place within the pool, 0 first to keep; ties keep the lower place."""
        ranks = np.empty(len(self.saliency), dtype=np.int32)
        start = 0
        for size in self.pools(scope).tolist():
            order = np.argsort(-self.saliency[start : start + size], kind="stable")
            ranks[start + order] = np.arange(size, dtype=np.int32)
            start += size
        return ranks

    def of_expert(self, layer: int, expert: int) -> slice:
        """Where the neurons of an expert stand."""
        (found,) = np.nonzero((self.layers == layer) & (self.experts == expert))
        if not len(found):
            raise KeyError((layer, expert))
        start = int(self.widths[: found[0]].sum())
        return slice(start, start + int(self.widths[found[0]]))


def field_of(scores: NeuronScores) -> NeuronField:
    """The same numbers, layer -> for each expert, a saliency for each neuron, in one array."""
    owners = [(layer, expert) for layer in sorted(scores) for expert in range(len(scores[layer]))]
    parts = [scores[layer][expert] for layer, expert in owners]
    layers, experts = np.array(owners, dtype=np.int64).T
    widths = np.array([len(part) for part in parts], dtype=np.int64)
    return NeuronField(layers, experts, widths, np.concatenate(parts))


def pruned_neurons(
    ranks: NDArray[np.int32], pools: Sequence[int] | IntArray, sparsity: Fraction
) -> BoolArray:
    """(neurons,): True where the neuron goes; floor(sparsity * size) of every pool.

    `ranks` are places within the pool, see `NeuronField.ranks`; `pools` are sizes, in order.
    """
    sizes = np.asarray(pools, dtype=np.int64)
    stay = sizes - np.array([num_removed(int(size), sparsity) for size in sizes])
    return np.asarray(ranks >= np.repeat(stay, sizes))


def expert_shares(field: NeuronField, pruned: BoolArray) -> pd.DataFrame:
    """Table of SHARE_COLUMNS, one row an expert: how much of it stays."""
    gone = np.bincount(field.owner[pruned], minlength=len(field.widths))
    stay = field.widths - gone
    # An expert without neurons loses none.
    share = np.where(field.widths > 0, stay / np.maximum(field.widths, 1), 1.0)
    columns = (field.layers, field.experts, field.widths, gone, share)
    return pd.DataFrame(dict(zip(SHARE_COLUMNS, columns, strict=True)))


def layer_cuts(field: NeuronField, pruned: BoolArray) -> pd.DataFrame:
    """Table of CUT_COLUMNS, one row a layer: where its cut lies.

    `cut` is the highest saliency that goes in the layer, missing where none goes; where neurons
    compete within each expert, higher ones may go in one expert than stay in another. `zeros` are
    neurons of saliency 0, which a logarithmic scale cannot show.
    """
    rows = []
    ends = np.cumsum(field.pools(AtomScope.LAYER))
    parts = zip(np.split(field.saliency, ends[:-1]), np.split(pruned, ends[:-1]), strict=True)
    for layer, (values, gone) in zip(np.unique(field.layers).tolist(), parts, strict=True):
        cut = float(values[gone].max()) if gone.any() else float("nan")
        rows.append((layer, len(values), int(gone.sum()), cut, int((values == 0).sum())))
    return pd.DataFrame(rows, columns=list(CUT_COLUMNS))


def saliency_histogram(field: NeuronField, pruned: BoolArray, bins: int = 48) -> pd.DataFrame:
    """Table of HISTOGRAM_COLUMNS: neurons of each layer by saliency, in equal steps of its log10.

    `low` and `high` bound the step, both saliencies; `kept` and `pruned` count neurons. Those of
    saliency 0 or less are left out. Empty where no neuron has more.
    """
    shown = field.saliency > 0
    if not shown.any():
        return pd.DataFrame(columns=list(HISTOGRAM_COLUMNS))
    logs = np.log10(field.saliency[shown])
    low, high = float(logs.min()), float(logs.max())
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    step = np.clip(np.searchsorted(edges, logs, side="right") - 1, 0, bins - 1)
    layers, row = np.unique(np.repeat(field.layers, field.widths)[shown], return_inverse=True)
    cells = (row * 2 + pruned[shown]) * bins + step
    counts = np.bincount(cells, minlength=len(layers) * 2 * bins).reshape(len(layers), 2, bins)
    bounds = 10**edges
    ends = (np.tile(bounds[:-1], len(layers)), np.tile(bounds[1:], len(layers)))
    columns = (np.repeat(layers, bins), *ends, counts[:, 0].ravel(), counts[:, 1].ravel())
    return pd.DataFrame(dict(zip(HISTOGRAM_COLUMNS, columns, strict=True)))


def neurons_of(field: NeuronField, pruned: BoolArray, layer: int, expert: int) -> pd.DataFrame:
    """Table of NEURON_TABLE_COLUMNS of one expert, first to keep on top; rank counts from 0."""
    where = field.of_expert(layer, expert)
    values, gone = field.saliency[where], pruned[where]
    order = np.argsort(-values, kind="stable")
    columns = (np.arange(len(values)), order, values[order], ~gone[order])
    return pd.DataFrame(dict(zip(NEURON_TABLE_COLUMNS, columns, strict=True)))


def pool_overlap(first: BoolArray, second: BoolArray, pools: Sequence[int] | IntArray) -> float:
    """Mean over pools of |A & B| / |A|, as of experts over layers; NaN when nothing is pruned.

    Neurons that compete over all layers are one pool: of a single layer one text may remove more
    than another. Within a pool both remove equally many, so the order of the two does not matter.
    """
    sizes = np.asarray(pools, dtype=np.int64)
    pool = np.repeat(np.arange(len(sizes)), sizes)
    removed = np.bincount(pool[first], minlength=len(sizes))
    shared = np.bincount(pool[first & second], minlength=len(sizes))
    used = removed > 0
    return float((shared[used] / removed[used]).mean()) if used.any() else float("nan")


def pool_chance(pools: Sequence[int] | IntArray, sparsity: Fraction) -> float:
    """Expected overlap of two random choices: mean over the pools that lose neurons of their share.

    NaN where none does.
    """
    sizes = np.asarray(pools, dtype=np.int64)
    gone = np.array([num_removed(int(size), sparsity) for size in sizes])
    used = gone > 0
    return float((gone[used] / sizes[used]).mean()) if used.any() else float("nan")
