"""Explore, of neurons: what the page says against plain numpy on the shipped files, every state."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from page_texts import ALL_CORPORA, loaded_on, opened, table_with, texts

from analysis.criteria import get_criterion
from analysis.files.shipped import SHIPPED_STATS
from app.pages.explore.evidence import random_note
from pruning.records.bins import BinsStore

NEURONS = {"granularity": "neuron", "neuron_scope": "global"}
CAMERA = {"granularity": "neuron", "criterion": "camera-p", "neuron_scope": "layer"}
PER_LAYER = 32 * 64


@pytest.fixture(scope="module")
def heapr():
    """Corpus -> HEAPr of every neuron of the demo, from the files: 1/2 mean a^2 * mean slope^2."""
    found = {}
    for path in sorted(SHIPPED_STATS.glob("demo-demo-*/neurons.parquet")):
        corpus = json.loads(path.with_name("manifest.json").read_text())["corpora"][0]["name"]
        tokens = pd.read_parquet(path.with_name("experts.parquet"))["num_tokens"].to_numpy()
        table = pd.read_parquet(path)
        counts = np.repeat(tokens, 64).astype(float)
        score = np.zeros(len(table))
        used = counts > 0
        product = table["output_sq"].to_numpy() * table["slope_sq"].to_numpy()
        score[used] = 0.5 * product[used] / counts[used] ** 2
        found[corpus] = score
    return found


def test_what_stays_of_each_expert(open_page, heapr):
    test = open_page("explore", sparsity="25%", **NEURONS)
    table = table_with(opened(test, "neurons-kept"), "kept_share", "removed")
    removed = np.bincount([n // 64 for n in lowest(heapr["demo-code"], 0.25)], minlength=192)
    assert table["removed"].tolist() == removed.tolist()
    assert table["kept_share"].tolist() == pytest.approx((1 - removed / 64).tolist())
    assert any(text.startswith("3,072 of 12,288 neurons go") for text in texts(test.markdown))


@pytest.mark.parametrize(
    "address",
    [
        {},
        {"protect": "1"},
        {"budget": "params", "params_share": "30%"},
        {"neuron_scope": "layer"},
        {"schedule": "measured"},
    ],
)
def test_the_map_and_its_counts_are_those_of_the_plan(open_page, address):
    test = open_page("explore", granularity="neuron", **address)
    assert test.title[0].value == "Which neurons does each criterion keep?"
    plan = loaded_on(test).shown.plan
    table = table_with(opened(test, "neurons-kept"), "kept_share", "removed")
    for row in table.itertuples():
        ids = plan.kept_neurons.get(row.layer, {}).get(row.expert, range(row.neurons))
        stays = row.expert in plan.kept.get(row.layer, range(32))
        assert row.removed == row.neurons - stays * len(ids)
    count = f"{table['removed'].sum():,} of 12,288 neurons go"
    assert any(text.startswith(count) for text in texts(test.markdown))


def test_experts_that_lose_the_same_share_are_told_apart_by_the_saliency_they_keep(
    open_page, heapr
):
    test = open_page("explore", granularity="neuron")
    table = table_with(opened(test, "neurons-kept"), "kept_share", "kept_saliency")
    assert set(table["kept_share"]) == {0.5}
    own = np.sort(heapr["demo-code"].reshape(192, 64))
    stays, whole = own[:, 32:].sum(axis=1), own.sum(axis=1)
    used = whole > 0  # by any token
    np.testing.assert_allclose(table["kept_saliency"][used], stays[used] / whole[used], rtol=1e-9)
    assert set(table["kept_saliency"][~used]) <= {1.0}
    assert any("every expert keeps 50%" in text for text in texts(test.markdown))


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_overlap_of_corpora_is_that_of_the_sets(open_page, heapr, scope):
    test = open_page("explore", inside="Corpora", **NEURONS | {"neuron_scope": scope})
    table = table_with(opened(test, "neuron-overlap"), "corpus_a", "overlap", "chance")
    for row in table.itertuples():
        parts = [np.split(heapr[corpus], 6) for corpus in (row.corpus_a, row.corpus_b)]
        if scope == "global":
            sets = [lowest(heapr[corpus], 0.5) for corpus in (row.corpus_a, row.corpus_b)]
            expected = len(sets[0] & sets[1]) / 6144
        else:
            pairs = zip(*parts, strict=True)
            shared = [len(lowest(a, 0.5) & lowest(b, 0.5)) / (PER_LAYER / 2) for a, b in pairs]
            expected = np.mean(shared)
        assert row.overlap == pytest.approx(expected)
    assert len(table) == 3
    assert set(table["chance"]) == {0.5}
    (metric,) = (card for card in test.metric if card.label == "Overlap across corpora")
    assert metric.value == f"{table['overlap'].mean():.0%}"


def test_neurons_beside_whole_experts(open_page, heapr):
    test = open_page("explore", inside="Whole experts", **NEURONS)
    table = table_with(opened(test, "neurons-beside-experts"), "saliency", "gone")
    whole = heapr["demo-code"].reshape(192, 64).sum(axis=1)
    np.testing.assert_allclose(table["saliency"], whole, rtol=1e-9)
    least = whole.reshape(6, 32).argsort(axis=1)[:, :16]
    expected = {32 * layer + expert for layer in range(6) for expert in least[layer]}
    assert set(np.flatnonzero(table["gone"])) == expected
    inside = np.mean([n // 64 in expected for n in lowest(heapr["demo-code"], 0.5)])
    (metric,) = (card for card in test.metric if card.label == "In experts pruned whole")
    assert metric.value == f"{inside:.0%}"


def test_neurons_of_the_chosen_expert(open_page, heapr):
    test = open_page("explore", inside="One expert", expert="3.7", **NEURONS)
    table = table_with(opened(test, "neurons-of-expert-3.7"), "neuron", "saliency", "kept")
    own = heapr["demo-code"].reshape(6, 32, 64)[3, 7]
    assert table["neuron"].tolist() == np.argsort(-own, kind="stable").tolist()
    first = (3 * 32 + 7) * 64
    pruned = {n - first for n in lowest(heapr["demo-code"], 0.5) if first <= n < first + 64}
    assert set(table.loc[~table["kept"], "neuron"]) == pruned
    assert any("expert 7 in layer 3" in text for text in texts(test.markdown))


def test_a_model_without_statistics_of_neurons_says_what_to_collect(open_page):
    test = open_page("explore", "once", **NEURONS)
    assert texts(test.error) == []
    assert any("needs statistics per neuron" in text for text in texts(test.info))
    assert any("gradient" in code for code in texts(test.code))


def test_camera_p_of_a_blend_is_refused_and_said(open_page):
    test = open_page("explore", corpora=ALL_CORPORA, **CAMERA)
    assert any("maxima, which a blend does not have" in text for text in texts(test.info))


def test_lambda_is_in_the_address_and_in_the_command(open_page):
    test = open_page("explore", **CAMERA | {"criterion": "camera-p:0.5"})
    assert any("**CAMERA-P, lambda 0.5, " in text for text in texts(test.markdown))
    assert any("--criterion camera-p:0.5" in code for code in texts(test.code))
    usual = open_page("explore", **CAMERA)
    assert any("--criterion camera-p --" in code for code in texts(usual.code))
    open_page("explore", refused="camera-p:-3", **CAMERA | {"criterion": "camera-p:-3"})
    open_page("explore", refused="camera-p:200", **CAMERA | {"criterion": "camera-p:200"})


def test_the_command_makes_the_plan_of_the_page(open_page, tmp_path, run):
    test = open_page("explore", sparsity="25%", corpora="demo-math", **NEURONS)
    table = table_with(opened(test, "neurons-kept"), "kept_share", "removed")
    run(next(code for code in texts(test.code) if "moeprune plan" in code))
    neurons = json.loads((tmp_path / "plan.json").read_text())["kept_neurons"]
    for row in table.itertuples():
        kept = neurons.get(str(row.layer), {}).get(str(row.expert))
        assert row.removed == (0 if kept is None else 64 - len(kept))


@pytest.mark.parametrize(
    ("part", "chart"),
    [("Saliency", "neuron-saliency"), ("Score and loss", "neuron-loss-bins")],
)
def test_the_plot_command_draws_the_numbers_of_the_page(open_page, tmp_path, run, part, chart):
    test = opened(open_page("explore", inside=part, corpora="demo-math", **NEURONS), chart)
    (command,) = (code for code in texts(test.code) if f"moeprune plot {chart} " in code)
    run(command.replace(".svg", ".csv"))
    drawn = pd.read_csv(tmp_path / f"{chart}.csv")
    shown = table_with(test, *drawn.columns)
    pd.testing.assert_frame_equal(drawn, shown.reset_index(drop=True), check_dtype=False)


@pytest.mark.parametrize(
    "scope", [{"neuron_scope": "layer"}, {"neuron_scope": "expert"}, {"schedule": "measured"}]
)
def test_the_command_of_a_chart_draws_the_plan_on_screen(open_page, tmp_path, run, scope):
    test = open_page("explore", granularity="neuron", protect="1", **scope)
    (command,) = [
        code
        for code in texts(opened(test, "neurons-kept").code)
        if "moeprune plot neurons-kept " in code
    ]
    run(command.replace(".svg", ".csv"))
    drawn = pd.read_csv(tmp_path / "neurons-kept.csv")
    pd.testing.assert_frame_equal(drawn, table_with(test, *drawn.columns), check_dtype=False)


def _rank_correlation(rows):
    """Pearson's, of the ranks of the saliency and of the loss increase over bins."""
    ranks = (pd.Series([row[name] for row in rows]).rank() for name in ("saliency", "loss_change"))
    return np.corrcoef(*ranks)[0, 1]


