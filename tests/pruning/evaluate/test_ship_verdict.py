"""Verdicts on plans: by Random's losses, and whether one may be shipped; each reason by hand."""

from dataclasses import replace

import pytest

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from pruning.plan.plan import PruningPlan, keep_all, with_top_k
from pruning.plan.plan_file import plan_from_dict
from pruning.records.evaluation import EvaluationStore
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import LossIncrease, PlanLoss, plan_losses
from pruning.records.verdict import Evidence, Light, against_random, random_warnings, ship_verdict

GREEN, AMBER, RED = Light


@pytest.fixture(scope="module")
def model():
    return load_model_index("demo")


@pytest.fixture(scope="module")
def plan(model) -> PruningPlan:
    """The first half of every layer's experts."""
    kept = {str(layer): list(range(16)) for layer in range(6)}
    return plan_from_dict({**keep_all(model).to_dict(), "kept": kept})


def loss(plan, change, way="", **facts):
    known = PlanFacts(**{"removed": 0.5, "granularity": "expert", "criterion": "reap"} | facts)
    full = {"a": 2.0, "b": 1.0}
    return PlanLoss(change, plan, known, way, ("a", "b"), full, {}, {}, 8, "2026-01-02T03:04:05")


# On a 1 and 3, on b 1 and 1: the draws' means are 1 and 2, of mean 1.5 and SD 0.7071.
RANDOM = (
    loss("d1", {"a": 1.0, "b": 1.0}, criterion="random"),
    loss("d2", {"a": 3.0, "b": 1.0}, criterion="random:2"),
)
FOUR_BITS = loss("o", {"a": 0.1, "b": 0.1}, removed=0.0, bits="4", bytes_after=500)
READ = ("transformers", "vLLM")


def judged(plan, model, *losses, **changed):
    evidence = Evidence(1000, 600, losses, READ, (), is_benchmarked=True)
    return ship_verdict(plan, model, replace(evidence, **changed))


def lights(verdict):
    return {reason.about: reason.light for reason in verdict.reasons}


def test_a_plan_of_which_all_is_known_and_good_is_green(plan, model):
    rival = loss("o", {"a": 0.1, "b": 0.1}, removed=0.0, bits="4", bytes_after=700)
    own = loss(plan.digest, {"a": 0.2, "b": 0.4})
    verdict = judged(plan, model, own, *RANDOM, rival)
    assert (verdict.light, verdict.in_one_line) == (GREEN, "Ready to ship")
    assert verdict.lines == (
        "green, Size: 600 B instead of 1000 B, 40% smaller",
        "green, Quality: loss +0.30 mean, +0.40 worst (b); Random adds +1.50",
        "green, Engines: transformers, vLLM load it without remote code",
        "green, Fewer bits: not beaten by the original in 4 bits: 700 B at +0.100",
        "green, Benchmarks: benchmarked",
    )


@pytest.mark.parametrize(
    ("changed", "about", "light", "short"),
    [
        # As large as the original saves nothing, one byte less does.
        ({"after": 1000}, "Size", RED, "saves no bytes"),
        ({"after": 999}, "Size", GREEN, ""),
        ({"is_benchmarked": False}, "Benchmarks", AMBER, "not benchmarked"),
        ({"plain": (), "special": ("load_pruned",)}, "Engines", AMBER, "only load_pruned"),
        ({"plain": ()}, "Engines", RED, "nothing loads it"),
    ],
)
def test_what_an_export_is(plan, model, changed, about, light, short):
    own = loss(plan.digest, {"a": 0.2, "b": 0.4})
    verdict = judged(plan, model, own, *RANDOM, **changed)
    (reason,) = (reason for reason in verdict.reasons if reason.about == about)
    assert (reason.light, reason.short) == (light, short)
    assert verdict.light is light


def beside_random(change, draws=RANDOM, **more):
    plan = loss("p", change, **more)
    return against_random(plan, plan.facts, [*draws, plan])


WORSE, NO_BETTER = "worse than Random", "no better than Random"
ALIKE = "indistinguishable from"


@pytest.mark.parametrize(
    ("change", "alarm", "comparison", "light", "short"),
    [
        ({"a": 2.0, "b": 2.5}, WORSE, "more than", RED, WORSE),
        ({"a": 2.0, "b": 1.2}, NO_BETTER, ALIKE, RED, NO_BETTER),
        # 1.0 is within 0.71 of 1.5, 0.7 is not.
        ({"a": 1.0, "b": 1.0}, "", ALIKE, AMBER, "hardly better than Random"),
        ({"a": 0.7, "b": 0.7}, "", "less than", GREEN, ""),
        # On a alone Random adds 1 and 3.
        ({"a": 0.7}, "", ALIKE, AMBER, "loss measured in part"),
    ],
)
def test_what_a_plan_loses_beside_random(plan, model, change, alarm, comparison, light, short):
    found = beside_random(change)
    assert (found.alarm, found.comparison) == (alarm, comparison)
    assert bool(found.warning) == bool(alarm)
    assert ("within one SD of 0.71" in found.warning) == (alarm == NO_BETTER)
    verdict = judged(plan, model, loss(plan.digest, change), *RANDOM)
    (reason,) = (reason for reason in verdict.reasons if reason.about == "Quality")
    assert (reason.light, reason.short) == (light, short)


