"""Figures of neurons: what is drawn is the table, and the sentences say its numbers."""

import pandas as pd
import pytest

from app.charts import neurons


@pytest.fixture
def shares():
    rows = [("25%", 2, 0.1), ("25%", 5, 0.4), ("50%", 2, 0.7), ("50%", 5, 0.3)]
    return pd.DataFrame(rows, columns=["series", "layer", "share"])


@pytest.mark.parametrize("dark", [False, True])
def test_layers_have_a_line_for_each_series(shares, dark):
    quarter, half = neurons.layer_lines(shares, dark=dark).data
    assert (quarter.name, half.name) == ("25%", "50%")
    assert list(quarter.x) == [2, 5]
    assert list(half.y) == [0.7, 0.3]
    assert neurons.describe_layers(shares) == (
        "25% removes most in layer 5 (40%), least in layer 2 (10%); 50% removes most in layer 2 "
        "(70%), least in layer 5 (30%)."
    )
    even = shares.assign(share=0.4)
    assert neurons.describe_layers(even) == (
        "25% removes 40% in every layer; 50% removes 40% in every layer."
    )


def test_flops_lie_beside_what_equal_use_would_save():
    rows = [("global", 0.2, 0.1), ("global", 0.4, 0.25), ("layer", 0.3, 0.3)]
    table = pd.DataFrame(rows, columns=["series", "removed", "reduction"])
    even, first, second = neurons.flops_lines(table).data
    assert list(even.x) == list(even.y) == [0, 0.4]
    assert (list(first.x), list(first.y)) == ([0.2, 0.4], [0.1, 0.25])
    assert (second.name, list(second.y)) == ("layer", [0.3])
    assert neurons.describe_flops(table) == (
        "FLOPs of experts saved per token by the measured routing: global 25% with 40% of neurons "
        "gone; layer 30% with 30% of neurons gone."
    )
    unmeasured = neurons.flops_lines(table, measured=False).layout.yaxis.title.text
    assert "equally often" in unmeasured
    assert "if experts are chosen equally often" in neurons.describe_flops(table, measured=False)


def test_names_that_others_chose_are_text():
    table = pd.DataFrame({"series": ["<b>x</b>"], "layer": [2], "share": [0.5]})
    (line,) = neurons.layer_lines(table).data
    assert "<b>" not in line.name
