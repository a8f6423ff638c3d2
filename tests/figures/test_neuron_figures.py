"""Figures of neurons: they draw the table, sentences say it, payloads stay small."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from shipped import shipped_results

from analysis.files.shipped import SHIPPED_STATS
from app.charts import loss_bins, same_bytes
from app.charts import neurons as charts
from pruning.measures.result import SampleCount
from pruning.records.bins import BIN_COLUMNS
from pruning.records.evaluation import EvaluationStore


@pytest.fixture
def shares():
    rows = [(1, 0, 4, 4, 0.0), (1, 1, 4, 1, 0.75), (3, 0, 4, 0, 1.0), (3, 1, 4, 1, 0.75)]
    return pd.DataFrame(rows, columns=["layer", "expert", "neurons", "removed", "kept_share"])


def test_a_map_of_more_experts_than_marks_says_the_same_in_its_cells(shares, monkeypatch):
    _, marks = charts.kept_share_map(shares).data
    monkeypatch.setattr(charts, "MOST_TARGETS", 3)
    (heat,) = charts.kept_share_map(shares).data
    assert np.asarray(heat.customdata).tolist() == [[4, 1], [0, 1]]
    assert heat.hovertemplate == marks.hovertemplate
    assert heat.hoverinfo is None


def test_lines_over_many_layers_have_no_marks_that_would_run_together():
    def modes(layers):
        table = pd.DataFrame({"series": "Global", "layer": range(layers), "share": 0.5})
        return {line.mode for line in charts.layer_lines(table).data}

    assert (modes(48), modes(61)) == ({"lines+markers"}, {"lines"})


def test_the_map_is_the_table_with_one_expert_outlined(shares):
    fig = charts.kept_share_map(shares, marked=(3, 1))
    heat, marks = fig.data
    assert np.asarray(heat.z).tolist() == [[0, 75], [100, 75]]
    assert list(marks.customdata) == [4, 1, 0, 1]
    # A click on a mark says its layer and expert.
    points = [{"x": x, "y": y} for x, y in zip(marks.x, marks.y, strict=True)]
    clicked = [charts.clicked_expert({"selection": {"points": [point]}}) for point in points]
    assert clicked == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert charts.clicked_expert({"selection": {"points": []}}) is None
    # Decoder indices, also where layers between are dense.
    assert list(heat.y) == list(fig.layout.yaxis.ticktext) == ["1", "3"]
    *_, mark = fig.layout.shapes
    assert (mark.x0, mark.y0) == (0.5, 0.5)
    assert not charts.kept_share_map(shares, marked=(2, 1)).layout.shapes
    assert charts.describe_kept(shares) == (
        "6 of 16 neurons go (37.5%); experts keep 0% to 100% of theirs: 1 of 4 keep all, 1 keep "
        "none."
    )


@pytest.fixture
def beside(shares):
    # The dearest expert of layer 1 and the cheapest of layer 3 would stay and go.
    return shares.assign(
        saliency=[1.0, 2.0, 4.0, 3.0], gone=[True, False, False, True], tenth=[0, 5, 5, 0]
    )


def test_tenths_of_experts_and_what_they_lose(beside):
    fig = charts.removed_by_tenth(beside)
    assert list(fig.data[0].x) == ["1", "6"]
    assert list(fig.data[0].y) == [5 / 8, 1 / 8]
    assert fig.layout.shapes[0].y0 == 6 / 16
    # Kept shares 0, .75, 1, .75 against saliencies 1, 2, 4, 3: ranks 1, 2.5, 4, 2.5 and 1, 2, 4, 3.
    expected = np.corrcoef([1, 2.5, 4, 2.5], [1, 2, 4, 3])[0, 1]
    assert charts.describe_tenths(beside) == (
        "83% of the pruned neurons are in experts that whole-expert HEAPr prunes at the same "
        "sparsity (by chance 50%); rank correlation of an expert's saliency with the share it "
        f"keeps: {expected:.2f}."
    )
    assert "cannot be compared" in charts.describe_tenths(beside.assign(kept_share=0.5))
    assert "nothing to compare" in charts.describe_tenths(beside.assign(removed=0))


@pytest.fixture
def layers():
    histogram = pd.DataFrame(
        {
            "layer": [2, 2, 5, 5],
            "low": [1.0, 10.0] * 2,
            "high": [10.0, 100.0] * 2,
            "kept": [1, 3, 0, 2],
            "pruned": [4, 0, 2, 0],
        }
    )
    cuts = pd.DataFrame(
        {
            "layer": [2, 5],
            "neurons": [8, 5],
            "removed": [4, 2],
            "cut": [5.0, math.nan],
            "zeros": [0, 1],
        }
    )
    return histogram, cuts


def test_rows_of_layers_with_their_cut(layers):
    heat, line = charts.saliency_by_layer(*layers).data
    np.testing.assert_allclose(heat.x, [0.5, 1.5])
    np.testing.assert_allclose(heat.z, [[5 / 8, 3 / 8], [2 / 4, 2 / 4]])
    assert np.asarray(heat.customdata).tolist() == [[[5, 4, 2], [3, 0, 2]], [[2, 2, 5], [2, 0, 5]]]
    # Layer 5 has no cut: nothing above 0 goes there.
    np.testing.assert_allclose([x for x in line.x if x is not None], np.log10([5, 5]))
    assert [y for y in line.y if y is not None] == [-0.5, 0.5]
    assert charts.describe_saliency(layers[1]) == (
        "Layer 2 loses most of its neurons (50.0%), layer 5 least (40.0%). 1 neurons have saliency "
        "0 and are not drawn."
    )
    alike = layers[1].assign(neurons=[8, 4], zeros=0)
    assert charts.describe_saliency(alike) == "Every layer loses 50.0% of its neurons."


def neurons(count, stay):
    values = np.linspace(10, 0.1, count)
    kept = np.arange(count) < stay
    return pd.DataFrame(
        {"rank": range(count), "neuron": range(count), "saliency": values, "kept": kept}
    )


def test_every_neuron_of_a_narrow_expert_is_a_bar():
    kept, pruned = charts.neuron_bars(neurons(5, 2)).data
    assert list(kept.x) == [1, 2]
    assert list(pruned.x) == [3, 4, 5]
    np.testing.assert_allclose([*kept.y, *pruned.y], np.linspace(10, 0.1, 5))
    held = (10 + 7.525) / np.linspace(10, 0.1, 5).sum()
    assert charts.describe_neurons(neurons(5, 2)) == (
        f"2 of 5 neurons stay and hold {held:.1%} of the expert's saliency."
    )


def test_bars_of_a_wide_expert_part_at_the_cut():
    table = neurons(14_336, 5_000)
    kept, pruned = charts.neuron_bars(table).data
    assert len(kept.x) + len(pruned.x) <= charts.MOST_BARS + 1
    assert sum(kept.width) == 5_000
    assert sum(pruned.width) == 9_336
    # The bar at the cut stands for kept neurons only, and is their mean.
    last = int(kept.customdata[-1][0]) - 1
    assert kept.y[-1] == pytest.approx(table["saliency"][last:5_000].mean())


def test_bins_stand_beside_their_share():
    rows = [(0, 3, 1.0, 0.25, 0.1, 0.05, 0.2, 0.1), (1, 3, 3.0, 0.75, 0.3, 0.1, 0.4, 0.3)]
    table = pd.DataFrame(rows, columns=list(BIN_COLUMNS))
    drawn = partial(loss_bins.loss_bins, criterion="heapr", order="saliency")
    bars, shares = drawn(table, granularity="neuron").data
    assert list(bars.x) == ["1", "2"]
    np.testing.assert_allclose(bars.error_y.array, [0.1, 0.1])
    np.testing.assert_allclose(bars.error_y.arrayminus, [0.05, 0.2])
    np.testing.assert_allclose(shares.y, [0.25 * 0.4, 0.75 * 0.4])
    # A saliency below 0, as AIMER's, has no shares.
    negative = table.assign(saliency=[-3.0, -1.0], share=[0.75, 0.25])
    assert len(drawn(negative, granularity="expert").data) == 1
    assert len(drawn(table.assign(loss_change=0.0), granularity="expert").data) == 1


@pytest.mark.parametrize(
    ("agreement", "words"),
    [
        (
            1.0,
            "orders them right: rank correlation with the true loss increase 1.00 over 2 bins, on ",
        ),
        (0.9, "orders them right"),
        (0.7, "orders them roughly right"),
        (0.2, "hardly predicts the loss"),
        (-0.8, "orders them in reverse"),
        (math.nan, "is equal for all bins"),
    ],
)
def test_the_verdict_follows_the_rank_correlation(agreement, words):
    table = pd.DataFrame({"loss_change": [0.1, -0.2]})
    said = loss_bins.describe(table, agreement, "HEAPr", SampleCount(64, 5))
    assert said.startswith(f"HEAPr {words}")
    assert math.isnan(agreement) or "on 64 samples of 5 documents" in said
    assert said.endswith("the first bin costs +0.1000 nats per token, the last -0.2000.")


def test_chance_is_what_random_orders_reach():
    generator = np.random.default_rng(0)
    orders = generator.permuted(np.tile(np.arange(10), (20_000, 1)), axis=1)
    # Of ranks 0..9: the covariance with 0..9 over the variance, 8.25.
    draws = ((orders - 4.5) @ (np.arange(10) - 4.5)) / 10 / 8.25
    # Student's t is an approximation: 0.549 against the exact 0.564.
    assert loss_bins.chance_agreement(10) == pytest.approx(np.quantile(draws, 0.95), abs=0.03)
    assert loss_bins.chance_agreement(3) == 1.0


def candidate(corpus, granularity, name, change, esap=(0.4, 0.6), *, repaired_on=""):
    return (corpus, granularity, name, repaired_on, 0.4, 100, 2 + change, 2.0, change, 0.5, *esap)


@pytest.fixture
def candidates():
    rows = [
        candidate("a", "neuron", "HEAPr, neurons global", 0.1),
        candidate("a", "expert", "REAP, experts uniform", 0.3, (0.1, 0.2)),
        candidate("b", "neuron", "HEAPr, neurons global", 0.5),
        candidate("b", "expert", "REAP, experts uniform", 0.2),
    ]
    return pd.DataFrame(rows, columns=list(same_bytes.SAME_BYTES_COLUMNS))


def test_the_claim_of_the_paper_is_about_plans_without_a_repair(candidates):
    repaired = candidate("a", "expert", "REAP, experts uniform + repair", 0.05, repaired_on="a")
    columns = list(same_bytes.SAME_BYTES_COLUMNS)
    said = same_bytes.describe(
        pd.concat([candidates, pd.DataFrame([repaired], columns=columns)], ignore_index=True)
    )
    assert "REAP, experts uniform + repair loses least on a" in said
    assert said.endswith("less than every unrepaired plan of whole experts here on 1 of 2 corpora.")


def test_the_sentence_names_who_loses_least_also_when_it_is_not_heapr(candidates):
    said = same_bytes.describe(candidates)
    assert said.startswith(
        "With 40.0% of the expert weights gone, at the same bytes, HEAPr, neurons global loses "
        "least on a; REAP, experts uniform loses least on b."
    )
    assert "a: HEAPr, neurons global +0.100 nats, next REAP" in said
    assert said.count("too close to call") == 1  # on b, where the intervals of ESAP overlap
    assert said.endswith("than every plan of whole experts here on 1 of 2 corpora.")
    alone = candidates[candidates["granularity"] == "expert"]
    assert "HEAPr-G" not in same_bytes.describe(alone)


def test_a_loss_that_rounds_to_nothing_has_no_minus(candidates):
    almost = candidates.assign(change=[-0.0006, -0.0004, -0.00049, 0.0004])
    said = same_bytes.describe(almost)
    assert "a: HEAPr, neurons global -0.001 nats, next REAP, experts uniform +0.000" in said
    assert "b: HEAPr, neurons global +0.000 nats, next REAP, experts uniform +0.000" in said


def test_figures_of_a_large_model_stay_small():
    layers, experts = np.divmod(np.arange(48 * 128), 128)
    shares = np.random.default_rng(0).random(48 * 128)
    table = pd.DataFrame(
        {
            "layer": layers,
            "expert": experts,
            "neurons": 768,
            "removed": (768 * (1 - shares)).astype(int),
            "kept_share": shares,
        }
    )
    histogram = pd.DataFrame(
        {
            "layer": np.repeat(np.arange(48), 48),
            "low": np.tile(np.logspace(-9, -3, 48), 48),
            "high": np.tile(np.logspace(-8.9, -2.9, 48), 48),
            "kept": 700,
            "pruned": 900,
        }
    )
    cuts = pd.DataFrame(
        {"layer": range(48), "neurons": 98_304, "removed": 9, "cut": 1e-5, "zeros": 0}
    )
    for fig in (
        charts.kept_share_map(table),
        charts.saliency_by_layer(histogram, cuts),
        charts.neuron_bars(neurons(14_336, 5_000)),
    ):
        assert len(fig.to_json()) <= 64 * 1024


def test_candidates_stand_on_the_same_row_of_every_text(candidates):
    fig = same_bytes.same_bytes(candidates)
    points = {(t.xaxis, t.name): (list(t.x), list(t.y)) for t in fig.data}
    assert points["x", "neurons"] == ([0.1], ["HEAPr, neurons global"])
    assert points["x2", "whole experts"] == ([0.2], ["REAP, experts uniform"])
    # Mean change 0.3 against 0.25.
    assert fig.layout.yaxis.categoryarray[0].startswith("REAP")


def test_draws_of_random_are_one_candidate_of_the_same_bytes():
    table = same_bytes.same_bytes_table(EvaluationStore([SHIPPED_STATS]).records())
    assert not table.duplicated(["removed", "corpus", "candidate"]).any()
    assert not table["candidate"].str.contains("draw").any()
    table = table[table["removed"].round(2) == 0.4]  # 77 of 192
    rows = table[table["candidate"] == "Random, experts uniform"].set_index("corpus")
    changes = {}
    for raw in shipped_results("demo-random"):
        if raw["plan"]["experts_after"] == 192 - 77 and raw["plan"]["granularity"] == "expert":
            change = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
            changes.setdefault(raw["corpus"]["name"], []).append(change)
    # Nothing is calibrated on demo-recipes: there no plan is ranked and measured on one corpus.
    assert set(rows.index) == changes.keys() - {"demo-recipes"}
    for corpus, change in rows["change"].items():
        assert len(changes[corpus]) == 5
        assert change == pytest.approx(sum(changes[corpus]) / 5)


def test_what_was_computed_in_another_dtype_is_no_candidate_of_the_same_bytes():
    records = EvaluationStore([SHIPPED_STATS]).records()
    update = {"record_id": "other", "settings": {**records[0].settings, "dtype": "bfloat16"}}
    others = [record.model_copy(update=update) for record in records[:100]]
    before, after = map(same_bytes.same_bytes_table, (records, [*records, *others]))
    pd.testing.assert_frame_equal(before, after)


@pytest.fixture
def by_layer():
    rows = [("25%", 2, 0.1), ("25%", 5, 0.4), ("50%", 2, 0.7), ("50%", 5, 0.3)]
    return pd.DataFrame(rows, columns=["series", "layer", "share"])


def test_layers_have_a_line_for_each_series(by_layer):
    quarter, half = charts.layer_lines(by_layer, dark=True).data
    assert (quarter.name, half.name) == ("25%", "50%")
    assert list(quarter.x) == [2, 5]
    assert list(half.y) == [0.7, 0.3]
    assert charts.describe_layers(by_layer) == (
        "25% removes most in layer 5 (40%), least in layer 2 (10%); 50% removes most in layer 2 "
        "(70%), least in layer 5 (30%)."
    )
    even = by_layer.assign(share=0.4)
    assert charts.describe_layers(even) == (
        "25% removes 40% in every layer; 50% removes 40% in every layer."
    )


def test_flops_lie_beside_what_equal_use_would_save():
    rows = [("global", 0.2, 0.1), ("global", 0.4, 0.25), ("layer", 0.3, 0.3)]
    table = pd.DataFrame(rows, columns=["series", "removed", "reduction"])
    even, first, second = charts.flops_lines(table).data
    assert list(even.x) == list(even.y) == [0, 0.4]
    assert (list(first.x), list(first.y)) == ([0.2, 0.4], [0.1, 0.25])
    assert (second.name, list(second.y)) == ("layer", [0.3])
    assert charts.describe_flops(table) == (
        "FLOPs of experts saved per token by the measured routing: global 25% with 40% of neurons "
        "gone; layer 30% with 30% of neurons gone."
    )
    unmeasured = charts.flops_lines(table, measured=False).layout.yaxis.title.text
    assert "equally often" in unmeasured
    assert "if experts are chosen equally often" in charts.describe_flops(table, measured=False)
