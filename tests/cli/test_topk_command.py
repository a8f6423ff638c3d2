"""`moeprune topk`, and plans that select a mean of experts per token by what it measured."""

from itertools import product

import pytest

from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from pruning.measures.points import MEASURES
from pruning.plan.plan import keep_all
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import size_report
from pruning.records.sensitivity import SensitivityStore

ON = ("--corpus", "demo-math", "--samples", "2", "--dtype", "float32")


@pytest.fixture
def demo():
    return load_model_index("demo")


def test_a_mean_goes_to_the_layers_where_fewer_cost_least(works, tmp_path, demo):
    stats = ("--stats-dir", tmp_path / "stats")
    said = works("topk", "demo", *ON, *stats)
    assert "1 less" in said and "24.6 k" in said  # 3 matrices of 128 x 64
    assert "next: moeprune plan demo --stats-dir" in said and "--mean-top-k 3" in said
    # The sum of the costs that the points of the record have, over all allocations of the mean.
    store = SensitivityStore(stats_store(tmp_path / "stats").directories)
    records = store.records(demo.identity)
    (record,) = (one for one in records if one.order["criterion"] == "top-k")
    points, samples = store.points(record), [sample for sample, _ in record.samples]
    place = MEASURES.index("kl")
    costs = [[0.0] for _ in demo.layers]
    for row, own in enumerate(costs):
        for less in (1, 2, 3):
            removed = tuple(less if at == row else 0 for at in range(6))
            own.append(float(points.values(removed, samples)[:, place].mean()))
    wanted = min(
        (less for less in product(range(4), repeat=6) if sum(less) == 24 - 15),  # floor(2.6 x 6)
        key=lambda less: (sum(own[n] for own, n in zip(costs, less, strict=True)), less),
    )
    options = ("--mean-top-k", "2.6", "--cost", "kl", *stats)
    said = works("plan", "demo", *options, "-o", tmp_path / "fewer.json")
    plan = load_plan(tmp_path / "fewer.json", model=demo)
    assert plan.top_k == {layer: 4 - less for layer, less in enumerate(wanted)}
    assert "top-2.5 by layer" in said and "moeprune export" not in said
    assert plan.kept == keep_all(demo).kept
    saved = size_report(demo, keep_all(demo)).active_after - size_report(demo, plan).active_after
    assert saved == 9 * 3 * 128 * 64
    made = plan.provenance
    assert made.spec["budget"] == {"mean_top_k": "2.6"}
    assert made.schedule_parameters["top_k"]["sensitivity"] == [record.record_id]
    # With fewer experts as well, and evaluated; it is one of the points of no curve.
    half = ("--criterion", "aimer", "--sparsity", "50%")
    works("plan", "demo", *half, *options, "-o", tmp_path / "half.json")
    both = load_plan(tmp_path / "half.json", model=demo)
    assert both.top_k == plan.top_k and sum(map(len, both.kept.values())) == 96
    said = works(
        "evaluate", "demo", "--plan", tmp_path / "half.json", *ON, *stats, "-o", tmp_path / "r"
    )
    assert "half.json, top-2.5 by layer" in said and "moeprune export" not in said
    assert f'"top_k": "{plan.per_token}"' in (tmp_path / "r").read_text()
    # What was asked for is measured as a whole and refined, and then taken.
    said = works("topk", "demo", *ON, *stats, "--mean-top-k", "2.5", "--refine", "1")
    assert "--mean-top-k 2.5, first plan: predicted ESAP" in said
    again = works("plan", "demo", "--mean-top-k", "2.5", *stats, "-o", tmp_path / "again.json")
    assert "Measured ESAP" in again