def test_the_warning_has_both_losses():
    assert beside_random({"a": 2.0, "b": 2.5}).warning == (
        "Worse than Random at this sparsity: the plan adds +2.25 to the loss, Random +1.50 (mean "
        "of 2 draws)."
    )
    repaired = beside_random({"a": 2.0, "b": 2.5}, repair="r").warning
    assert "Random without repair +1.50" in repaired
    assert "(1 draw)" in beside_random({"a": 2.0, "b": 2.5}, RANDOM[:1]).warning


def test_only_corpora_of_both_are_compared():
    # On b alone Random adds 1 and 1.
    found = beside_random({"b": 1.2})
    assert (found.mean, found.chance.mean, found.chance.mean_spread) == (1.2, 1.0, 0.0)
    assert found.alarm == "worse than Random"
    assert beside_random({"c": 9.0}) is None


def test_a_prediction_is_marked():
    facts = PlanFacts(criterion="reap", removed=0.5, granularity="expert")
    found = against_random(LossIncrease({"a": 4.0, "b": 4.0}), facts, RANDOM)
    assert found.warning.startswith("Predicted worse than Random at this sparsity")


def test_what_is_not_comparable_has_no_verdict():
    bad = {"a": 9.0, "b": 9.0}
    assert beside_random(bad, way="float32") is None  # other samples or another dtype
    assert beside_random(bad, removed=0.25) is None  # Random was measured at 50% alone
    assert beside_random(bad, RANDOM[:0]) is None
    assert against_random(RANDOM[1], RANDOM[1].facts, RANDOM) is None  # a draw of Random itself


def test_what_is_not_known_is_amber(plan, model):
    assert lights(judged(plan, model))["Quality"] is AMBER
    own = loss(plan.digest, {"a": 0.2, "b": 0.4})
    assert judged(plan, model, own).worst[0].short == "not compared with Random"
    predicted = LossIncrease({"a": 0.2, "b": 0.2})
    assert judged(plan, model, *RANDOM, predicted=predicted).in_one_line == (
        "Check before shipping: loss only predicted"
    )
    worse = LossIncrease({"a": 4.0, "b": 4.0})
    verdict = judged(plan, model, *RANDOM, predicted=worse)
    assert verdict.in_one_line == "Do not ship: predicted worse than Random"


def test_four_bits_win_where_they_are_no_larger_and_lose_no_more(plan, model):
    own = loss(plan.digest, {"a": 0.2, "b": 0.4})
    verdict = judged(plan, model, own, *RANDOM, FOUR_BITS)
    assert verdict.in_one_line == "Check before shipping: 4 bits alone is as good"
    # Smaller than four bits, or a lower loss: not beaten.
    assert lights(judged(plan, model, own, *RANDOM, FOUR_BITS, after=499))["Fewer bits"] is GREEN
    better = loss(plan.digest, {"a": 0.05, "b": 0.05})
    assert lights(judged(plan, model, better, *RANDOM, FOUR_BITS))["Fewer bits"] is GREEN
    assert "Fewer bits" not in lights(judged(plan, model, own, *RANDOM))
    # The best of both formats counts, and only what was measured on the same corpora.
    mx = loss("m", {"a": 0.3, "b": 0.3}, removed=0.0, bits="mxfp4", bytes_after=400)
    large = loss("o", {"a": 0.0, "b": 0.0}, removed=0.0, bits="4", bytes_after=700)
    (reason,) = (
        reason
        for reason in judged(plan, model, own, *RANDOM, large, mx).reasons
        if reason.about == "Fewer bits"
    )
    assert (reason.light, "MXFP4" in reason.words) == (AMBER, True)
    on_one = loss(plan.digest, {"a": 0.9})
    assert "Fewer bits" not in lights(judged(plan, model, on_one, *RANDOM, FOUR_BITS))


def test_what_has_no_verdict_and_what_is_never_green(plan, model):
    assert judged(keep_all(model), model) is None
    assert judged(replace(plan, bits="4"), model) is None
    fewer = with_top_k(keep_all(model), model, 2)
    own = loss(fewer.digest, {"a": 9.0, "b": 9.0}, removed=0.0, top_k="2")
    found = lights(judged(fewer, model, own, *RANDOM, after=1000))
    assert (found["Size"], found["Quality"]) == (AMBER, AMBER)
    elsewhere = loss(plan.digest, {"a": 0.1, "b": 0.1}, way="bfloat16")
    assert lights(judged(plan, model, elsewhere, *RANDOM))["Quality"] is AMBER
    # A single draw has no spread: a hair below it is no proof.
    close = loss(plan.digest, {"a": 0.9, "b": 0.9})
    assert lights(judged(plan, model, close, RANDOM[0]))["Quality"] is AMBER
    one = replace(plan, provenance=replace(plan.provenance, criterion="random"))
    drawn = loss(one.digest, {"a": 0.1, "b": 0.1}, criterion="random")
    assert lights(judged(one, model, drawn))["Quality"] is AMBER


def test_the_worst_reason_decides_and_comes_first(plan, model):
    own = loss(plan.digest, {"a": 9.0, "b": 9.0})
    verdict = judged(plan, model, own, *RANDOM, is_benchmarked=False)
    assert verdict.in_one_line == "Do not ship: worse than Random"
    assert [line.partition(",")[0] for line in verdict.lines] == ["red", "amber", "green", "green"]
    assert verdict.numbers["light"] == "red"
    amber = judged(plan, model, is_benchmarked=False, plain=(), special=("load_pruned",))
    assert amber.in_one_line == (
        "Check before shipping: loss not measured, only load_pruned, 1 more"
    )


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
