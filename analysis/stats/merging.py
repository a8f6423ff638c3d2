"""Merge runs by adding their sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from analysis.errors import StatsError
from analysis.files.naming import digest_of, now, run_name
from analysis.lazy import pd
from analysis.stats.columns import GROUP_COLUMNS, LARGEST, ordered
from analysis.stats.grid import Grid
from analysis.stats.manifest import (
    COUNTS_ALONE,
    GROUP_TABLES,
    NEURONS,
    SAMPLES,
    SHARDS,
    TRANSITIONS,
    Run,
    RunManifest,
    check_addable,
)
from analysis.stats.neurons import MAXIMA, expert_columns, neuron_table
from analysis.stats.reading import load_expert_stats, read_table, read_vectors
from analysis.stats.samples import TRANSITION_COLUMNS
from analysis.stats.shards import add_shards
from analysis.stats.writing import save_counts, save_expert_stats

# Index columns; all others add up, except maxima.
_INDEX = frozenset(("layer", "expert", "shard", "other", "neuron"))
_MAXIMA = frozenset((LARGEST, *MAXIMA))
# Norms and products of sums do not add up; they are recomputed from the sums.
_NOT_ADDED = frozenset(("vector_sum_sq", *GROUP_COLUMNS["gradient"]))


def merge_runs(runs: Sequence[Run], parent: Path) -> Run:
    """A run with the sums of several, as if their corpora had been one.

    It has the statistic groups that all of them have. Token shard s of the result is shard s of
    each, so a part of the merge is the merge of the parts.
    """
    if len(runs) < 2:
        raise StatsError("A merge needs at least two calibration runs.")
    check_addable(runs)
    _check_one_kind(runs)
    merged = _merged_manifest([run.manifest for run in runs])
    total, more = _merged_tables(runs, Grid(merged.model.layers))
    if merged.kind == COUNTS_ALONE:
        return save_counts(parent, merged, total["num_tokens"].to_numpy())
    vectors = np.sum([read_vectors(run) for run in runs], axis=0)
    return save_expert_stats(parent, merged, total, vectors, more)


def _merged_manifest(manifests: Sequence[RunManifest]) -> RunManifest:
    """The manifest of a merge, which names the runs and the groups that one of them lacks."""
    first = manifests[0]
    corpora = tuple(corpus for manifest in manifests for corpus in manifest.corpora)
    names = sorted(corpus.name for corpus in corpora)
    digest = digest_of({"merged": sorted(manifest.digest for manifest in manifests)})
    shared = set.intersection(*(set(manifest.groups) for manifest in manifests))
    left_out = set().union(*(manifest.groups for manifest in manifests)) - shared
    facts: dict[str, object] = {
        "merged_from": [manifest.run_id for manifest in manifests],
        "created_at": now(),
    }
    if left_out:
        facts["groups_left_out"] = sorted(left_out)
    return RunManifest(
        kind=first.kind,
        run_id=run_name(first.model.name, *names, digest=digest),
        digest=digest,
        model=first.model,
        corpora=corpora,
        settings=first.settings,
        made=facts,
        groups=ordered(sorted(shared)),
    )


def _merged_tables(runs: Sequence[Run], grid: Grid) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Sums by expert, and the tables of groups by name, of those that all runs have."""
    tables = {
        name: [neuron_table(run) if name == NEURONS else read_table(run, name) for run in runs]
        for name in GROUP_TABLES
        if all(name in run.manifest.files for run in runs)
    }
    samples, transitions = tables.pop(SAMPLES, None), tables.pop(TRANSITIONS, None)
    more = {name: _sum_tables(table) for name, table in tables.items()}
    # Totals are always the sum of the shards, for equal rounding.
    total = _sum_tables([load_expert_stats(run).table for run in runs])
    if SHARDS in more:
        largest = {LARGEST: total[LARGEST]} if LARGEST in total else {}
        total = add_shards(more[SHARDS]).assign(**largest)
    if NEURONS in more:
        total = total.join(expert_columns(more[NEURONS], grid))
    if samples:  # of one run after the other
        firsts = np.cumsum([0, *(table["sample"].max() + 1 for table in samples)])[:-1]
        numbered = zip(samples, firsts, strict=True)
        more[SAMPLES] = pd.concat(
            [table.assign(sample=table["sample"] + first) for table, first in numbered],
            ignore_index=True,
        )
    if transitions:
        pairs = pd.concat(transitions, ignore_index=True).groupby(list(TRANSITION_COLUMNS[:-1]))
        more[TRANSITIONS] = pairs["num_tokens"].sum().reset_index().astype("int64")
    return total, more


def _check_one_kind(runs: Sequence[Run]) -> None:
    if len({run.manifest.kind for run in runs}) > 1:
        raise StatsError(
            "Traffic has counts alone, so it merges with traffic; blend it with calibrations "
            "(--calibrated-on) where frequency ranks."
        )


def _sum_tables(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables with the same rows, added up; columns that one lacks are left out."""
    shared = [name for name in tables[0].columns if all(name in table for table in tables)]
    sums = {
        name: reduce(
            np.maximum if name in _MAXIMA else np.add, (table[name].to_numpy() for table in tables)
        )
        for name in shared
        if name not in _INDEX | _NOT_ADDED
    }
    return tables[0][[name for name in shared if name in _INDEX]].assign(**sums)
