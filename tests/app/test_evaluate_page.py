"""Evaluate: the model's own results, and the papers' tables, weighed as the address says."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from page_texts import command, press
from result_charts import drawn

from analysis.drain import drain
from analysis.ranking.published import published_table
from app.charts.evaluation_curves import leading_series
from app.charts.evaluations import ALL_CORPORA, evaluation_results, pool_draws
from app.charts.published import TABLES, published_settings
from builders import ROWS
from builders.measured import altered, sums
from pruning.actions.sweep import ACTION
from pruning.requests.evaluation import SweepRequest


def table_of(test):
    """The leaderboard: the first table of the page."""
    return test.dataframe[0].value.set_index("candidate")


@pytest.mark.parametrize("table", list(TABLES))
def test_every_table_has_a_leaderboard(open_page, table):
    test = open_page("evaluate", results="The papers", published=TABLES[table])
    first = published_settings(table)[0]
    rows = published_table(table)
    rows = rows[(rows["model"] == first.model) & rows["sparsity"].isin([0, first.sparsity])]
    assert len(table_of(test)) == len(rows[["criterion", "schedule"]].drop_duplicates())
    profile, winners = (json.loads(chart.proto.spec) for chart in test.get("plotly_chart"))
    assert {trace["type"] for trace in profile["data"]} == {"scatter"}
    assert winners["data"][0]["type"] == "heatmap"


def test_numbers_are_the_papers(open_page):
    test = open_page("evaluate", results="The papers")
    row = table_of(test).loc["MAN"]
    # OLMoE at 25%, Table 5 of the unified paper.
    assert (row["GSM8K"], row["WildBench"], row["RTE"]) == (0.208, 0.260, 0.639)
    # Sixteen benchmarks, their average and the average rank.
    assert any("has 18 numeric columns; scroll" in text.value for text in test.text)
    # The average of two abilities alone; of none, all count alike.
    before = table_of(test)["average"]
    for ability in ("coding", "writing", "multiple choice"):
        test.select_slider(key=f"weight.{ability}").set_value(0.0)
    test.run()
    assert table_of(test).loc["MAN", "average"] == pytest.approx((0.208 + 0.046) / 2)
    assert before["MAN"] != table_of(test).loc["MAN", "average"]
    for slider in test.select_slider:
        if slider.key and slider.key.startswith("weight."):
            slider.set_value(0.0)
    test.run()
    assert "equal weights are used" in test.warning[0].value
    assert table_of(test)["average"].equals(before)


@pytest.fixture(scope="module")
def swept(folders):
    """Evaluations of `once` by two criteria at a third removed: 6 experts a layer, 2 go."""
    models, stats = folders
    request = SweepRequest(
        model=str(models / "once"),
        corpora=(str(models / "rows.jsonl"),),
        criteria=("reap", "random"),
        sparsities=("34%",),
        samples=3,
        seq_len=9,
        measures=("esap", "nll"),
        stats_dir=stats,
    )
    yield drain(ACTION.run(request))
    for folder in stats.glob("models/*/evaluations"):
        shutil.rmtree(folder)


def test_without_evaluations_the_page_says_what_to_do(open_page):
    test = open_page("evaluate", model="bare")
    assert any("No evaluations of this model yet" in info.value for info in test.info)
    assert command(test, "sweep")


def test_own_numbers_are_those_of_the_records(open_page, swept):
    test = open_page("evaluate", model="once")
    table = test.dataframe[0].value.set_index("candidate")
    pruned = {r.plan.criterion: r for r in swept if r.plan.removed}
    assert len(table) == 3 and table.index[0].startswith("yours")  # which was not measured
    for criterion, label in (("reap", f"REAP, on {ROWS}"), ("random", "Random")):
        record = pruned[criterion]
        assert table.loc[label, "mean"] == pytest.approx(
            record.metrics["nll"].mean - record.full["nll"].mean
        )
        assert table.loc[label, "bytes"] == record.plan.bytes_after
    # Loss: the lower, the better.
    assert table["mean"].dropna().is_monotonic_increasing
    # These are of experts.
    test = open_page("evaluate", model="once", granularity="neuron")
    assert any("No evaluations of plans that remove neurons" in info.value for info in test.info)


@pytest.mark.parametrize(
    ("measure", "against"),
    [("ESAP", "Sparsity"), ("Loss", "Memory"), ("Loss", "Active parameters")],
)
def test_every_measure_against_every_size(open_page, swept, measure, against):
    test = open_page("evaluate", model="once", measure=measure, against=against)
    curves, memory = (json.loads(chart.proto.spec) for chart in test.get("plotly_chart"))
    axis = {"ESAP": "ESAP", "Loss": "Loss, nats per token"}[measure]
    assert memory["layout"]["yaxis"]["title"]["text"] == axis
    assert curves["layout"]["yaxis"]["title"]["text"] == axis


def test_quality_against_memory_is_of_what_competes(swept):
    record = next(record for record in swept if record.plan.criterion == "reap")
    corpus = {**record.corpus, "digest": "of two"}
    fewer = altered(record, sums((1.0, 2.0)), record_id="fewer", corpus=corpus)
    results = evaluation_results([*swept, fewer])
    chart = drawn("pareto", results, measure="nll", corpus=ROWS)
    found = chart.table.set_index("candidate")
    assert sorted(found.index) == ["Original model", f"REAP, on {ROWS}, 33%", "Random, 33%"]
    for result in swept:
        rows = found[(found["value"] == result.metrics["nll"].mean)]
        assert result.plan.bytes_after in rows["bytes"].tolist()
    # Of the two of one size only the better one can be on the front.
    pruned = found[~found["is_full"]]
    assert pruned.loc[pruned["on_front"], "value"].tolist() in ([pruned["value"].min()], [])


@pytest.mark.parametrize("fitted_on", [ROWS, "other"])
def test_repaired_and_unrepaired_plans_are_two_series_and_two_candidates(swept, fitted_on):
    repair = {"repair": "r", "repaired_on": (fitted_on,)}
    fitted = [
        altered(
            record,
            record_id=f"{record.record_id}-repaired",
            plan_digest=f"repaired {record.plan_digest}",
            plan=record.plan.model_copy(update=repair),
        )
        for record in swept
        if record.plan.removed
    ]
    results = pool_draws(evaluation_results([*swept, *fitted]))
    on = "" if fitted_on == ROWS else " on other"
    names = {f"REAP, on {ROWS}", f"REAP, on {ROWS} + repair{on}"}
    assert set(results["series"]) == {"", *names, "Random", f"Random + repair on {fitted_on}"}
    assert set(results[results["repaired_on"] != ""]["evaluation"]) == {
        record.record_id for record in fitted
    }
    chart = drawn("pareto", results, measure="nll", corpus=ROWS)
    assert {f"{name}, 33%" for name in names} < set(chart.table["candidate"])


@pytest.mark.parametrize("way", ["32 samples of 8 tokens, seed 7", "other samples", "bfloat16"])
def test_what_was_measured_otherwise_is_a_series_of_its_own(swept, way):
    plain = evaluation_results(swept)
    assert plain["series"].str.contains("samples").sum() == 0
    reap = next(record for record in swept if record.plan.criterion == "reap")
    whole = next(record for record in swept if not record.plan.removed)
    update = {"settings": {**reap.settings, "dtype": way}}
    if "samples" in way:
        update = {"corpus": {**reap.corpus, "digest": "other"}}
    if "seed" in way:
        update["corpus"] |= {"seq_len": 8, "seed": 7}
        update |= {"own": sums((1.0,) * 32), "full": sums((1.0,) * 32)}
    other = [
        altered(record, **update, record_id=f"{record.record_id}-other") for record in (reap, whole)
    ]
    both = evaluation_results([*other, *swept])
    (name,) = set(plain["series"][plain["evaluation"] == reap.record_id])
    (second,) = set(both["series"][both["evaluation"] == other[0].record_id])
    assert second == f"{name}, {way}"
    # One row a measure for each name; the level that is drawn is the usual one, which comes first.
    pruned = both[both["series"] != ""]
    assert not pruned.duplicated(["corpus", "series", "removed", "measure"]).any()
    assert both[both["series"] == ""]["evaluation"].iloc[0] == whole.record_id


def test_all_corpora_is_the_mean_over_them_of_what_was_measured_on_all(swept):
    def moved(record, by):
        corpus = {**record.corpus, "name": "other.jsonl", "digest": "other"}
        losses = sums((by - 0.5, by, by + 0.5), documents=(0, 1, 2))
        return altered(record, losses, record_id=f"{record.record_id}-2", corpus=corpus)

    reap = next(record for record in swept if record.plan.criterion == "reap")
    whole = next(record for record in swept if not record.plan.removed)
    alone = altered(reap, record_id="alone", plan_digest="alone")
    other = moved(reap, 9.0)
    results = evaluation_results([*swept, alone, other, moved(whole, 1.0)])
    rows = results[(results["corpus"] == ALL_CORPORA) & (results["measure"] == "nll")]
    assert results["corpus"].iloc[0] == ALL_CORPORA
    # Random and the plan of one corpus were not measured on both.
    assert sorted(rows["plan"]) == sorted([reap.plan_digest, whole.plan_digest])
    row = rows[rows["plan"] == reap.plan_digest].iloc[0]
    own, second = reap.metrics["nll"], other.metrics["nll"]
    assert row["mean"] == pytest.approx((own.mean + 9) / 2)
    below = np.hypot(own.mean - own.low, 9 - second.low) / 2
    above = np.hypot(own.high - own.mean, second.high - 9) / 2
    assert (row["mean"] - row["low"], row["high"] - row["mean"]) == pytest.approx((below, above))
    curves = drawn("evaluation-curves", results, measure="nll")
    titles = [note.text for note in curves.figure(dark=False).layout.annotations]
    assert titles[0] == ALL_CORPORA
    # A corpus of its own is no mean of others.
    assert ALL_CORPORA not in set(evaluation_results(swept)["corpus"])


def test_each_blend_has_a_name_of_its_own(swept):
    reap = next(record for record in swept if record.plan.criterion == "reap")

    def on(*corpora):
        plan = reap.plan.model_copy(update={"corpora": corpora})
        digest = "+".join(corpora)
        return altered(reap, record_id=digest, plan=plan, plan_digest=digest)

    blends = on("a", "b"), on("a", "c"), on("a", "b", "c"), on("a:2", "b", "c"), on("a")
    assert set(evaluation_results(blends)["series"]) == {
        *("REAP, on blend of a, b", "REAP, on blend of a, c", "REAP, on blend of 3 corpora"),
        *("REAP, on blend of a:2, b, c", "REAP, on a"),
    }
    again = set(evaluation_results([on("a", "b", "c"), on("a", "b", "d")])["series"])
    assert len(again) == 2
    assert all(name.startswith("REAP, on blend of 3 corpora") for name in again)


def test_perplexities_over_corpora_are_those_of_the_mean_loss(swept):
    record = next(record for record in swept if not record.plan.removed)
    two = [
        altered(
            record,
            *(sums((np.log(value),) * 3, documents=(0, 0, 0)),) * 2,
            record_id=name,
            corpus={**record.corpus, "name": name},
            measures=("ppl",),
        )
        for name, value in (("a", 2.0), ("b", 8.0))
    ]
    rows = evaluation_results(two)
    row = rows[rows["corpus"] == ALL_CORPORA].iloc[0]
    assert (row["mean"], row["full"]) == pytest.approx((4.0, 4.0))
    assert np.isnan(row["low"])


def test_what_won_on_fewer_samples_leads_nothing(swept):
    record = next(record for record in swept if record.plan.criterion == "reap")
    corpus = {**record.corpus, "digest": "of two"}
    fewer = altered(record, sums((0.0, 0.0)), record_id="fewer", corpus=corpus)
    results = pool_draws(evaluation_results([*swept, fewer]))
    (name,) = set(results.loc[results["num_samples"] == 2, "series"])
    assert name not in leading_series(results, "nll", "expert")
    assert name not in drawn("evaluation-curves", results, measure="nll").alt


def test_the_form_shows_its_command(open_page):
    test = open_page("evaluate", model="once")
    test.segmented_control(key="evaluate.what").set_value("sweep").run()
    shown = command(test, "sweep")
    assert "--criterion reap --criterion frequency --criterion random " in shown
    assert " --sparsity 50% " in shown
    assert "rows.jsonl" in shown
    test.multiselect(key="evaluate.sparsities").set_value([])
    press(test)
    assert any("at least one" in text.value for text in test.text)


def test_draws_of_random_are_one_series_with_their_mean(swept):
    chance = next(record for record in swept if record.plan.criterion == "random")
    losses = chance.numbers[chance.plan_digest].sums["nll"]
    other = altered(
        chance,
        replace(losses, sums=losses.sums + losses.counts),
        record_id="other",
        plan_digest="other",
        plan=chance.plan.model_copy(update={"criterion": "random:2"}),
    )
    results = evaluation_results([*swept, other])
    pooled = pool_draws(results)
    assert sorted(set(pooled["series"])) == sorted(set(evaluation_results(swept)["series"]))
    (row,) = pooled[(pooled["series"] == "Random") & (pooled["measure"] == "nll")].to_dict(
        "records"
    )
    mean = chance.metrics["nll"].mean
    assert (row["criterion"], row["plan"]) == ("random", "")
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((mean + 0.5, mean, mean + 1))
    assert set(drawn("pareto", pooled, measure="nll").table["candidate"]) == {
        *("Original model", f"REAP, on {ROWS}, 33%", "Random, 33%")
    }
