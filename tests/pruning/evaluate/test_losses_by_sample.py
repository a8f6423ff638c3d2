"""The loss of a part of the samples, and what samples cannot tell apart: by hand."""

import numpy as np
import pytest

from builders.measured import sums, with_losses
from pruning.records.quality import loss_of, plan_losses
from pruning.records.quality_by_sample import difference, halves, of_documents, unseen

EVEN = slice(0, None, 2)
FACTS = {"seed": 42, "drawn": "some", "skipped": 0, "seq_len": 8, "packing": "pad", "count": "all"}
TOKENS = {"a": (4, 2, 4, 2), "b": (1, 1, 2, 2)}
FULL = {"a": (4.0, 2.0, 4.0, 2.0), "b": (2.0, 2.0, 4.0, 4.0)}  # 1 and 2 nats per token
# Loss increase of each sample, per token.
EARLY = {"a": (0.0, 4.0, 0.0, 4.0), "b": (0.0, 2.0, 0.0, 2.0)}  # best on the even samples
LATE = {"a": (1.0, 0.0, 1.0, 0.0), "b": (1.0, 0.0, 1.0, 0.0)}  # best on the odd ones


@pytest.fixture
def measure(shipped_record):
    def make(plan, added, schedule="uniform", documents=(3, 4, 5, 8)):
        for name, values in added.items():
            tokens, full = np.array(TOKENS[name]), np.array(FULL[name])
            found = sums(full + np.array(values) * tokens, tokens, documents)
            yield with_losses(
                shipped_record,
                found,
                sums(full, tokens, documents),
                plan_digest=plan,
                corpus={"name": name, "digest": name, "num_documents": 4, **FACTS},
                plan=shipped_record.plan.model_copy(update={"schedule": schedule}),
            )

    return make


@pytest.fixture
def losses(measure):
    records = [*measure("early", EARLY), *measure("late", LATE)]
    return plan_losses(records)


def test_the_loss_on_a_half_is_the_mean_of_its_samples(losses):
    early = loss_of(losses, "early")
    assert early.change == {"a": 2.0, "b": 1.0}
    even, odd = halves(early)
    assert (even.change, even.mean, even.num_samples) == ({"a": 0.0, "b": 0.0}, 0.0, 2)
    assert (odd.change, odd.mean, odd.worst_on) == ({"a": 4.0, "b": 2.0}, 3.0, "a")
    assert odd.full == {"a": 1.0, "b": 2.0}
    last = of_documents(early, {"a": slice(3, None)})
    assert (last.change, last.num_samples) == ({"a": 4.0, "b": 1.0}, 1)
    assert of_documents(early, {"a": slice(4, None)}) is None


def test_no_document_is_in_both_halves(measure):
    records = [*measure("early", EARLY, documents=(3, 3, 4, 8))]
    early = loss_of(plan_losses(records), "early")
    first, second = halves(early)
    assert {name: sample.documents for name, sample in first.samples.items()} == {
        "a": (3, 3, 8),
        "b": (3, 3, 8),
    }
    assert (first.change["a"], second.change["a"]) == (pytest.approx(8 / 3), 0.0)
    assert (second.samples["a"].documents, second.num_samples) == ((4,), 1)
    # A window of one text is as good as a document: nothing says which of them are alike.
    whole = loss_of(plan_losses(measure("early", EARLY, documents=None)), "early")
    assert [half.change for half in halves(whole)] == [{"a": 0.0, "b": 0.0}, {"a": 4.0, "b": 2.0}]
    # One document has no second half.
    single = loss_of(plan_losses(measure("early", EARLY, documents=(0, 0, 0, 0))), "early")
    assert halves(single)[1] is None


def test_two_plans_are_apart_where_the_paired_interval_excludes_0(measure):
    rng = np.random.default_rng(0)
    base = {name: tuple(rng.normal(1, 1, 4)) for name in "ab"}
    # Samples differ by far more than the plans do, and yet the plans can be told apart.
    worse = {name: tuple(np.add(values, (0.10, 0.11, 0.12, 0.13))) for name, values in base.items()}
    mixed = {name: tuple(np.add(values, (-0.3, 0.3, 0.3, -0.2))) for name, values in base.items()}
    found = plan_losses(
        [*measure("base", base), *measure("worse", worse), *measure("mixed", mixed)]
    )
    one, other, near = (loss_of(found, name) for name in ("worse", "base", "mixed"))
    apart = difference(one, other)
    assert apart.mean == pytest.approx(0.115)
    assert 0.10 <= apart.low < 0.115 < apart.high <= 0.13
    assert apart.is_clear
    back = difference(other, one)
    assert (back.mean, back.low, back.high) == pytest.approx((-apart.mean, -apart.high, -apart.low))
    assert not difference(near, other).is_clear
    assert not difference(one, one).is_clear


def test_the_interval_is_that_of_a_bootstrap_by_hand(losses):
    early, late = (loss_of(losses, name) for name in ("early", "late"))
    found = difference(early, late)
    apart = {name: np.subtract(EARLY[name], LATE[name]) for name in "ab"}
    assert found.mean == pytest.approx((apart["a"].mean() + apart["b"].mean()) / 2)
    rng = np.random.default_rng(7)
    means = np.mean([rng.choice(apart[name], (20_000, 4)).mean(axis=1) for name in "ab"], axis=0)
    # Of 1000 resamples the percentiles are within 0.15 of those of many.
    assert (found.low, found.high) == pytest.approx(
        tuple(np.percentile(means, [2.5, 97.5])), abs=0.15
    )


def test_what_cannot_be_paired_is_not_compared(losses):
    early = loss_of(losses, "early")
    half = of_documents(loss_of(losses, "late"), {"a": EVEN})
    assert difference(early, half) is None


def test_samples_that_chose_a_plan_are_left_out_of_its_loss(losses, measure):
    early = loss_of(losses, "early")
    judged = {"name": "a", "samples": 1, **FACTS}
    assert unseen(early, judged).change == {"a": pytest.approx(8 / 3), "b": 1.0}
    # What follows of a document that was read in part is not unseen.
    begun = loss_of(plan_losses(measure("early", EARLY, documents=(0, 0, 1, 1))), "early")
    assert unseen(begun, judged).samples["a"].documents == (1, 1)
    # All of its samples were read, or nobody knows which.
    for other in ({"samples": 4}, {"seed": 7}):
        assert unseen(early, {**judged, **other}).change == {"b": 1.0}
    assert unseen(early, {**judged, "name": "c"}) is early
