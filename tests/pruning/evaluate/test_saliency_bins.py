"""Bins of experts and neurons, and what removing each costs."""

import json
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
from pruning.measures.result import Evaluation, SampleSums
from pruning.plan.plan import keep_all
from pruning.records.bins import (
    Bin,
    Binning,
    BinsRecord,
    BinsStore,
    RankedBy,
    bin_numbers,
    bin_table,
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
        [(layer, e) for layer, ids in each.plan.kept.items() for e in range(7) if e not in ids]
        for each in bins
    ]
    everything = [pair for part in removed for pair in part]
    assert len(everything) == len(set(everything)) == 21
    assert [len(part) for part in removed] == [each.removed for each in bins]
    values = [[saliency[layer * 7 + e] for layer, e in part] for part in removed]
    assert [each.saliency for each in bins] == pytest.approx([np.mean(v) for v in values])
    assert sum(each.share for each in bins) == pytest.approx(1)
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
    assert sum(each.removed for each in bins) == total
    gone = [
        (layer, expert, neuron)
        for each in bins
        for layer, experts in each.plan.kept_neurons.items()
        for expert, ids in experts.items()
        for neuron in set(range(24)) - set(ids)
    ]
    assert len(gone) == len(set(gone)) == total
    assert [each.saliency for each in bins] == sorted(each.saliency for each in bins)


def test_changes_by_hand(described):
    counts = np.array([1, 3])
    sums = {
        "full_nll": SampleSums(np.array([1.0, 3.0]), counts),
        "nll": SampleSums(np.array([2.0, 9.0]), counts),
    }
    only = Bin(0, keep_all(described), removed=5, saliency=0.5, share=1.0)
    (row,) = bin_table([only], {0: Evaluation({}, {}, sums, 2, 4)}).to_dict("records")
    assert row["low"] <= 1.5 <= row["high"]
    one = {name: replace(each, documents=(0, 0)) for name, each in sums.items()}
    (row,) = bin_table([only], {0: Evaluation({}, {}, one, 2, 4)}).to_dict("records")
    assert pd.isna(row["low"]) and pd.isna(row["high"])  # two windows of one document
    # Changes of the means: 2 - 1 and 3 - 1 -> 1.5; of all positions: (11 - 4) / 4.
    assert (row["loss_change"], row["pooled"]) == (1.5, 1.75)
    # Of one document there is no interval, and the record says so.
    single = bin_table([only], {0: Evaluation({}, {}, one, 2, 4)})
    (kept,) = new(described).with_results(single, (2.5, 2, 4), {}).rows
    assert (kept.low, kept.high) == (None, None)


def test_agreement_is_one_in_order_and_minus_one_in_reverse():
    table = pd.DataFrame({"saliency": [1.0, 2, 3], "loss_change": [0.1, 0.2, 0.9]})
    assert rank_agreement(table) == pytest.approx(1)
    assert rank_agreement(table.assign(loss_change=[3.0, 2, 1])) == pytest.approx(-1)
    assert math.isnan(rank_agreement(table.assign(loss_change=1.0)))
    assert math.isnan(rank_agreement(table[:1]))


CORPUS = {"name": "text.jsonl", "digest": "c" * 64, "num_documents": 2, "seed": 1}
SETTINGS = {"dtype": "float32", "seed": 42}
RANKED = RankedBy("reap", "applied", ("text",), ("run-1",), "expert", Binning(3))


def new(model, ranked=RANKED, corpus=CORPUS, settings=SETTINGS):
    bins = [Bin(number, keep_all(model), 7, float(number), math.nan) for number in range(3)]
    return BinsRecord.new(model, ranked, bins, corpus, settings)


def table(changes=(0.1, 0.3, 0.2)):
    return pd.DataFrame(
        {
            "bin": range(3),
            "removed": 7,
            "saliency": [0.0, 1.0, 2.0],
            "share": math.nan,
            "loss_change": changes,
            "low": math.nan,
            "high": math.nan,
            "pooled": changes,
        }
    )


def test_what_is_undefined_survives_the_file(described, tmp_path):
    store = BinsStore([tmp_path])
    made = new(described).with_results(table(), (2.5, 4, 60), {"device": "cpu"})
    assert not new(described).is_measured
    raw = json.loads(store.save(made).read_text())
    assert raw["rows"][0]["share"] is None  # no NaN in JSON
    (found,) = store.records(described.identity)
    pd.testing.assert_frame_equal(found.table, table())
    assert (found.ranked, found.full_loss, found.num_tokens) == (RANKED, 2.5, 60)
    assert store.find(new(described)).is_measured
    assert store.records("f" * 64) == []


def test_what_changes_the_numbers_makes_another_record(described):
    known = new(described).digest
    others = [
        new(described, RankedBy("man", "applied", ("text",), (), "expert", Binning(3))),
        new(described, RankedBy("reap", "applied", ("text",), (), "expert", Binning(3, "global"))),
        new(
            described,
            RankedBy("reap", "applied", ("text",), (), "expert", Binning(3, order="index")),
        ),
        new(described, corpus=CORPUS | {"digest": "d" * 64}),
        new(described, settings=SETTINGS | {"dtype": "bfloat16"}),
    ]
    assert len({known, *(each.digest for each in others)}) == 6
    # Made again with more groups a run has another id and the same numbers.
    again = RankedBy("reap", "applied", ("text",), ("run-2",), "expert", Binning(3))
    assert new(described, again).digest == known


def test_overview_by_hand(described):
    made = new(described).with_results(table(), (2.5, 4, 60), {})
    (row,) = bins_overview([made]).to_dict("records")
    assert (row["bins"], row["removed"], row["first"], row["last"]) == (3, 21, 0.1, 0.2)
    # Ranks of the changes 1, 3, 2 against 1, 2, 3: 1 - 6 (0 + 1 + 1) / (3 * 8).
    assert row["agreement"] == pytest.approx(0.5)


def test_a_loss_that_is_no_number_is_refused(described):
    with pytest.raises(StatsError, match="try --dtype bfloat16 or float32"):
        new(described).with_results(table((0.1, math.inf, 0.2)), (2.5, 4, 60), {})
