"""Bins of experts and neurons, and what removing each costs."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from analysis.drain import drain
from analysis.errors import PlanError, StatsError
from analysis.model.opening import load_model_index
from analysis.ranking.norms import neuron_norms
from builders import NUM_EXPERTS, tiny_checkpoint
from builders.measured import sums as summed
from pruning.measurements.block import ORIGINAL
from pruning.measurements.table import PlanSums
from pruning.plan.plan import keep_all
from pruning.records.bins import (
    BIN_COLUMNS,
    Bin,
    Binning,
    BinsRecord,
    BinsStore,
    RankedBy,
    bin_numbers,
    bins_overview,
    expert_bins,
    neuron_bins,
    rank_agreement,
)


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("bins") / "olmoe"
    tiny_checkpoint(path, "olmoe")
    return load_model_index(str(path))


def ranking_of(model, saliency):
    rows = [(layer.index, e) for layer in model.layers for e in range(layer.num_experts)]
    return pd.DataFrame(rows, columns=["layer", "expert"]).assign(saliency=saliency)


def test_numbers_by_hand():
    saliency = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 4.0])
    one = np.zeros(6, dtype=np.int64)
    # Ascending: 1, 2, 3, then the later 4, the earlier 4, 5.
    assert bin_numbers(saliency, one, Binning(3, "global")).tolist() == [1, 0, 0, 2, 2, 1]
    two = np.array([0, 0, 0, 7, 7, 7])
    assert bin_numbers(saliency, two, Binning(3)).tolist() == [2, 0, 1, 2, 1, 0]
    # Five entries in two bins: three and two.
    assert sorted(bin_numbers(saliency[:5], one[:5], Binning(2)).tolist()) == [0, 0, 0, 1, 1]
    by_place = Binning(3, "global", "index")
    assert bin_numbers(saliency, two, by_place).tolist() == [0, 0, 1, 1, 2, 2]
    assert bin_numbers(saliency, two, Binning(3, "layer", "index")).tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_every_expert_is_removed_once(described, scope):
    saliency = np.random.default_rng(0).random(21)
    bins = expert_bins(ranking_of(described, saliency), described, Binning(5, scope))
    removed = [
        [(layer, e) for layer, ids in bin_.plan.kept.items() for e in range(7) if e not in ids]
        for bin_ in bins
    ]
    everything = [pair for part in removed for pair in part]
    assert len(everything) == len(set(everything)) == 21
    assert [len(part) for part in removed] == [bin_.removed for bin_ in bins]
    values = [[saliency[layer * 7 + e] for layer, e in part] for part in removed]
    assert [bin_.saliency for bin_ in bins] == pytest.approx([np.mean(v) for v in values])
    assert sum(bin_.share for bin_ in bins) == pytest.approx(1)
    if scope == "global":
        assert all(max(a) < min(b) for a, b in pairwise(values))
    else:
        assert {layer for layer, _ in removed[0]} == {0, 1, 2}


def test_a_bin_that_takes_too_much_of_a_layer_is_refused(described):
    saliency = np.repeat([1.0, 2.0, 3.0], 7)  # the least salient third is the whole first layer
    with pytest.raises(PlanError, match="layer 0"):
        expert_bins(ranking_of(described, saliency), described, Binning(3, "global"))


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_every_neuron_is_removed_once(described, scope):
    scores = drain(neuron_norms(described))
    bins = neuron_bins(scores, described, Binning(4, scope))
    total = NUM_EXPERTS["olmoe"] * 3 * 24
    assert sum(bin_.removed for bin_ in bins) == total
    gone = [
        (layer, expert, neuron)
        for bin_ in bins
        for layer, experts in bin_.plan.kept_neurons.items()
        for expert, ids in experts.items()
        for neuron in set(range(24)) - set(ids)
    ]
    assert len(gone) == len(set(gone)) == total
    assert [bin_.saliency for bin_ in bins] == sorted(bin_.saliency for bin_ in bins)


def test_agreement_is_one_in_order_and_minus_one_in_reverse():
    table = pd.DataFrame({"saliency": [1.0, 2, 3], "loss_change": [0.1, 0.2, 0.9]})
    assert rank_agreement(table) == pytest.approx(1)
    assert rank_agreement(table.assign(loss_change=[3.0, 2, 1])) == pytest.approx(-1)
    assert math.isnan(rank_agreement(table.assign(loss_change=1.0)))
    assert math.isnan(rank_agreement(table[:1]))


CORPUS = {"name": "text.jsonl", "digest": "c" * 64, "num_documents": 2, "seed": 1}
SETTINGS = {"dtype": "float32", "seed": 42}
RANKED = RankedBy("reap", "applied", ("text",), ("run-1",), "expert", Binning(3))


def new(model, ranked=RANKED, corpus=CORPUS, settings=SETTINGS, shares=(None,) * 3):
    """Bins of which the n-th removes expert n of each layer."""
    bins = []
    for number, share in enumerate(shares):
        whole = keep_all(model)
        kept = {layer: tuple(e for e in ids if e != number) for layer, ids in whole.kept.items()}
        share = math.nan if share is None else share
        bins.append(Bin(number, replace(whole, kept=kept), 7, float(number), share))
    return BinsRecord.new(model, ranked, bins, corpus, settings)


def with_losses(record, sums, full, documents=None):
    """The record with losses of samples of 1 and 3 tokens: by bin, and of the original model."""
    ids, counts = ("a", "b"), (1, 3)
    plans = dict(zip(record.plans, (*sums, full), strict=True))
    return record.finished({"device": "cpu"}).with_bin(
        {
            plan: PlanSums((6,) * 3, ids, {"nll": summed(values, counts, documents)})
            for plan, values in plans.items()
        }
    )


def test_changes_by_hand(described, tmp_path):
    store, begun = BinsStore([tmp_path]), new(described)
    made = with_losses(begun, [(2.0, 9.0), (1.0, 3.0), (1.0, 6.0)], (1.0, 3.0), (0, 1))
    assert (begun.is_measured, made.is_measured) == (False, True)
    # Changes of the means: 2 - 1 and 3 - 1 -> 1.5; of all positions: (11 - 4) / 4.
    first, second, third = made.rows
    assert (first.loss_change, first.pooled) == (1.5, 1.75)
    assert first.low <= 1.5 <= first.high
    assert (second.loss_change, second.low, second.high) == (0, 0, 0)
    assert (third.loss_change, made.full_loss, made.num_tokens) == (0.5, 1.0, 4)
    assert "NaN" not in store.save(made).read_text()  # of what is undefined
    assert store.records(described.identity) == [made]
    assert store.find(begun) == made
    assert store.records("f" * 64) == []
    table = made.table
    assert tuple(table.columns) == BIN_COLUMNS
    assert table["share"].isna().all()
    # Two windows of one document have no interval.
    single = with_losses(begun, [(2.0, 9.0)] * 3, (1.0, 3.0), (0, 0)).rows[0]
    assert (single.loss_change, single.low, single.high) == (1.5, None, None)


def test_a_plan_whose_loss_is_unknown_is_lacking(described):
    """A search by another measure may know a bin's plan; a damaged line may cost the original."""
    made = with_losses(new(described), [(2.0, 9.0)] * 3, (1.0, 3.0))
    numbers = {**made.numbers}
    first = numbers[made.plans[0]]
    esap = {"esap": summed((1.0, 3.0), (1, 3))}
    other = new(described).with_numbers({**numbers, made.plans[0]: replace(first, sums=esap)})
    assert (made.lacking, other.lacking) == ("", made.plans[0])
    del numbers[ORIGINAL]
    assert new(described).with_numbers(numbers).lacking == ORIGINAL


