"""ExpertStats and WeightStats: what a run measured, as tables with fixed columns; manifests."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.cache_keys import IdentityKey
from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.lazy import pd
from analysis.stats.columns import needed_columns
from analysis.stats.grid import Grid
from analysis.stats.manifest import RunManifest
from analysis.stats.samples import SamplePart


def _check_cover(table: pd.DataFrame, grid: Grid, what: str) -> None:
    if not table[["layer", "expert"]].reset_index(drop=True).equals(grid.index()):
        raise StatsError(f"The {what} do not cover every expert of every layer exactly once.")


@dataclass(frozen=True, eq=False)
class _RunTable(IdentityKey):
    """A table of a run, and the run's manifest."""

    manifest: RunManifest
    table: pd.DataFrame

    @property
    def layers(self) -> tuple[MoELayer, ...]:
        """The model's sparse layers."""
        return self.manifest.model.layers

    @property
    def grid(self) -> Grid:
        """Shape of the arrays made from the table."""
        return Grid(self.layers)


@dataclass(frozen=True, eq=False)
class ExpertStats(_RunTable):
    """Routed-token sums of a run.

    `table` has EXPERT_COLUMNS, sorted by layer and expert, and the columns of further groups
    (`analysis.stats.columns.GROUP_COLUMNS`); a part of a run lacks what is stored for all tokens
    only, and traffic all but the counts. `samples` are those of the group `dense`, one entry per
    run; empty if a run lacks them.
    """

    samples: tuple[SamplePart, ...] = ()

    def __post_init__(self) -> None:
        needed = needed_columns(self.manifest.kind)
        if missing := [column for column in needed if column not in self.table]:
            raise StatsError(f"The statistics lack the columns {', '.join(missing)}.")
        _check_cover(self.table, self.grid, "statistics")


@dataclass(frozen=True, eq=False)
class WeightStats(_RunTable):
    """Weight norms of a model; for `table` see `analysis.calibration.weights.measure_weights`."""

    def __post_init__(self) -> None:
        per_expert = self.table.drop_duplicates(["layer", "expert"])
        _check_cover(per_expert, self.grid, "weight statistics")

    def per_expert(self) -> pd.DataFrame:
        """Table `layer, expert, l1, l2_squared, numel`, summed over the projections."""
        columns = ["l1", "l2_squared", "numel"]
        return self.table.groupby(["layer", "expert"], as_index=False)[columns].sum()


@dataclass(frozen=True)
class NoStats:
    """For criteria that read no statistics: only which experts there are."""

    layers: tuple[MoELayer, ...]

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    @property
    def grid(self) -> Grid:
        """Shape of the arrays made from the table."""
        return Grid(self.layers)

    @property
    def table(self) -> pd.DataFrame:
        """Table `layer, expert`."""
        return self.grid.index()
