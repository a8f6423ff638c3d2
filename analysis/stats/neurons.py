"""NeuronStats: what the group `gradient` measured of every neuron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.grid import Grid
from analysis.stats.manifest import NEURONS, Run, RunManifest
from analysis.stats.reading import load_expert_stats, read_table

NEURON_INDEX = ("layer", "expert", "neuron")
NEURON_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(NEURON_INDEX, "int64"),
    **dict.fromkeys(("output_sq", "slope_sq", "output_max"), "float64"),
}
MAXIMA = ("output_max",)  # all other columns add up over tokens


@dataclass(frozen=True, eq=False)
class NeuronStats:
    """Sums of every neuron over the tokens that were routed to its expert.

    `table` has NEURON_COLUMNS, sorted by NEURON_INDEX, and the expert's `num_tokens`. A blend lacks
    `output_max`, and its `num_tokens` are fractional.
    """

    manifest: RunManifest
    table: pd.DataFrame

    def __post_init__(self) -> None:
        needed = {"num_tokens", *NEURON_COLUMNS} - set(MAXIMA)
        if missing := sorted(needed - set(self.table)):
            raise StatsError(f"The statistics of neurons lack the columns {', '.join(missing)}.")


def neuron_table(run: Run) -> pd.DataFrame:
    """NEURON_COLUMNS of a run that has them."""
    table = read_table(run, NEURONS, NEURON_COLUMNS)
    owners = table[["layer", "expert"]].drop_duplicates(ignore_index=True)
    grid = Grid(run.manifest.model.layers).index()
    # Widths may differ, and an expert that was pruned to nothing has no rows.
    in_grid = owners.merge(grid, on=["layer", "expert"])
    numbers = table.groupby(["layer", "expert"], sort=False).cumcount()
    in_order = owners.equals(owners.sort_values(["layer", "expert"], ignore_index=True))
    if not (len(in_grid) == len(owners) > 0 and in_order and (numbers == table["neuron"]).all()):
        raise StatsError(
            f"{NEURONS} of the run {run.manifest.run_id} does not hold each neuron once, in order; "
            "remove the run and rerun the calibration."
        )
    return table


def load_neuron_stats(run: Run) -> NeuronStats:
    """A run's statistics of neurons."""
    if NEURONS not in run.manifest.files:
        raise StatsError(
            f"The run {run.manifest.run_id} has no statistics of neurons; calibrate with --group "
            "gradient."
        )
    table = neuron_table(run)
    tokens = load_expert_stats(run).table[["layer", "expert", "num_tokens"]]
    return NeuronStats(run.manifest, table.merge(tokens, on=["layer", "expert"], how="left"))


def expert_columns(table: pd.DataFrame, grid: Grid) -> pd.DataFrame:
    """Table `neuron_product, neuron_norm_sum, neuron_peak_sum`, one row per expert of the grid.

    What criteria of whole experts need of NEURON_COLUMNS: sum_c output_sq * slope_sq, sum_c
    sqrt(output_sq) and sum_c output_max; 0 for an expert without neurons.
    """
    terms = {
        "neuron_product": table["output_sq"] * table["slope_sq"],
        "neuron_norm_sum": np.sqrt(table["output_sq"]),
        "neuron_peak_sum": table["output_max"],
    }
    return pd.DataFrame({name: sum_by_expert(term, table, grid) for name, term in terms.items()})


def sum_by_expert(values: ArrayLike, table: pd.DataFrame, grid: Grid) -> FloatArray:
    """The sum of `values`, one per row of `table`, for each expert of the grid."""
    weights = np.asarray(values, dtype=np.float64)
    experts = pd.MultiIndex.from_frame(grid.index())
    owners = experts.get_indexer(pd.MultiIndex.from_frame(table[["layer", "expert"]]))
    return np.bincount(owners, weights, grid.num_experts).astype(np.float64)
