"""Enlarged figures: larger type everywhere, the same data, the given figure as it was."""

import plotly.graph_objects as go

from app.charts.enlarged import enlarged
from app.charts.theme import add_provenance, apply_theme, colorbar


def small_figure():
    fig = go.Figure(
        go.Scatter(x=[1, 2], y=[3, 4], marker={"size": [7, 9]}, textfont={"size": 10}),
    )
    fig.add_trace(go.Heatmap(z=[[1, 2]], colorbar=colorbar("overlap", dark=False)))
    fig.add_trace(go.Scatter(x=[1], y=[1], marker={"size": 10}))
    fig.add_annotation(text="here", font={"size": 20})
    apply_theme(fig, dark=False).update_layout(height=200)
    return add_provenance(fig, "made by hand")


def test_fonts_markers_and_height_grow():
    before, after = small_figure(), enlarged(small_figure())
    # 13, 12 and 20 px times 1.35.
    assert after.layout.font.size == 17.6
    assert after.layout.xaxis.tickfont.size == 16.2
    assert after.layout.annotations[0].font.size == 27.0
    assert after.data[1].colorbar.title.font.size == 16.2
    assert after.data[0].textfont.size == 13.5
    assert after.data[2].marker.size == 13.5
    assert after.layout.height == round(before.layout.height * 1.15)


def test_sizes_that_are_data_stay():
    assert list(enlarged(small_figure()).data[0].marker.size) == [7, 9]


def test_the_given_figure_stays_as_it_was():
    fig = small_figure()
    before = fig.to_json()
    enlarged(fig)
    assert fig.to_json() == before
