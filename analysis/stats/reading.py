"""Reads the tables of a run, with checks of what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from analysis.cache_keys import most_results
from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.files.content import file_sha256, known_sha256
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats import stored_tables
from analysis.stats.columns import (
    EXPERT_COLUMNS,
    GROUP_COLUMNS,
    LARGEST,
    MOMENT_COLUMNS,
    OPTIONAL_COLUMNS,
    WEIGHT_COLUMNS,
    needed_columns,
)
from analysis.stats.grid import Grid
from analysis.stats.manifest import EXPERTS, HEADS, SAMPLES, TRANSITIONS, VECTORS, WEIGHTS, Run
from analysis.stats.samples import (
    SAMPLE_COLUMNS,
    TRANSITION_COLUMNS,
    SamplePart,
    SampleStats,
    sample_stats,
    transitions_of,
)
from analysis.stats.tables import ExpertStats, WeightStats


def read_vectors(run: Run) -> FloatArray:
    """(experts of all layers, hidden size) float64: sum_t f, in (layer, expert) order."""
    rows = sum(layer.num_experts for layer in run.manifest.model.layers)
    with _reading(run, VECTORS) as path:
        return stored_tables.read_vector_column(path, rows)


def _damaged(run: Run, name: str, reason: object) -> StatsError:
    run_id = run.manifest.run_id
    return StatsError(
        f"{name} of the run {run_id} is damaged or missing ({' '.join(str(reason).split())}); "
        f"remove the run with `moeprune runs remove {run_id}` and make it again."
    )


@contextmanager
def _reading(run: Run, name: str) -> Iterator[Path]:
    """The path of a data file as the run wrote it; what is wrong with it names the run."""
    path = run.path / name
    try:
        if known_sha256(path) != run.manifest.files.get(name):
            raise ValueError("it has changed since it was written")  # noqa: TRY301
        yield path
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise _damaged(run, name, reason) from error


def read_table(
    run: Run,
    name: str,
    needed: Mapping[str, str] = MappingProxyType({}),
    optional: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """One of a run's tables, such as SHARDS; `manifest.files` lists them.

    `needed` and `optional` give columns with their dtype; "number" is any numeric one.
    """
    with _reading(run, name) as path:
        table: pd.DataFrame = stored_tables.read_parquet(path, needed, optional).to_pandas()
    return table


def _check_possible(run: Run, name: str, table: pd.DataFrame) -> None:
    """Refuse sums that no calibration gives: negative ones, or more tokens than were counted."""
    for column in (*MOMENT_COLUMNS, "vector_sum_sq", LARGEST):
        if column in table and (table[column] < 0).any():
            raise _damaged(run, name, f"{column} holds a negative number")
    counted = sum(corpus.num_counted for corpus in run.manifest.corpora)
    if len(most := table["num_tokens"][table["num_tokens"] > counted]):
        most_said = f"num_tokens says {most.max():,} for an expert"
        raise _damaged(run, name, f"{most_said}, but {counted:,} tokens were counted")
    if "g0_f1" not in table:
        return  # counts alone
    # By Cauchy and Schwarz: (sum of n norms)^2 <= n * (sum of their squares).
    most_sums = table["num_tokens"] * table["g0_f2"] * (1 + 1e-6)
    if (table["g0_f1"] ** 2 > most_sums).any():
        raise _damaged(run, name, "g0_f1 holds a sum that its squares in g0_f2 rule out")
    # No value of a vector is larger than its norm, which was rounded to float32.
    if LARGEST in table and (table[LARGEST] ** 2 > table["g0_f2"] * (1 + 1e-4)).any():
        raise _damaged(run, name, f"{LARGEST} holds a value that the squares in g0_f2 rule out")


@most_results(32)
def load_expert_stats(run: Run) -> ExpertStats:
    """Routed statistics of a run; of traffic the counts."""
    needed = {name: EXPERT_COLUMNS[name] for name in needed_columns(run.manifest.kind)}
    of_groups = (name for columns in GROUP_COLUMNS.values() for name in columns)
    optional = dict.fromkeys((*OPTIONAL_COLUMNS, *of_groups), "number")
    table = read_table(run, EXPERTS, needed, optional)
    _check_possible(run, EXPERTS, table)
    has_samples = SAMPLES in run.manifest.files
    samples = (SamplePart(lambda: load_sample_stats(run)),) if has_samples else ()
    return ExpertStats(run.manifest, table, samples)


def load_head_stats(run: Run, layers: tuple[MoELayer, ...]) -> ExpertStats:
    """Statistics of the experts of prediction heads; `layers` are theirs in the model."""
    if HEADS not in run.manifest.files:
        raise StatsError(
            f"The run {run.manifest.run_id} has no statistics of prediction heads; calibrate with "
            "--group heads."
        )
    needed = {name: kind for name, kind in EXPERT_COLUMNS.items() if name not in OPTIONAL_COLUMNS}
    table = read_table(run, HEADS, needed, dict.fromkeys(OPTIONAL_COLUMNS, "number"))
    _check_possible(run, HEADS, table)
    model = replace(run.manifest.model, layers=layers)
    return ExpertStats(replace(run.manifest, model=model), table)


def load_sample_stats(run: Run) -> SampleStats:
    """The dense statistics of a run."""
    if SAMPLES not in run.manifest.files:
        raise StatsError(
            f"The run {run.manifest.run_id} has no statistics of samples; calibrate with --group "
            "dense."
        )
    grid = Grid(run.manifest.model.layers)
    sums = {name: "float64" if name.endswith("_sum") else "int64" for name in SAMPLE_COLUMNS}
    stats = sample_stats(read_table(run, SAMPLES, sums), grid)
    counts = read_table(run, TRANSITIONS, dict.fromkeys(TRANSITION_COLUMNS, "int64"))
    return replace(stats, transitions=transitions_of(counts, grid))


@most_results(16)
def load_weight_stats(run: Run) -> WeightStats:
    """Weight statistics of a run."""
    table = read_table(run, WEIGHTS, WEIGHT_COLUMNS)
    for column in ("l1", "l2_squared", "numel"):
        if (table[column] < 0).any():
            raise _damaged(run, WEIGHTS, f"{column} holds a negative number")
    return WeightStats(run.manifest, table)


def verify_run(run: Run) -> None:
    """Check every data file of a run against its manifest."""
    for name, expected in run.manifest.files.items():
        path = run.path / name
        if not path.is_file():
            raise StatsError(f"{run.manifest.run_id}: {name} is missing.")
        if file_sha256(path) != expected:
            raise StatsError(f"{run.manifest.run_id}: {name} has changed since it was written.")
    (load_weight_stats if run.manifest.kind == "weights" else load_expert_stats)(run)
