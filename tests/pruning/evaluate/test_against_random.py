"""A plan that loses more than Random: one verdict, over the same corpora, with Random's spread."""

import pytest

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from pruning.records.evaluation import EvaluationStore
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import LossIncrease, PlanLoss, plan_losses
from pruning.records.verdict import against_random, random_warnings


def loss(plan, criterion, change, way="", removed=0.5, **more):
    facts = PlanFacts(criterion=criterion, removed=removed, granularity="expert", **more)
    full = {"a": 2.0, "b": 1.0}
    return PlanLoss(change, plan, facts, way, ("a", "b"), full, {}, {}, 8, "2026-01-02T03:04:05")


# On a 1 and 3, on b 1 and 1: the draws' means are 1 and 2, of mean 1.5 and SD 0.7071.
DRAWS = (
    loss("draw 1", "random", {"a": 1.0, "b": 1.0}),
    loss("draw 2", "random:2", {"a": 3.0, "b": 1.0}),
)


def verdict(change, draws=DRAWS, **more):
    plan = loss("p", "reap", change, **more)
    return against_random(plan, plan.facts, [*draws, plan])


@pytest.mark.parametrize(
    ("change", "alarm", "comparison"),
    [
        ({"a": 2.0, "b": 2.5}, "worse than Random", "more than"),
        ({"a": 2.0, "b": 1.2}, "no better than Random", "indistinguishable from"),
        ({"a": 1.0, "b": 1.0}, "", "indistinguishable from"),
        ({"a": 0.5, "b": 0.5}, "", "less than"),
    ],
)
def test_the_mean_decides_and_the_spread_is_said(change, alarm, comparison):
    found = verdict(change)
    assert (found.alarm, found.comparison) == (alarm, comparison)
    assert bool(found.warning) == bool(alarm)
    assert ("within one SD of 0.71" in found.warning) == (alarm == "no better than Random")


def test_the_warning_has_both_losses():
    assert verdict({"a": 2.0, "b": 2.5}).warning == (
        "Worse than Random at this sparsity: the plan adds +2.25 to the loss, Random +1.50 (mean "
        "of 2 draws)."
    )
    repaired = verdict({"a": 2.0, "b": 2.5}, repair="r").warning
    assert "Random without repair +1.50" in repaired
    assert "(1 draw)" in verdict({"a": 2.0, "b": 2.5}, DRAWS[:1]).warning


def test_only_corpora_of_both_are_compared():
    # On b alone Random adds 1 and 1.
    found = verdict({"b": 1.2})
    assert (found.mean, found.chance.mean, found.chance.mean_spread) == (1.2, 1.0, 0.0)
    assert found.alarm == "worse than Random"
    assert verdict({"c": 9.0}) is None


def test_a_prediction_is_marked():
    facts = PlanFacts(criterion="reap", removed=0.5, granularity="expert")
    found = against_random(LossIncrease({"a": 4.0, "b": 4.0}), facts, DRAWS)
    assert found.warning.startswith("Predicted worse than Random at this sparsity")


def test_what_is_not_comparable_has_no_verdict():
    bad = {"a": 9.0, "b": 9.0}
    assert verdict(bad, way="float32") is None  # other samples or another dtype
    assert verdict(bad, removed=0.25) is None  # Random was measured at 50% alone
    assert verdict(bad, DRAWS[:0]) is None
    assert against_random(DRAWS[1], DRAWS[1].facts, DRAWS) is None  # a draw of Random itself


def test_evaluate_names_the_candidates_that_lose_more():
    store = EvaluationStore((SHIPPED_STATS,))
    records = store.records(load_model_index("demo").identity)
    losses = plan_losses(records)
    named = {}
    for record in records:
        made = (record.plan.criterion, len(record.plan.corpora), record.plan.schedule)
        if record.plan.sparsity == "50%" and not (record.plan.repair or record.plan.bits):
            named.setdefault(made, record)
    # REAP on the blend: a global ranking is no better than chance, one by layer is far better.
    across, alike = named["reap", 3, "global"], named["reap", 3, "uniform"]
    (line,) = random_warnings({"across.json": across, "alike.json": alike}, losses)
    assert line.startswith("warning: across.json: No better than Random at this sparsity: the plan")
