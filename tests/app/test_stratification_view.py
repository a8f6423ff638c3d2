"""The view of stratification on Explore: whatever the plan, which it leaves alone."""

import json
from base64 import b64decode

import numpy as np
import pandas as pd
import pytest
from page_texts import loaded_on, opened, texts

from app.charts import traces
from app.session import chosen_expert
from app.session.chosen_expert import choose_in_chart, chosen_place

VIEW = {"show": "Stratification"}
WEIGHTS = "demo-weights-*/weights.parquet"


def shown(test):
    """The table behind the chart of the view."""
    return opened(test, "stratification").dataframe[-1].value


def bar(test):
    """The line of the plan, with its digest."""
    return next(text for text in texts(test.markdown) if ":material/circle:" in text)


def test_one_click_draws_aimer_beside_magnitude_and_leaves_the_plan_alone(open_page, demo_scores):
    test = open_page("explore", criterion="ean", sparsity="25%")
    before = bar(test)
    digest = loaded_on(test).shown.plan.digest
    assert digest[:8] in before
    test.segmented_control(key="show").set_value("stratification").run()
    assert not test.exception
    assert bar(test) == before
    assert loaded_on(test).shown.plan.digest == digest
    assert len(test.get("plotly_chart")) == 2
    for scale in ("relative", "raw", "rescaled"):
        test.segmented_control(key="scale").set_value(scale).run()
        assert bar(test) == before
    table = shown(test)
    assert list(dict.fromkeys(table["panel"])) == ["AIMER", "Magnitude"]
    spreads = {}
    for name, sign in (("AIMER", -1), ("Magnitude", 1)):
        rows = table[table["panel"] == name].set_index(["layer", "expert"]).sort_index()
        scores = demo_scores[name]
        assert rows["score"].tolist() == pytest.approx(scores.tolist())
        by_layer = scores.groupby("layer")
        spread = (by_layer.max() - by_layer.min()) / by_layer.mean()
        spreads[name] = spread.median()
        for layer, group in scores.groupby("layer"):
            ordered = (sign * group).sort_values(ascending=False).to_numpy()
            seen = rows.loc[layer].iloc[0]
            assert seen["spread"] == pytest.approx(spread[layer])
            # The plan keeps 24 of 32.
            assert seen["gap"] == pytest.approx((ordered[23] - ordered[24]) / group.mean())
    assert rows["kept"].sum() == 6 * 24
    said = " ".join(texts(test.markdown))
    for name, spread in spreads.items():
        assert f"{name} separates experts by {100 * spread:.2g}%, random weights by" in said


def test_the_cut_is_where_the_plan_has_it_layer_by_layer(open_page):
    test = open_page("explore", **VIEW, criterion="reap", schedule="global")
    plan = loaded_on(test).shown.plan
    kept = shown(test).groupby(["panel", "layer"])["kept"].sum()
    assert len({len(experts) for experts in plan.kept.values()}) > 1
    for (_, layer), count in kept.items():
        assert count == len(plan.kept[layer])


def test_any_two_criteria_take_their_places_in_the_url(open_page, run, tmp_path):
    address = {"strata.left": "REAP  (1, 1, 1)", "strata.right": "Hoyer", "scale": "Raw"}
    test = open_page("explore", **VIEW, **address, criterion="man")
    table = shown(test)
    assert set(table["panel"]) == {"REAP", "Hoyer"}
    # What reads a corpus has no random weights to compare with.
    assert table.groupby("panel")["random_spread"].count().to_dict() == {"REAP": 0, "Hoyer": 192}
    assert table["value"].tolist() == table["score"].tolist()
    (command,) = (line for line in texts(test.code) if "plot stratification" in line)
    assert "--panel reap --panel hoyer --scale raw" in command
    run(command.replace("stratification.svg", "strata.csv"))
    written = pd.read_csv(tmp_path / "strata.csv")
    pd.testing.assert_frame_equal(written, table.assign(rank=table["rank"] - 1))
    test.selectbox(key="strata.left").set_value("hoyer").run()
    assert not test.exception
    assert len(test.get("plotly_chart")) == 1


def test_without_statistics_it_says_what_to_do_and_weights_are_enough(open_page):
    test = open_page("explore", "bare", **VIEW)
    assert not test.get("plotly_chart")
    assert sum("not measured yet" in text for text in texts(test.info)) == 2
    # No calibration: there is no plan, and the sparsity gives the cut.
    test = open_page("explore", "weighed", **VIEW)
    assert len(test.get("plotly_chart")) == 2
    assert shown(test).groupby("panel")["kept"].sum().to_dict() == {"AIMER": 9, "Magnitude": 9}


def test_every_mark_of_both_maps_chooses_its_expert(open_page, monkeypatch):
    maps = open_page("explore", **VIEW).get("plotly_chart")
    packed = [
        trace["customdata"]
        for element in maps
        for trace in json.loads(element.proto.spec)["data"]
        if "customdata" in trace
    ]
    carried = [
        [
            tuple(map(int, data))
            for data in np.frombuffer(b64decode(data["bdata"]), data["dtype"]).reshape(-1, 3)[:, :2]
        ]
        for data in packed
    ]
    experts = [(layer, expert) for layer in range(6) for expert in range(32)]
    assert [sorted(marks) for marks in carried] == [experts, experts]
    assert carried[0] != carried[1]  # by rank, which differs
    for layer, expert in {*carried[0], *carried[1]}:
        with monkeypatch.context() as patch:
            patch.setattr(chosen_expert.st, "session_state", {})
            choose_in_chart({"selection": {"points": [{"customdata": [layer, expert, 0.5]}]}})
            assert chosen_place() == (layer, expert)
    for most, is_said in ((384, False), (383, True)):
        monkeypatch.setattr(traces, "MOST_CLICKED", most)
        test = open_page("explore", **VIEW)
        assert any("takes no clicks" in caption.value for caption in test.caption) == is_said


@pytest.mark.parametrize(
    "address",
    [{"granularity": "neuron", "neurons.show": "Stratification"}, {"criterion": "", **VIEW}],
)
def test_it_is_there_for_neurons_and_for_the_constant_variant(open_page, address):
    test = open_page("explore", **address)
    assert len(test.get("plotly_chart")) == 2
    cut = shown(test)["kept"].mean()
    assert cut == (1 if "granularity" in address else 0.5)
    says = any("no expert is cut" in caption.value for caption in test.caption)
    assert says == ("granularity" in address)
