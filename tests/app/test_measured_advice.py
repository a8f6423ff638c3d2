"""What measured losses say of the recommended criteria, against arithmetic by hand."""

import pytest

from app.tables.measured_advice import MeasuredPlan, read_losses
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import PlanLoss


def loss(criterion, change, corpora=(), *, way="", schedule="uniform", granularity="expert"):
    facts = PlanFacts(
        criterion=criterion,
        corpora=corpora,
        removed=0.5,
        schedule=schedule,
        granularity=granularity,
    )
    change = dict(zip("ab", change, strict=True))
    full = dict.fromkeys("ab", 1.0)
    digest = f"{criterion}{corpora}{way}{schedule}{granularity}"
    return PlanLoss(change, digest, facts, way, ("a", "b"), full, {}, {}, 8, "2026-01-01")


RANDOM = loss("random", (1.0, 0.5))  # mean 0.75
LOSSES = [
    RANDOM,
    loss("man", (0.25, 2.25), ("a",)),  # mean 1.25, on its own corpus 0.25
    loss("msan", (0.5, 0.25), ("a:3", "b:1")),  # mean 0.375
    loss("gate-ean", (0.75, 1.0), ("b",)),  # on its own corpus 1.0
    loss("reap", (0.1, 0.2), ("a",)),  # is not recommended, and the best: mean 0.15
    loss("man", (0.0, 0.0), ("a",), way="8 samples"),
    loss("man", (0.0, 0.0), ("a",), schedule="late"),
    loss("man", (0.0, 0.0), ("a",), granularity="neuron"),
]


def test_all_abilities_count_the_mean_over_all_corpora():
    found = read_losses("agnostic", LOSSES, 0.5)
    assert found.rows == (
        MeasuredPlan("msan", "blend of a:3, b:1", 0.375, 0.75, pytest.approx(0.15)),
        MeasuredPlan("man", "a", 1.25, 0.75, pytest.approx(0.15)),
    )
    assert found.better == 1


def test_one_ability_counts_the_corpora_that_ranked():
    found = read_losses("specific", LOSSES, 0.5)
    assert found.rows == (MeasuredPlan("gate-ean", "b", 1.0, 0.5, 0.2),)
    assert found.better == 0


def test_advice_is_good_where_it_gives_the_best_measured_plan():
    good = [RANDOM, loss("man", (0.25, 0.25), ("a",)), loss("reap", (0.5, 0.5), ("a",))]
    assert read_losses("agnostic", good, 0.5).is_good
    worse = [*good, loss("ean", (0.05, 0.05), ("a",))]
    found = read_losses("agnostic", worse, 0.5)
    assert (found.better, found.is_good) == (1, False)


@pytest.mark.parametrize(("losses", "share"), [(LOSSES, 0.25), (LOSSES[1:], 0.5), ([], 0.5)])
def test_without_random_at_this_size_nothing_is_measured(losses, share):
    assert read_losses("agnostic", losses, share).rows == ()
