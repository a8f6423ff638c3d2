"""Sensitivity on the pages: what it predicts of a plan, and the charts that explain a schedule."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from page_texts import (
    ALL_CORPORA,
    MEASURED_CORPORA,
    command,
    decoded,
    loaded_on,
    recipe_on,
    table_with,
    texts,
)
from shipped import shipped_losses

from app.charts import neuron_cut
from pruning.plan.neuron_cuts import expert_shares

SHIPPED = Path(__file__).parents[2] / "cached_stats"


@pytest.fixture
def open_measured(open_page):
    """Open a page whose controls are set to the order of the shipped curves of EAN."""
    return lambda page, **address: open_page(
        page, **{"criterion": "ean", "corpora": ALL_CORPORA, **address}
    )


@cache
def measured():
    """(plan, dtype, samples) -> the mean loss of each shipped block of curves."""
    found = {}
    for line in (SHIPPED / "measurements" / "demo-sensitivity.jsonl").read_text().splitlines():
        row = json.loads(line)
        key = row["plan"], row["dtype"], frozenset(row["sample"])
        assert key not in found
        losses = row["sum"][row["measure"].index("nll")]
        found[key] = float(np.mean(np.divide(losses, row["count"])))
    return found


@cache
def curve_losses(criterion, corpus):
    """(group, layer, removed) -> the mean loss of a point of the shipped curves."""
    (path,) = SHIPPED.glob(f"sensitivity/*{criterion}-{corpus}-*.json")
    record = json.loads(path.read_bytes())
    samples = frozenset(sample for sample, _ in record["samples"])
    dtype = record["settings"]["dtype"]
    points = {(*at, gone): plan for *at, gone, _, plan in record["points"]}
    return pd.Series({at: measured()[plan, dtype, samples] for at, plan in points.items()})


def added_losses(layer_removed, criterion="ean"):
    """Corpus -> the sum over layers of what losing so many adds, read without the program."""
    found = {}
    for corpus in MEASURED_CORPORA:
        means = curve_losses(criterion, corpus)
        original = means[("", -1, 0)]
        found[corpus] = sum(
            np.interp(gone, [0, *curve.index], [0.0, *(curve - original)])
            for layer, gone in layer_removed.items()
            for curve in [means.loc[("", layer)]]
        )
    return found


def bar(test):
    (line,) = (text for text in texts(test.markdown) if ":material/arrow_right_alt:" in text)
    return line


def predicted(test, added, kind="predicted", times=1.0):
    """The mean that the bar predicts, in its band: about `times` the sum."""
    numbers = re.search(
        rf"{kind} loss (\S+) \((\S+) to (\S+)\) mean, (\S+) worst \((\S+)\)", bar(test)
    )
    mean, low, high, worst = map(float, numbers.groups()[:4])
    assert low < mean < high and worst > mean and numbers[5] in added
    assert 0.6 < mean / (times * np.mean(list(added.values()))) < 1.7
    return mean


def test_the_bar_predicts_what_was_not_measured(open_measured, go_to):
    test = open_measured("explore", sparsity="40%")
    predicted(test, added_losses(dict.fromkeys(range(6), 12)))  # of 32, below 40%
    assert test.button(key="plan.measure").label == "Measure"
    # Each layer loses its last in this order, however many.
    go_to(test, "plan")
    test.segmented_control(key="schedule").set_value("global").run()
    kept = table_with(test, "keeps").set_index("layer")["keeps"]
    predicted(test, added_losses((32 - kept).to_dict()))
    # Layers that are nearly all ruined do not add up: at 75% their sum was measured to be too low.
    facts = {"criterion": "ean", "corpora": ALL_CORPORA, "schedule": "uniform", "sparsity": "75%"}
    (lost,) = shipped_losses(**facts).values()
    alone = added_losses(dict.fromkeys(range(6), 24))
    times = fmean(lost.values()) / fmean(alone.values())
    deep = open_measured("explore", sparsity="80%")
    predicted(deep, added_losses(dict.fromkeys(range(6), 25)), "a guess:", times)
    # Another order was not measured.
    assert "loss not measured" in bar(open_measured("explore", criterion="man", sparsity="40%"))


def test_where_both_are_known_plan_says_how_wrong_the_prediction_was(open_measured):
    test = open_measured("plan", sparsity="50%")
    assert "predicted" not in bar(test)
    (line,) = (text for text in texts(test.markdown) if "Layer sensitivity predicts" in text)
    numbers = re.search(r"(\S+) \((\S+) to (\S+)\) on demo-code, demo-.*; measured: (.+)\.", line)
    mean, low, high, measured = map(float, numbers.groups())
    assert low < mean < high and low < measured < high
    sums = added_losses(dict.fromkeys(range(6), 16))
    assert mean != pytest.approx(np.mean(list(sums.values())), abs=0.005)  # others correct it


def traces(test, name):
    return [
        trace
        for chart in test.get("plotly_chart")
        for trace in json.loads(chart.proto.spec)["data"]
        if trace.get("name") == name
    ]


def test_the_reason_of_a_layers_count_is_one_click_away(open_measured):
    test = open_measured("plan", sparsity="40%")
    table = table_with(test, "fewest").set_index("schedule")
    assert {"Uniform", "Global", "Measured"} <= set(table.index)
    uniform = added_losses(dict.fromkeys(range(6), 12))
    assert table.loc["Uniform", "predicted"] == pytest.approx(predicted(test, uniform), abs=0.006)
    assert traces(test, "the plan's cut") == []
    test.session_state["sensitivity.part"] = True
    test.run()
    assert not test.exception
    (marks,) = traces(test, "the plan's cut")
    assert [cell[:2] for cell in marks["customdata"]] == [[layer, 12] for layer in range(6)]
    alone = [cell[3] for cell in marks["customdata"]]
    assert sum(alone) == pytest.approx(np.mean(list(uniform.values())))
    (best,), (even,) = (traces(test, name) for name in ("best plan", "uniform"))
    assert np.sum(decoded(best["y"])) < np.sum(decoded(even["y"]))


def test_neurons_are_predicted_and_drawn_as_experts_are(open_page):
    """By the shipped curves of HEAPr, of neurons that compete within each layer."""
    neurons = {"granularity": "neuron", "sparsity": "40%", "corpora": "demo-code"}
    test = open_page("plan", neuron_scope="layer", **neurons)
    test.session_state["sensitivity.part"] = True
    for scope in ("layer", "global"):  # all that compete are last in their layer too
        test.segmented_control(key="neuron_scope").set_value(scope).run()
        assert not test.exception
        cut = (2048 - table_with(test, "least").set_index("layer")["stay"]).to_dict()
        assert sum(cut.values()) == (6 * 819 if scope == "layer" else 4915)
        added = added_losses(cut, "heapr")
        mean = predicted(test, added)
        (marks,) = traces(test, "the plan's cut")
        assert {layer: gone for layer, gone, *_ in marks["customdata"]} == cut
        alone = sum(row[3] for row in marks["customdata"])
        layers = ({layer: gone} for layer, gone in cut.items())
        costs = [np.mean(list(added_losses(layer, "heapr").values())) for layer in layers]
        assert np.mean(list(added.values())) == pytest.approx(sum(costs))
        # What a mark shows as 0.000 is 0, whatever its sign.
        assert alone == pytest.approx(sum(cost for cost in costs if abs(cost) >= 0.0005))
        (plan,) = traces(test, "this plan, predicted")
        assert decoded(plan["y"]) == [pytest.approx(mean, abs=0.006)]
    (best,), (even,) = (traces(test, name) for name in ("best plan", "uniform"))
    assert np.sum(decoded(best["y"])) < np.sum(decoded(even["y"]))
    # A neuron has 384 weights of two bytes. The first budget removes nothing, so no head of 2048 x
    # 128 weights is written beside the embedding.
    mib = np.array(decoded(even["x"]))
    gone = np.array([row[0] for row in even["customdata"]])
    head = 2048 * 128 * 2 * (gone > 0)
    assert mib[0] - mib == pytest.approx((gone * 768 - head) / 2**20)
    # What competes within each expert is another order.
    test.segmented_control(key="neuron_scope").set_value("expert").run()
    assert "predicted" not in bar(test)
    assert traces(test, "the plan's cut") and not traces(test, "this plan, predicted")


def test_measured_neurons_are_one_plan_on_every_page(open_page, go_to):
    test = open_page("plan", granularity="neuron", schedule="measured", corpora="demo-code")
    assert "--sparsity 50% --schedule measured " in command(test, "plan")
    assert "schedule: measured" in recipe_on(test) and "neuron_scope" not in recipe_on(test)
    kept = table_with(test, "least").set_index("layer")["stay"]
    assert kept.sum() == 6 * 1024 and len(set(kept)) > 1
    assert traces(test, "Global")  # the scopes of this budget stay comparable
    go_to(test, "explore")
    loaded = loaded_on(test)
    shares = expert_shares(neuron_cut.field(loaded), neuron_cut.pruned(loaded))
    neurons = loaded.shown.plan.kept_neurons
    for layer, expert, width, gone, *_ in shares.itertuples(index=False):
        assert width - gone == len(neurons.get(layer, {}).get(expert, range(width)))


def test_what_was_not_measured_is_measured_by_a_click(open_page, queued_jobs):
    test = open_page("plan", corpora="demo-math", schedule="measured")
    assert any("was not measured" in said for said in texts(test.info))
    test.multiselect(key="sensitivity.on").set_value(["demo-code"]).run()
    line = command(test, "sensitivity")
    assert "demo --corpus demo-code --criterion reap" in line
    assert line.endswith("--calibrated-on demo-math")
    test.button(key="sensitivity.start").click().run()
    (job,) = queued_jobs()
    asked = {"criterion": "reap", "calibrated_on": ["demo-math"], "corpora": ["demo-code"]}
    assert {**job.request, **asked} == job.request


@pytest.mark.parametrize("scope", [{"neuron_scope": "layer"}, {"schedule": "measured"}])
def test_curves_of_neurons_are_measured_in_the_order_of_the_page(open_page, queued_jobs, scope):
    limits = {**scope, "multiple_of": "8", "drop": "4:0", "protect": "1"}
    neurons = {"granularity": "neuron", "criterion": "camera-p", "corpora": "demo-math"}
    test = open_page("plan", sparsity="40%", **neurons, **limits)
    test.session_state["sensitivity.part"] = True
    test.run()
    test.multiselect(key="sensitivity.on").set_value(["demo-code"]).run()
    line = command(test, "sensitivity")
    assert "--granularity neuron" in line and "--multiple-of 8 --drop 4:0" in line
    assert "--protect" not in line  # which changes no order
    test.button(key="sensitivity.start").click().run()
    (job,) = queued_jobs()
    asked = {"criterion": "camera-p", "granularity": "neuron", "calibrated_on": ["demo-math"]}
    assert {**job.request, **asked} == job.request
    limits = job.request["limits"]
    assert (limits["multiple_of"], limits["drop"], limits["protect"]) == (8, {"4": [0]}, [])
