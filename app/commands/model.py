"""The command `weights`: weight statistics of a model."""

from analysis.criteria.weight_based import is_zero_expert
from analysis.stats.store import load_weight_stats
from app.commands import options
from app.console import follow, out
from app.tasks.calibration import weights_run
from pruning.requests.base import WeightsRequest, validated


def weights(
    model: options.Model,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Measure the expert weights (AIMER, Magnitude, Hoyer), streamed from disk, and cache them."""
    request = validated(
        WeightsRequest, {"model": model, "revision": revision, "stats_dir": stats_dir}
    )
    run = follow(weights_run(request))
    out.print(f"{run.manifest.run_id}: {run.manifest.made['seconds']} s", markup=False)
    empty = int(is_zero_expert(load_weight_stats(run).per_expert()).sum())
    if empty:
        out.print(f"{empty} experts are all zero: AIMER and Magnitude prune them first")
    out.print(str(run.path), markup=False)
