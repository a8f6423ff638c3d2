"""Plans from trajectories: the union of the heaviest paths, or a budget cut from their order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.criteria.trajectory import PAPER, Trajectories, Weighing, follow_paths, follow_until
from analysis.errors import PlanError
from analysis.files.shipped import tool_version
from analysis.lazy import pd
from analysis.ranking.experts import RANKING_COLUMNS, fold_ranking, keeping_order, rank_of
from pruning.plan.plan import Provenance, PruningPlan, model_ref
from pruning.plan.selection import allocation_of, select_experts
from pruning.plan.units import expert_units
from pruning.schedules import SCHEDULES, Evidence, allocate, get_schedule

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.stats.samples import SampleStats
    from pruning.plan.budget import Budget

PATHFINDER = "pathfinder"
PATHS = "paths"  # the schedule of a plan that has no budget


@dataclass(frozen=True)
class PathPlan:
    """A plan made from paths."""

    plan: PruningPlan
    count: int  # paths of each sample
    union: int  # experts on these paths


def path_ranking(trajectories: Trajectories, count: int) -> pd.DataFrame:
    """The order of `Trajectories.table` as a ranking with RANKING_COLUMNS.

    The score is the number of samples with the expert on a path; the saliency, how many experts of
    the model come after it.
    """
    table, grid = trajectories.table(count), trajectories.grid
    saliency = (len(table) - 1 - table["rank"]).astype("float64")
    ranks = rank_of(keeping_order(grid.fold(saliency), grid))[grid.present]
    return table[["layer", "expert"]].assign(
        score=table["num_samples"].astype("float64"),
        saliency=saliency,
        rank=ranks,
        num_tokens=pd.Series(pd.NA, index=table.index, dtype="Int64"),
    )[list(RANKING_COLUMNS)]


def union_plan(
    model: MoEModel, stats: SampleStats, count: int, weighing: Weighing = PAPER
) -> PathPlan:
    """The paper's plan: the experts on the first `count` paths of any sample, its m.

    A layer with fewer of them than its router needs also keeps the next in the order.
    """
    paths = follow_paths(stats, count, weighing)
    ranking = path_ranking(paths, count)
    kept = ranking.groupby("layer")["score"].agg(lambda scores: int((scores > 0).sum()))
    units = expert_units(model.layers)
    # The smallest counts that the routers allow and that hold the experts on paths.
    rows = zip(units.sizes, units.most, kept.tolist(), strict=True)
    most = [min(most, size - needed) for size, most, needed in rows]
    allocation = allocation_of(model.layers, units.rounded_down(most))
    provenance = _provenance(PATHS, count, weighing)
    plan = select_experts(ranking, allocation, model=model_ref(model), provenance=provenance)
    return PathPlan(plan, count, paths.union_size(count))


def _provenance(schedule: str, count: int, weighing: Weighing) -> Provenance:
    measured = {"transitions": weighing.steps} if weighing.steps != PAPER.steps else {}
    return Provenance(
        criterion=PATHFINDER,
        schedule=schedule,
        tool_version=tool_version(),
        schedule_parameters={"paths": count, "weights": weighing.parts, **measured},
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """How the order of the experts on paths becomes a plan of a budget."""

    schedule: str = "global"  # spreads the budget by the order alone
    # Paths of each sample; None for as many as it takes to reach what stays, at most MOST_PATHS.
    count: int | None = None

    def __post_init__(self) -> None:
        if not get_schedule(self.schedule).needs <= {"saliency"}:
            fit = [name for name, schedule in SCHEDULES.items() if schedule.needs <= {"saliency"}]
            raise PlanError(
                f"The schedule {self.schedule} needs more than the order of the paths; choose from "
                f"{', '.join(fit)}."
            )


GLOBAL_CUT = Cut()


def budget_plan(
    model: MoEModel,
    stats: SampleStats,
    budget: Budget,
    cut: Cut = GLOBAL_CUT,
    weighing: Weighing = PAPER,
) -> PathPlan:
    """The plan that removes exactly the budget, by the order of the experts on paths."""
    units = expert_units(model.layers)
    num_kept = max(model.num_experts - budget.total, 1)
    if cut.count is None:
        paths = follow_until(stats, num_kept, weighing)
        count = paths.smallest_count(num_kept)
    else:
        paths, count = follow_paths(stats, cut.count, weighing), cut.count
    ranking = path_ranking(paths, count)
    evidence = Evidence(fold_ranking(ranking, model.layers))
    plan = select_experts(
        ranking,
        allocate(cut.schedule, units, budget, evidence),
        model=model_ref(model),
        provenance=replace(
            _provenance(cut.schedule, count, weighing),
            sparsity=budget.text if budget.kind == "sparsity" else "",
            budget=budget.to_dict(),
        ),
    )
    return PathPlan(plan, count, paths.union_size(count))
