"""MoE Pathfinder: experts on the heaviest paths of each sample through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from analysis.criteria.base import Criterion, always, numbers
from analysis.criteria.trajectory import MOST_PATHS, follow_paths, path_order
from analysis.errors import CriterionError
from analysis.lazy import pd
from analysis.numbers.arrays import FloatArray
from analysis.stats.samples import SamplePart, SampleStats

DEFAULT_PATHS = 100  # per sample, as in the paper's Figure 2; its plans take 1 to 500
_COLUMNS = ("path_samples", "path_weight", "node_weight")


def _order(table: pd.DataFrame) -> FloatArray:
    """For each expert, the number of experts of the model ranked after it."""
    samples, path_weight, node_weight = numbers(table, *_COLUMNS)
    rank = path_order(samples, path_weight, node_weight)
    return (len(rank) - 1 - rank).astype(np.float64)


@cache
def pathfinder(count: int = DEFAULT_PATHS) -> Criterion:
    """MoE Pathfinder as a criterion: in how many samples an expert is on the heaviest paths.

    The score is that number; in a blend, samples count by their corpus' weight. The saliency is
    the place, from the last, in one order of all experts: more samples, then the heavier path, then
    the larger mean u, then the lower layer and expert. So a global schedule cuts or extends the
    paper's union of paths to a budget. `count` is the paper's m. docs/concepts/pathfinder.md
    """
    if not 1 <= count <= MOST_PATHS:
        raise CriterionError(
            f"{count} paths per sample cannot be followed; use 1 to {MOST_PATHS:,}."
        )

    def of_one_run(stats: SampleStats) -> pd.DataFrame:
        paths = follow_paths(stats, count).table(count)
        columns = (paths["num_samples"], paths["path_weight"].fillna(-np.inf), paths["node_weight"])
        table = paths[[]].assign(**dict(zip(_COLUMNS, columns, strict=True)))
        return table.assign(samples=stats.num_samples)

    def from_samples(parts: Sequence[SamplePart]) -> pd.DataFrame:
        """_COLUMNS of all parts: samples weighted by their factors, the best path, the mean u."""
        tables = [part.table(f"paths {count}", of_one_run) for part in parts]
        if len(tables) == 1:
            return tables[0][list(_COLUMNS)]
        factors = np.array([part.factor for part in parts])[:, None]
        samples, paths, nodes = np.stack([numbers(table, *_COLUMNS) for table in tables], axis=1)
        shares = factors * np.array([table["samples"].to_numpy() for table in tables])
        mixed = (factors * samples).sum(0), paths.max(0), (shares * nodes).sum(0) / shares.sum(0)
        return tables[0][[]].assign(**dict(zip(_COLUMNS, mixed, strict=True)))

    is_default = count == DEFAULT_PATHS
    return Criterion(
        name="pathfinder" if is_default else f"pathfinder:{count}",
        label="MoE Pathfinder" if is_default else f"MoE Pathfinder, m {count}",
        formula=r"\text{samples with } j \text{ on one of their } m \text{ heaviest paths}",
        reference="MoE Pathfinder, Eq. 1-12",
        source="routed",
        columns=always(*_COLUMNS),
        score=lambda table, gate: numbers(table, _COLUMNS[0])[0],
        from_samples=from_samples,
        order=_order,
    )


PATHFINDER = pathfinder(DEFAULT_PATHS)