class TestScoreAndLoss:
    def test_shipped_records_of_both_granularities(self, open_page):
        neurons = open_page("explore", inside="Score and loss", **NEURONS)
        table = opened(neurons, "neuron-loss-bins").dataframe[0].value
        assert table["removed"].sum() == 12_288
        said = texts(neurons.text)
        agreed = {
            record.ranked.criterion: _rank_correlation([asdict(row) for row in record.rows])
            for record in BinsStore([SHIPPED_STATS]).records()
            if record.corpus["name"] == "demo-code"
            and record.ranked.granularity == "neuron"
            and record.ranked.how.order == "saliency"
        }
        best = max(agreed, key=agreed.get)
        words = f"follows the true loss best (rank correlation {agreed[best]:.2f})"
        assert any(f"{get_criterion(best).label} {words}" in text for text in said)
        experts = open_page("explore", **{"tab": "Evidence", "evidence.view": "Score and loss"})
        overview = table_with(experts, "calibration", "agreement")
        assert set(overview["score"]) == {"REAP", "Frequency", "AIMER", "MAN", "HEAPr", "Random"}
        assert overview["agreement"].is_monotonic_decreasing
        assert any(text.startswith("Random is a single draw") for text in texts(experts.text))

    def test_a_measurement_is_queued_as_the_command_says(self, open_page, queued_jobs):
        test = open_page("explore", inside="Score and loss", **NEURONS)
        test.selectbox(key="bins.neuron.criterion").set_value("camera-p")
        test.selectbox(key="bins.neuron.corpora").set_value("demo-math")
        next(button for button in test.button if button.label == "Run measurement").click().run()
        assert not test.exception
        (job,) = queued_jobs()
        assert (job.request["criterion"], job.request["corpora"]) == ("camera-p", ["demo-math"])
        assert job.title == "bins of neurons of demo by camera-p"
        assert "moeprune bins demo --corpus demo-math --criterion camera-p" in job.command

    @pytest.fixture
    def stats_dir(self, folders, tmp_path):
        folder = shutil.copytree(folders[1], tmp_path / "stats")
        (folder / "bins").mkdir()
        (folder / "bins" / "demo-broken.json").write_text("{")
        return folder

    def test_a_damaged_record_is_named_and_left_out(self, open_page):
        test = open_page("explore", inside="Score and loss", **NEURONS)
        assert any("demo-broken.json" in text for text in texts(test.warning))
        assert test.get("plotly_chart")


