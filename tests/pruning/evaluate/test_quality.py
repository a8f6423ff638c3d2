"""The loss of plans over all corpora, against arithmetic by hand."""

import itertools
import math

import numpy as np
import pytest
from shipped import shipped_results

from analysis.files.shipped import SHIPPED_STATS
from builders.measured import sums, with_losses
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import (
    CANDIDATE_COLUMNS,
    candidates_at,
    full_losses,
    loss_of,
    plan_losses,
    random_at,
    stored_losses,
)

FULL = {"a": 2.0, "b": 1.0, "c": 4.0}
ELSEWHERE = {"d": 1.0}
# What each plan gets on each corpus.
REAP = {"a": 2.5, "b": 3.0, "c": 4.25}  # +0.5, +2, +0.25: mean 2.75 / 3
EAN = {"a": 2.75, "b": 1.5, "c": 4.5}  # +0.75, +0.5, +0.5: mean 1.75 / 3
DRAWS = ({"a": 3.0, "b": 1.5, "c": 5.5}, {"a": 2.5, "b": 3.5, "c": 4.5})  # means 1 and 3.5 / 3


@pytest.fixture
def measure(shipped_record):
    """Records of one plan: `measure(plan, corpus -> loss)`."""
    times = itertools.count()

    def make(plan, found, *, criterion="reap", removed=0.5, samples=64, dtype="float32", **facts):
        update = {"criterion": criterion, "corpora": (), "removed": removed, **facts}
        return [
            with_losses(
                shipped_record,
                sums((value,) * samples),
                sums(((FULL | ELSEWHERE)[name],) * samples),
                plan_digest=plan,
                plan=shipped_record.plan.model_copy(update=update),
                corpus={
                    "name": name,
                    "digest": f"{name}{samples}",
                    "num_documents": samples,
                    "seed": 42,
                },
                settings={"dtype": dtype, "seed": 42},
                made={"created_at": f"2026-01-01T00:00:{next(times):02}"},
            )
            for name, value in found.items()
        ]

    return make


@pytest.fixture
def records(measure):
    return [
        *measure("full", FULL, criterion="", removed=0.0),
        *measure("one", REAP),
        *measure("two", EAN, criterion="ean"),
        *measure("draw", DRAWS[0], criterion="random"),
        *measure("other draw", DRAWS[1], criterion="random:2"),
    ]


def test_the_loss_of_a_plan_is_its_mean_and_its_worst_over_corpora(records):
    losses = plan_losses(records)
    loss = loss_of(losses, "one")
    assert loss.change == {"a": 0.5, "b": 2.0, "c": 0.25}
    assert (loss.mean, loss.worst, loss.worst_on) == (2.75 / 3, 2.0, "b")
    assert (loss.missing, loss.num_samples, loss.way) == ((), 64, "")
    assert loss.words == "loss +0.92 mean, +2.00 worst (b)"
    assert loss_of(losses, "unheard of") is None
    assert loss_of(losses, "full").mean == 0
    assert full_losses(losses) == FULL


def test_candidates_of_a_share_are_sorted_by_mean_with_random_as_one(records, measure):
    losses = plan_losses([*records, *measure("small", REAP, removed=0.25)])
    table = candidates_at(losses, 0.5)
    assert tuple(table.columns) == CANDIDATE_COLUMNS
    assert table["criterion"].tolist() == ["ean", "reap", "random"]
    assert table["mean"].tolist() == pytest.approx([1.75 / 3, 2.75 / 3, 6.5 / 6])
    assert table["worst"].tolist() == [0.75, 2.0, 2.0]
    assert table["draws"].tolist() == [1, 1, 2]
    assert table["plan"].tolist() == ["two", "one", ""]


def test_draws_of_random_are_pooled_with_their_spread(records, measure):
    chance = random_at(plan_losses(records), 0.5)
    # Draw 1: +1, +0.5, +1.5 (mean 1, worst 1.5). Draw 2: +0.5, +2.5, +0.5 (mean 7/6, worst 2.5).
    first, second = 3.0 / 3, 3.5 / 3
    assert chance.draws == 2
    assert chance.change == {"a": 0.75, "b": 1.5, "c": 1.0}
    assert chance.mean == pytest.approx((first + second) / 2)
    assert chance.mean_spread == pytest.approx((second - first) / math.sqrt(2))
    assert (chance.worst, chance.worst_spread) == (2.0, pytest.approx(1 / math.sqrt(2)))
    assert random_at(plan_losses(records), 0.25) is None
    one = random_at(plan_losses(measure("draw", DRAWS[0], criterion="random")), 0.5)
    assert (one.draws, one.mean, one.mean_spread) == (1, 1.0, None)


def test_the_same_draw_asked_for_in_two_ways_counts_once(records, measure):
    again = measure("draw", DRAWS[0], criterion="random", sparsity="", schedule="by hand")
    assert random_at(plan_losses([*records, *again]), 0.5).draws == 2


FITTED = {"repair": "r", "repaired_on": ("a",)}


def test_a_repaired_plan_is_never_pooled_with_the_plan_that_it_repairs(records, measure):
    losses = plan_losses([*records, *measure("one repaired", EAN, **FITTED)])
    table = candidates_at(losses, 0.5)
    rows = table[table["criterion"] == "reap"].set_index("plan")
    assert rows["repaired_on"].to_dict() == {"one": "", "one repaired": "a"}
    assert rows["mean"].to_dict() == pytest.approx({"one": 2.75 / 3, "one repaired": 1.75 / 3})
    assert loss_of(losses, "one").facts.variant_words == ""
    assert loss_of(losses, "one repaired").facts.variant_words == " + repair on a"
    assert [loss.plan for loss in losses if loss.is_repaired] == ["one repaired"]


