"""Plans from trajectories: the union as it is, a budget hit exactly, routers that keep working."""

from types import SimpleNamespace

import numpy as np
import pytest

from analysis.criteria.pathfinder import pathfinder
from analysis.criteria.trajectory import follow_paths
from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from analysis.ranking.experts import fold_ranking, rank_experts
from analysis.stats.columns import MOMENT_COLUMNS
from analysis.stats.grid import Grid
from analysis.stats.samples import SamplePart, SampleStats
from analysis.stats.tables import ExpertStats
from builders import tiny_checkpoint
from families.built import Built
from families.configs import EVERY
from families.tiny_models import tiny_model
from pruning.plan.budget import count_budget, sparsity_budget
from pruning.plan.plan import fit_plan, model_ref
from pruning.plan.selection import select_experts
from pruning.plan.units import expert_units
from pruning.schedules import Evidence, allocate
from pruning.schedules.trajectory_plan import Cut, budget_plan, path_ranking, union_plan


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    tiny_checkpoint(path, "olmoe")  # layers 0, 1, 2 of 7 experts, top-2
    return load_model_index(str(path))


def random_stats(model, samples=4, seed=0):
    rng = np.random.default_rng(seed)
    shape = (samples, model.num_experts)
    tokens = rng.integers(3, 9, samples)
    sums = (rng.uniform(low, 3.0, shape) * tokens[:, None] for low in (0.1, 0.01, 0.0))
    return SampleStats(Grid(model.layers), tokens, *sums)


@pytest.mark.parametrize("count", [1, 5, 60])
def test_the_union_is_kept_and_layers_are_filled_up(model, count):
    stats = random_stats(model)
    plan = fit_plan(union_plan(model, stats, count).plan, model)
    table = follow_paths(stats, count).table(count)
    for layer, rows in table.groupby("layer"):
        on_paths = set(rows.loc[rows["num_samples"] > 0, "expert"])
        kept = set(plan.kept[layer])
        assert kept >= on_paths
        # No more than the paths ask for, but for what the router needs.
        assert len(kept) == max(len(on_paths), 2)
    assert plan.provenance.schedule_parameters == {"paths": count, "weights": "both"}


def test_a_layer_with_one_expert_on_paths_keeps_the_next_in_the_order(model):
    stats = random_stats(model, samples=1)
    plan = union_plan(model, stats, 1).plan
    ranking = path_ranking(follow_paths(stats, 1), 1)
    # So many experts come after it.
    assert sorted(ranking["saliency"]) == list(range(21))
    for layer, rows in ranking.groupby("layer"):
        assert set(plan.kept[layer]) == set(rows.sort_values("rank")["expert"].head(2))


@pytest.mark.parametrize("removed", range(16))  # 21 experts, of which 6 must stay
@pytest.mark.parametrize("schedule", ["global", "late"])
def test_every_budget_is_hit_exactly(model, removed, schedule):
    budget = count_budget(expert_units(model.layers), removed)
    made = budget_plan(model, random_stats(model), budget, Cut(schedule))
    kept = fit_plan(made.plan, model).kept
    assert sum(map(len, kept.values())) == 21 - removed
    assert min(map(len, kept.values())) >= 2
    assert made.union >= 21 - removed
    assert follow_paths(random_stats(model), made.count).union_size(made.count) == made.union


def test_the_order_decides_who_goes(model):
    """Removed experts come last in the order, but for those that the floors hold back."""
    stats = random_stats(model)
    budget = sparsity_budget(expert_units(model.layers), "30%")
    made = budget_plan(model, stats, budget)
    plan, count = made.plan, made.count
    table = follow_paths(stats, count).table(count).set_index(["layer", "expert"])
    gone = [place for place in table.index if place[1] not in plan.kept.get(place[0], range(7))]
    # Nobody is at a floor: 6 of 21 go, and each layer keeps more than 2.
    assert min(map(len, plan.kept.values())) > 2
    assert set(gone) == set(table["rank"].nlargest(6).index)


@pytest.mark.parametrize("percent", ["25%", "50%", "70%"])
def test_the_criterion_under_a_global_schedule_is_the_cut_union(model, percent):
    """`plan --criterion pathfinder:M --schedule global` and `paths --sparsity`, which finds M."""
    samples = random_stats(model, samples=6)
    units = expert_units(model.layers)
    budget = sparsity_budget(units, percent)
    solved = budget_plan(model, samples, budget)
    given = budget_plan(model, samples, budget, Cut(count=solved.count))
    # Statistics of a run whose group `dense` measured these samples.
    manifest = SimpleNamespace(kind="routed", model=SimpleNamespace(layers=model.layers))
    table = Grid(model.layers).index().assign(**dict.fromkeys(MOMENT_COLUMNS, 1.0))
    stats = ExpertStats(manifest, table, (SamplePart(lambda: samples),))
    ranking = rank_experts(pathfinder(solved.count), stats, "applied")
    evidence = Evidence(fold_ranking(ranking, model.layers))
    allocation = allocate("global", units, budget, evidence)
    plan = select_experts(ranking, allocation, model=model_ref(model))
    assert plan.kept == solved.plan.kept == given.plan.kept
    assert len(model.layers) * 7 - sum(map(len, plan.kept.values())) == budget.total


def test_schedules_that_need_more_are_refused(model):
    with pytest.raises(PlanError, match="frequency needs more than the order of the paths; choose"):
        Cut("frequency")


@pytest.mark.parametrize("case", EVERY)
def test_every_router_keeps_working(case, tmp_path):
    """Groups keep equally many, floors hold: `fit_plan` refuses anything else."""
    tiny_model(case).save_pretrained(tmp_path)
    described = Built(case, {"experts": tmp_path}).described()
    stats = random_stats(described)
    for count in (1, 3, 1000):
        fit_plan(union_plan(described, stats, count).plan, described)
