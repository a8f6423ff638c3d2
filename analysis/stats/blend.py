"""Blends: the statistics of several corpora mixed afterwards, with any weights.

Sums add up, so a mix needs no new calibration: each corpus' sums are divided by its number of
tokens, weighted, and added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from analysis.cache_keys import IdentityKey
from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.files.naming import digest_of
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.columns import LARGEST
from analysis.stats.manifest import COUNTS_ALONE, NEURONS, VECTORS, Part, Run, check_addable
from analysis.stats.neurons import (
    NEURON_INDEX,
    NeuronStats,
    load_neuron_stats,
    neuron_table,
    sum_by_expert,
)
from analysis.stats.reading import load_expert_stats, load_head_stats, read_vectors
from analysis.stats.tables import ExpertStats

# Columns made from the maxima of neurons, which do not mix.
NOT_MIXED = ("neuron_norm_sum", "neuron_peak_sum")
# Columns that do not add up; a mix has of them what it computes from other sums.
DERIVED_COLUMNS = ("vector_sum_sq", LARGEST, "neuron_product", *NOT_MIXED)


class Mixture(IdentityKey):
    """The sums of several runs of one model and dtype on different tokens, ready to mix.

    `load` gives a run's statistics; by default those of the trunk.
    """

    def __init__(
        self, runs: Sequence[Run], load: Callable[[Run], ExpertStats] = load_expert_stats
    ) -> None:
        if not runs:
            raise StatsError("There is nothing to blend; name at least one corpus.")
        check_addable(runs)
        self.runs = tuple(runs)
        self.stats = tuple(load(run) for run in runs)
        shared = set.intersection(*(set(stats.table.columns) for stats in self.stats))
        self._columns = [
            name
            for name in self.stats[0].table.columns
            if name in shared and name not in ("layer", "expert", *DERIVED_COLUMNS)
        ]
        self._index = self.stats[0].table[["layer", "expert"]]
        self._sums = np.stack(
            [stats.table[self._columns].to_numpy(dtype=np.float64) for stats in self.stats]
        )

    @cached_property
    def _vector_products(self) -> FloatArray | None:
        """(runs, runs, experts): inner products of the vector sums, enough for any mix, or None."""
        if not all(VECTORS in run.manifest.files for run in self.runs):
            return None
        vectors = [read_vectors(run) for run in self.runs]
        return np.array([[(a * b).sum(axis=1) for b in vectors] for a in vectors])

    @cached_property
    def _neuron_products(self) -> FloatArray | None:
        """(runs, runs, experts): sum_c output_sq of a run times slope_sq of another, or None."""
        if not all(NEURONS in run.manifest.files for run in self.runs):
            return None
        tables = [neuron_table(run) for run in self.runs]
        grid = self.stats[0].grid
        return np.array(
            [
                [sum_by_expert(a["output_sq"] * b["slope_sq"], a, grid) for b in tables]
                for a in tables
            ]
        )

    def factors(self, weights: Sequence[float] | FloatArray) -> FloatArray:
        """The factor of each run's sums.

        The mix is as large as possible without counting a corpus more than once, so numbers of
        tokens keep their meaning: equal weights of equally long corpora give a merge.
        """
        shares = np.asarray(weights, dtype=np.float64)
        for share, run in zip(shares, self.runs, strict=True):
            if not (share >= 0 and np.isfinite(share)):
                raise StatsError(f"The weight {share} of {run.manifest.corpus} must be >= 0.")
        if not shares.any():
            raise StatsError("Every weight of the blend is 0; give one corpus a positive weight.")
        # Each token is routed to top_k experts of a layer.
        first = self.stats[0].layers[0]
        tables = [stats.table[stats.table["layer"] == first.index] for stats in self.stats]
        per_token = shares / [table["num_tokens"].sum() / first.top_k for table in tables]
        factors: FloatArray = per_token / per_token.max()
        return factors

    def sums_table(self, weights: Sequence[float] | FloatArray) -> pd.DataFrame:
        """`table` without DERIVED_COLUMNS, which few criteria read and which are slow."""
        sums = np.tensordot(self.factors(weights), self._sums, axes=1)
        return pd.concat([self._index, pd.DataFrame(sums, columns=self._columns)], axis=1)

    def table(self, weights: Sequence[float] | FloatArray) -> pd.DataFrame:
        """Table of EXPERT_COLUMNS (num_tokens fractional) of the mix, without maxima of neurons."""
        factors = self.factors(weights)
        products = {"vector_sum_sq": self._vector_products, "neuron_product": self._neuron_products}
        return self.sums_table(weights).assign(
            **{
                name: np.einsum("a,b,abe->e", factors, factors, product)
                for name, product in products.items()
                if product is not None
            }
        )

    def mixed(self, weights: Sequence[float]) -> ExpertStats:
        """Statistics of the mix, with a manifest of their own."""
        manifests = [run.manifest for run in self.runs]
        counted = [manifest for manifest in manifests if manifest.kind == COUNTS_ALONE]
        manifest = replace(
            (*counted, *manifests)[0],  # a mix with counts alone has no more
            run_id="+".join(manifest.run_id for manifest in manifests),
            digest=digest_of(
                {
                    manifest.digest: weight
                    for manifest, weight in zip(manifests, weights, strict=True)
                }
            ),
            corpora=tuple(corpus for manifest in manifests for corpus in manifest.corpora),
            made={},
        )
        # The samples of all runs, weighted like the sums of their run.
        samples = tuple(
            replace(part, factor=part.factor * float(factor))
            for stats, factor in zip(self.stats, self.factors(weights), strict=True)
            for part in stats.samples
        )
        has_all = all(stats.samples for stats in self.stats)
        return ExpertStats(manifest, self.table(weights), samples if has_all else ())


@dataclass(frozen=True, slots=True)
class _Runs:
    key: tuple[tuple[str, ...], ...]
    runs: tuple[Run, ...] = field(compare=False)


def mixture_of(runs: Sequence[Run]) -> Mixture:
    """The sums of these runs, read once: a page mixes the same runs for each criterion."""
    return _mixture(_Runs(tuple(run.cache_key for run in runs), tuple(runs)))


@lru_cache(maxsize=4)
def _mixture(chosen: _Runs) -> Mixture:
    return Mixture(chosen.runs)


def blend(parts: Sequence[Part]) -> ExpertStats:
    """Statistics of a weighted mix of corpora; num_tokens becomes fractional."""
    for part in parts:
        if not (part.weight > 0 and np.isfinite(part.weight)):
            raise StatsError(f"The weight {part.weight} of {part.run.manifest.corpus} must be > 0.")
    mixture = mixture_of([part.run for part in parts])
    if len(parts) == 1:
        return mixture.stats[0]  # a common factor changes no ranking and no mean
    return mixture.mixed([part.weight for part in parts])


def blended_heads(parts: Sequence[Part], layers: tuple[MoELayer, ...]) -> ExpertStats:
    """As `blend`, of the experts of prediction heads, whose layers are given.

    A mix of several runs lacks `vector_sum_sq`: the vectors of heads are not stored.
    """
    mixture = Mixture([part.run for part in parts], lambda run: load_head_stats(run, layers))
    first = mixture.stats[0]
    if len(parts) == 1:
        return first
    return ExpertStats(first.manifest, mixture.sums_table([part.weight for part in parts]))


def blend_neurons(parts: Sequence[Part]) -> NeuronStats:
    """Statistics of neurons of a weighted mix of corpora; without maxima if there are several."""
    stats = [load_neuron_stats(part.run) for part in parts]
    if len(stats) == 1:
        return stats[0]  # a common factor changes no mean
    mixture = mixture_of([part.run for part in parts])
    factors = mixture.factors([part.weight for part in parts])
    sums = {
        name: sum(
            factor * run_stats.table[name].to_numpy(dtype=np.float64)
            for factor, run_stats in zip(factors, stats, strict=True)
        )
        for name in ("output_sq", "slope_sq", "num_tokens")
    }
    corpora = tuple(corpus for run_stats in stats for corpus in run_stats.manifest.corpora)
    manifest = replace(stats[0].manifest, corpora=corpora, made={})
    return NeuronStats(manifest, stats[0].table[list(NEURON_INDEX)].assign(**sums))
