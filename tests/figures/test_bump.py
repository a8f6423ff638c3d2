"""The rank flow of a layer: who crosses the cut, by hand."""

import numpy as np
import pandas as pd
import pytest

from app.charts import rank_flow as bump


@pytest.fixture
def layer():
    """Two of four are kept: expert 3 falls out, expert 1 comes in."""
    rows = [
        (5, 0, "both", 0, 0),
        (5, 1, "only B", 3, 1),
        (5, 2, "neither", 2, 3),
        (5, 3, "only A", 1, 2),
    ]
    return pd.DataFrame(rows, columns=["layer", "expert", "kept_by", "rank_a", "rank_b"])


def trace(fig, name):
    (found,) = (each for each in fig.data if (each.name or "").startswith(name))
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_each_expert_is_a_line_from_its_rank_in_a_to_that_in_b(layer, dark):
    fig = bump.bump(layer, dark=dark)
    ends = {
        name: trace(fig, name).y[:2].tolist() for name in ("both", "neither", "only A", "only B")
    }
    assert ends == {"both": [1, 1], "neither": [3, 4], "only A": [2, 3], "only B": [4, 2]}
    assert all(np.isnan(trace(fig, name).y[2]) for name in ends)
    # Only what crosses the cut has a colour and names its expert; dashes tell the two apart.
    loud = [trace(fig, name) for name in ("only A", "only B")]
    assert loud[0].text[:2] == ("3", "3")
    assert loud[0].line.color != loud[1].line.color
    assert loud[0].line.dash != loud[1].line.dash
    assert trace(fig, "both").line.color == trace(fig, "neither").line.color


def test_the_cut_lies_below_the_last_kept(layer):
    cut = bump.bump(layer).data[-1]
    assert cut.y == (2.5, 2.5, 2.5, 2.5)
    # A keeps three, B two.
    layer.loc[2, "kept_by"] = "only A"
    assert bump.bump(layer).data[-1].y == (3.5, 3.5, 2.5, 2.5)


def test_a_marked_expert_has_a_line_of_its_own(layer):
    assert list(trace(bump.bump(layer, marked=2), "expert 2").y) == [3, 4]
    assert not [each for each in bump.bump(layer, marked=9).data if each.name == "expert 9"]


def test_names_are_shown_as_written(layer):
    axis = bump.bump(layer, ("<b>x</b>", "y")).layout.xaxis
    assert axis.ticktext == ("A: &lt;b&gt;x&lt;/b&gt;", "B: y")


def test_description(layer):
    assert bump.describe(layer) == (
        "In layer 5, 2 of 4 experts cross the cut; expert 1 moves furthest, from rank 4 in A to 2 "
        "in B."
    )
    same = layer.assign(kept_by="both")
    assert bump.describe(same) == "In layer 5 both recipes keep the same experts."


def test_a_layer_of_128_is_small_on_the_wire():
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "layer": 0,
            "expert": range(128),
            "kept_by": ["both", "only A", "only B", "neither"] * 32,
            "rank_a": generator.permutation(128),
            "rank_b": generator.permutation(128),
        }
    )
    assert len(bump.bump(table).to_json()) < 24 * 1024
