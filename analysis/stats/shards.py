"""Token shards: the sums of a run in equal parts, to see what fewer tokens would have given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.corpora.sequences import TOKEN_SHARDS
from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.stats.columns import EXPERT_COLUMNS, MOMENT_COLUMNS
from analysis.stats.grid import Grid
from analysis.stats.manifest import COUNTS_ALONE, SHARDS, Run
from analysis.stats.reading import load_expert_stats, read_table
from analysis.stats.tables import ExpertStats

SHARD_INDEX = ("layer", "expert", "shard")
TOKEN_PARTS = (1, 2, 4, TOKEN_SHARDS)  # shown: an eighth, a quarter, a half, all


def add_shards(table: pd.DataFrame, shards: range = range(TOKEN_SHARDS)) -> pd.DataFrame:
    """Sums over neighbouring shards, one row per (layer, expert), of rows by SHARD_INDEX."""
    index = table.loc[table["shard"] == 0, ["layer", "expert"]].reset_index(drop=True)
    # Accumulated in order, so the result does not depend on numpy's pairwise summation.
    sums = {
        name: np.add.accumulate(
            table[name].to_numpy().reshape(-1, TOKEN_SHARDS)[:, shards.start : shards.stop], axis=1
        )
        for name in table.columns
        if name not in SHARD_INDEX
    }
    return index.assign(**{name: values[:, -1] for name, values in sums.items()})


def check_has_parts(run: Run) -> None:
    """Refuse traffic, whose tokens are not kept in parts."""
    if run.manifest.kind == COUNTS_ALONE:
        raise StatsError(
            f"{run.manifest.corpus} is traffic, which has no parts by tokens; name a calibrated "
            "corpus with --calibrated-on."
        )


def stats_at(run: Run, parts: int) -> ExpertStats:
    """Statistics of the first `parts` eighths of each corpus; without vector sums, unless all."""
    if not 1 <= parts <= TOKEN_SHARDS:
        raise StatsError(f"{parts} of {TOKEN_SHARDS} parts of the tokens: use 1 to 8.")
    return stats_of(run, range(parts))


def stats_of(run: Run, shards: range) -> ExpertStats:
    """Statistics of neighbouring eighths of each corpus; without vector sums, unless all."""
    if len(shards) == TOKEN_SHARDS:
        return load_expert_stats(run)
    check_has_parts(run)
    columns = [*SHARD_INDEX, *MOMENT_COLUMNS]
    table = read_table(run, SHARDS, {name: EXPERT_COLUMNS.get(name, "int64") for name in columns})
    index = Grid(run.manifest.model.layers).index().to_numpy()
    expected = np.column_stack(
        [np.repeat(index, TOKEN_SHARDS, axis=0), np.tile(np.arange(TOKEN_SHARDS), len(index))]
    )
    if not np.array_equal(table[list(SHARD_INDEX)].to_numpy(), expected):
        raise StatsError(
            f"{SHARDS} of the run {run.manifest.run_id} does not hold each expert's parts once, in "
            "order; remove the run and rerun the calibration."
        )
    # The corpora as if only these shards had been fed: token i of N is in shard i * 8 // N.
    counted = [
        -(-shards.stop * corpus.num_counted // TOKEN_SHARDS)
        - -(-shards.start * corpus.num_counted // TOKEN_SHARDS)
        for corpus in run.manifest.corpora
    ]
    part = f"{len(shards)}of{TOKEN_SHARDS}" + (f"from{shards.start}" if shards.start else "")
    manifest = replace(
        run.manifest,
        run_id=f"{run.manifest.run_id}@{part}",
        corpora=tuple(
            replace(corpus, num_tokens=count, num_counted=count)
            for corpus, count in zip(run.manifest.corpora, counted, strict=True)
        ),
        made={**run.manifest.made, "token_shards": list(shards)},
    )
    return ExpertStats(manifest, add_shards(table, shards))
