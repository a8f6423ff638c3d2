"""Overlap between corpora: as a matrix, and against sparsity."""

import numpy as np
import pytest

from app.charts import overlap as matrices
from app.charts import overlap_curve as curves


def test_matrix_is_symmetric_with_ones_and_gaps(corpora):
    (heatmap,) = matrices.overlap_matrix(corpora).data
    assert list(heatmap.x) == list(heatmap.y) == ["code", "math", "prose"]
    wanted = [[1, 0.4, 0.7], [0.4, 1, np.nan], [0.7, np.nan, 1]]
    np.testing.assert_array_equal(heatmap.z, wanted)


def test_matrix_writes_every_pair_and_chance(corpora):
    fig = matrices.overlap_matrix(corpora, chance=0.5)
    shown = [annotation.text for annotation in fig.layout.annotations]
    assert sorted(shown) == sorted(
        ["1.00"] * 3 + ["0.40"] * 2 + ["0.70"] * 2 + ["no data"] * 2 + ["two random sets: 0.50"]
    )
    assert fig.layout.yaxis.autorange == "reversed"


def test_matrix_shows_names_as_written(corpora):
    named = corpora.replace("code", "<b>code</b>")
    (heatmap,) = matrices.overlap_matrix(named).data
    assert "&lt;b&gt;code&lt;/b&gt;" in heatmap.x


def test_matrix_description(corpora):
    assert matrices.describe(corpora, chance=0.5) == (
        "The pruned sets share 40% to 70% over pairs of texts, least between math and code; "
        "two random sets would share 50%."
    )
    assert matrices.describe(corpora.iloc[:1]) == "The sets pruned on code and prose share 70%."
    assert matrices.describe(corpora.iloc[:0]) == "No two texts have an overlap to compare."


def test_curve_has_dashed_chance_and_one_line_a_series(curve):
    chance, man, reap = curves.overlap_curve(curve).data
    assert (chance.name, chance.line.dash, chance.mode) == ("chance", "dot", "lines")
    assert (man.name, reap.name) == ("MAN", "REAP")
    assert list(chance.y) == [0.25, 0.5, 0.75]


def test_series_differ_by_more_than_colour(curve):
    _, man, reap = curves.overlap_curve(curve).data
    assert man.line.dash != reap.line.dash != "dot"
    assert man.marker.symbol != reap.marker.symbol


def test_curve_sorts_sparsity_and_leaves_gaps(curve):
    _, _, reap = curves.overlap_curve(curve.iloc[::-1], dark=True).data[:3]
    assert list(reap.x) == [0.25, 0.5, 0.75]
    reap = curves.overlap_curve(curve).data[2]
    assert np.isnan(reap.y[1])
    assert not reap.connectgaps


def test_current_sparsity_is_marked(curve):
    fig = curves.overlap_curve(curve, sparsity=0.5)
    assert fig.data[1].marker.size == (7, 13, 7)
    assert [shape.x0 for shape in fig.layout.shapes] == [0.5]
    assert "now 50%" in [annotation.text for annotation in fig.layout.annotations]
    assert not curves.overlap_curve(curve).layout.shapes


@pytest.mark.parametrize(
    ("sparsity", "text"),
    [
        (0.5, "At 50% sparsity the pruned sets share: MAN 90%; chance 50%."),
        (0.8, "At 75% sparsity the pruned sets share: MAN 95%, REAP 80%; chance 75%."),
    ],
)
def test_curve_description_is_at_the_nearest_sparsity(curve, sparsity, text):
    assert curves.describe(curve, sparsity=sparsity) == text


def test_curve_without_any_overlap_says_so(curve):
    assert "No overlap" in curves.describe(curve.assign(overlap=np.nan))