def test_repaired_draws_of_random_are_a_row_of_their_own_and_no_chance(records, measure):
    fitted = measure("draw repaired", EAN, criterion="random", **FITTED)
    losses = plan_losses([*records, *fitted])
    assert random_at(losses, 0.5).draws == 2
    rows = candidates_at(losses, 0.5).query("criterion == 'random'")
    assert dict(zip(rows["repaired_on"], rows["draws"], strict=True)) == {"": 2, "a": 1}
    assert loss_of(losses, "draw repaired").random_name == "Random without repair"
    assert random_at(plan_losses(fitted), 0.5) is None


def test_only_plans_measured_on_the_same_corpora_are_compared(records, measure):
    partly = measure("partly", {"b": 1.1}, criterion="man")
    elsewhere = measure("one", {"d": 9.0})
    losses = plan_losses([*records, *partly, *elsewhere])
    # A corpus of one plan alone neither joins its mean nor makes the others incomplete.
    assert loss_of(losses, "one").mean == 2.75 / 3
    assert loss_of(losses, "two").missing == ()
    assert loss_of(losses, "partly").missing == ("a", "c")
    last = candidates_at(losses, 0.5).iloc[-1]
    assert (last["criterion"], last["missing"]) == ("man", "a, c")
    assert math.isnan(last["mean"]) and math.isnan(last["worst"])


@pytest.mark.parametrize(
    ("other", "way"),
    [
        ({"samples": 8}, "8 samples of None tokens, seed 42"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"samples": 8, "dtype": "bfloat16"}, "8 samples of None tokens, seed 42, bfloat16"),
    ],
)
def test_what_was_measured_in_another_way_is_marked(records, measure, other, way):
    lucky = {"a": 2.0, "b": 1.0, "c": 4.0}
    losses = plan_losses([*records, *measure("lucky", lucky, criterion="man", **other)])
    table = candidates_at(losses, 0.5)
    assert table["criterion"].tolist() == ["ean", "reap", "random", "man"]
    assert table["way"].tolist() == ["", "", "", way]
    assert loss_of(losses, "lucky").words == f"loss +0.00 mean, +0.00 worst (a), {way}"
    # As most plans were measured goes before.
    both = plan_losses([*records, *measure("one", lucky, **other)])
    assert loss_of(both, "one").mean == 2.75 / 3
    assert loss_of(plan_losses([*records, *measure("new", lucky, **other)]), "new").mean == 0


def test_of_two_evaluations_of_one_plan_the_newer_one_counts(records, measure):
    assert loss_of(plan_losses([*records, *measure("one", EAN)]), "one").mean == 1.75 / 3


def test_stored_losses_are_kept_until_a_file_changes(measure, tmp_path):
    store, measured = EvaluationStore([tmp_path]), {"one": REAP["a"], "two": EAN["a"]}

    def save(plan):
        (record,) = measure(plan, {"a": measured[plan]})
        store.save(record.model_copy(update={"record_id": plan}))
        return record.model.identity

    def losses():
        return stored_losses(EvaluationStore([tmp_path]), identity)

    identity = save("one")
    first = losses()
    assert losses() is first
    assert save("two") == identity
    assert {loss.plan: loss.mean for loss in losses()} == {"one": 0.5, "two": 0.75}
    # What cannot be read now may be readable later, in a file that is the same.
    store.folder.mkdir()
    (store.folder / "three.json").write_text("{")
    assert losses() is not losses()
    assert stored_losses(store, "0" * 64) == ()


def test_the_demos_story_is_what_its_files_say(demo):
    losses = plan_losses(EvaluationStore([SHIPPED_STATS]).records(demo.identity))
    table = candidates_at(losses, 0.5, "expert")
    assert set(table["missing"]) == set(table["way"]) == {""}
    rows = table[table["repaired_on"] == ""].set_index(["criterion", "calibrated_on", "schedule"])
    chance, alone = rows.loc["random", "", "uniform"], rows.loc["reap", "demo-code", "uniform"]
    blend = "demo-code+demo-math+demo-stories"
    # Loss increase per corpus by numpy, from the lines alone.
    by_hand = {}
    for raw in shipped_results():
        made = (raw["plan"]["criterion"], "+".join(raw["plan"]["corpora"]), raw["plan"]["schedule"])
        if raw["plan"]["sparsity"] == "50%" and not raw["plan"].get("repair"):
            added = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
            by_hand.setdefault(made, {})[raw["corpus"]["name"]] = added
    for made in (("reap", "demo-code", "uniform"), ("ean", blend, "global")):
        added = by_hand[made]
        row = rows.loc[made]
        assert (row["mean"], row["worst"]) == pytest.approx(
            (np.mean(list(added.values())), max(added.values()))
        )
        assert row["worst_on"] == max(added, key=added.get)
    draws = [
        np.mean(list(by_hand[name, "", "uniform"].values()))
        for name in ("random", *(f"random:{seed}" for seed in range(1, 20)))
    ]
    assert (chance["draws"], chance["mean"]) == (20, pytest.approx(np.mean(draws)))
    assert chance["mean_spread"] == pytest.approx(np.std(draws, ddof=1))
    # Of one corpus, REAP can beat all draws of chance and can lose to one of them.
    stories = rows.loc["reap", "demo-stories", "uniform"]
    assert alone["mean"] < min(draws) < stories["mean"] < chance["mean"]
