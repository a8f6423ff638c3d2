"""Evaluate: the papers' tables as they stand, weighed as the address says."""

import json

import pytest

from analysis.published import published_table
from app.plots.published import TABLES, settings_of


def table_of(test):
    """The leaderboard: the first table of the page."""
    return test.dataframe[0].value.set_index("candidate")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("shape", "trace"), [("Dots", "scatter"), ("Radar", "scatterpolar")])
def test_every_table_has_a_leaderboard(open_page, table, shape, trace):
    test = open_page("evaluate", published=TABLES[table], profile=shape)
    first = settings_of(table)[0]
    rows = published_table(table)
    rows = rows[(rows["model"] == first.model) & rows["sparsity"].isin([0, first.sparsity])]
    assert len(table_of(test)) == len(rows[["criterion", "schedule"]].drop_duplicates())
    profile, winners = (json.loads(chart.proto.spec) for chart in test.get("plotly_chart"))
    assert {each["type"] for each in profile["data"]} == {trace}
    assert winners["data"][0]["type"] == "heatmap"


def test_numbers_are_the_papers(open_page):
    test = open_page("evaluate")
    row = table_of(test).loc["MAN"]
    # OLMoE at 25%, Table 5 of the unified paper.
    assert (row["GSM8K"], row["WildBench"], row["RTE"]) == (0.208, 0.260, 0.639)


def test_weights_change_the_average(open_page):
    test = open_page("evaluate")
    before = table_of(test)["average"]
    for ability in ("coding", "writing", "multiple choice"):
        test.select_slider(key=f"weight.{ability}").set_value(0.0)
    test.run()
    after = table_of(test)
    assert not test.exception
    assert after.loc["MAN", "average"] == pytest.approx((0.208 + 0.046) / 2)
    assert before["MAN"] != after.loc["MAN", "average"]


def test_all_weights_at_0_count_alike(open_page):
    test = open_page("evaluate")
    before = table_of(test)["average"]
    for slider in test.select_slider:
        if slider.key and slider.key.startswith("weight."):
            slider.set_value(0.0)
    test.run()
    assert "count alike" in test.warning[0].value
    assert table_of(test)["average"].equals(before)