def test_who_loses_least_at_the_same_bytes(open_page):
    test = open_page("explore", inside="Same bytes", **NEURONS)
    table = opened(test, "same-bytes").dataframe[0].value
    # Nothing is calibrated on demo-recipes, so no plan is ranked and measured on it.
    assert set(table["corpus"]) == {*ALL_CORPORA}
    spread = table.groupby("corpus")["bytes"].agg(["min", "max"])
    assert ((spread["max"] - spread["min"]) / spread["min"] < 0.01).all()
    said = " ".join(texts(test.text))
    for corpus, rows in table.groupby("corpus"):
        best = rows.sort_values("change").iloc[0]
        assert f"{corpus}: {best['candidate']} {best['change']:+z.3f} nats" in said
    own = table[table["candidate"] == "HEAPr, neurons global"].set_index("corpus")["change"]
    others = table[table["granularity"] == "expert"].groupby("corpus")["change"].min()
    assert f"whole experts here on {(own < others).sum()} of 3 corpora" in said


def test_a_model_without_evaluations_of_one_size_says_how_to_make_them(open_page):
    test = open_page("explore", "weighed", inside="Same bytes", criterion="neuron-norms", **NEURONS)
    assert any("no evaluations of neuron and whole-expert plans" in t for t in texts(test.info))
    assert any("moeprune evaluate" in code for code in texts(test.code))


def lowest(scores, share):
    """Places of so many; of equal scores the later."""
    order = np.lexsort((-np.arange(len(scores)), scores))
    return set(order[: int(len(scores) * share)].tolist())


@pytest.mark.parametrize(
    "address",
    [
        {"inside": "Nowhere"},
        {"inside": "Score and loss", "bins.text": "x", "bins.score": "y"},
        {"inside": "One expert", "expert": "99.99"},
    ],
)
def test_addresses_that_say_nonsense_show_the_usual(open_page, address):
    test = open_page("explore", **NEURONS | address)
    assert texts(test.error) == []
    assert test.get("plotly_chart")


@pytest.mark.parametrize(("agreement", "place"), [(0.64, "above"), (0.5, "below")])
def test_random_is_said_to_be_one_draw(agreement, place):
    # Of ten bins 0.549 is the quantile: t(0.95, 8 degrees) = 1.8595, r = t / sqrt(8 + t^2).
    row = {"criterion": "random", "order": "saliency", "bins": 10, "agreement": agreement}
    note = random_note(pd.DataFrame([row]))
    assert "a single draw" in note
    assert f"19 of 20 draws stay below 0.55, this one is {place}." in note
    assert random_note(pd.DataFrame([row | {"criterion": "reap"}])) == ""
    assert random_note(pd.DataFrame([row | {"order": "index"}])) == ""