def test_what_changes_the_numbers_makes_another_record(described):
    known = new(described).digest
    others = [
        new(described, replace(RANKED, criterion="man")),
        new(described, replace(RANKED, how=Binning(3, "global"))),
        new(described, replace(RANKED, how=Binning(3, order="index"))),
        new(described, corpus=CORPUS | {"digest": "d" * 64}),
        new(described, settings=SETTINGS | {"dtype": "bfloat16"}),
    ]
    assert len({known, *(other.digest for other in others)}) == 6
    # Made again with more groups a run has another id and the same numbers.
    assert new(described, replace(RANKED, runs=("run-2",))).digest == known


def test_overview_by_hand(described):
    # Of one token and of three: 0.1, 0.3 and 0.2 more.
    sums = [(1 + change, 3 * (1 + change)) for change in (0.1, 0.3, 0.2)]
    made = with_losses(new(described), sums, (1.0, 3.0))
    (row,) = bins_overview([made]).to_dict("records")
    assert (row["bins"], row["removed"]) == (3, 21)
    assert (row["first"], row["last"]) == pytest.approx((0.1, 0.2))
    # Ranks of the changes 1, 3, 2 against 1, 2, 3: 1 - 6 (0 + 1 + 1) / (3 * 8).
    assert row["agreement"] == pytest.approx(0.5)


def test_a_loss_that_is_no_number_is_refused(described):
    with pytest.raises(StatsError, match="try --dtype bfloat16 or float32"):
        with_losses(new(described), [(1.0, 3.0), (1.0, math.inf), (1.0, 3.0)], (1.0, 3.0))
