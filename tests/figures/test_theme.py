"""Colours that can be read, and a layout that fits a light and a dark page."""

import subprocess
import sys

import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from app.charts import theme


def test_contrast_by_hand():
    # WCAG: black has luminance 0, white 1, so (1 + 0.05) / (0 + 0.05) = 21.
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert theme.contrast("#0072b2", "#0072b2") == 1


@pytest.mark.parametrize("percent", range(0, 101, 5))
def test_numbers_are_readable_on_every_cell_colour(percent):
    cell = theme.color_at(percent / 100)
    assert theme.contrast(theme.text_on(cell), cell) >= 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_series_stand_out_from_the_page(dark):
    page = theme.paper(dark)
    assert theme.contrast(theme.ink(dark), page) >= 7
    assert theme.contrast(theme.muted(dark), page) >= 4.5
    for index in range(6):
        assert theme.contrast(theme.series_color(index, dark), page) >= 3


def test_colour_of_a_share_meets_the_stops_and_is_clamped():
    assert theme.color_at(0) == theme.color_at(-1) == theme.CIVIDIS[0]
    assert theme.color_at(1) == theme.color_at(2) == theme.CIVIDIS[-1]
    assert theme.color_at(1 / 9) == theme.CIVIDIS[1]
    assert theme.color_at(0.5, ("#000000", "#646464")) == "#323232"


def test_scale_of_the_page_is_the_scale_of_the_expert_map():
    from importlib.resources import files

    script = files("app.components.expert_map").joinpath("browser", "paint.js").read_text("utf-8")
    assert ", ".join(f'"{color}"' for color in theme.CIVIDIS[:5]) in script
    assert ", ".join(f'"{color}"' for color in theme.CIVIDIS[5:]) in script


@pytest.mark.parametrize("dark", [False, True])
def test_theme_is_transparent_and_writes_in_the_page_colour(dark):
    layout = theme.apply_theme(go.Figure(go.Scatter(x=[1], y=[2])), dark).to_dict()["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert layout["font"]["color"] == theme.ink(dark)
    assert layout["font"]["size"] == 13
    assert layout["xaxis"]["gridcolor"] != layout["font"]["color"]


def test_provenance_is_shown_as_written_and_makes_the_figure_taller():
    fig = theme.apply_theme(go.Figure(), False).update_layout(height=300)
    theme.add_provenance(fig, "model <a href='https://example.org'>x</a>")
    footer = fig.to_dict()["layout"]["annotations"][0]
    assert "<" not in footer["text"]
    assert "&lt;a href" in footer["text"]
    assert fig.layout.height > 300


def test_long_provenance_is_broken_into_lines_above_the_lower_edge():
    fig = theme.apply_theme(go.Figure(), True)
    theme.add_provenance(fig, "word " * 60)
    footer = fig.layout.annotations[0]
    assert footer.text.count("<br>") == 2
    assert footer.yshift == -fig.layout.margin.b
    assert footer.font.color == theme.muted(True)


def test_figures_need_neither_streamlit_nor_torch():
    names = ["charts.listing", "charts.theme"]
    code = (
        "import sys\n"
        + "".join(f"import app.{name}\n" for name in names)
        + "sys.exit('streamlit' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_themed_at_once_is_the_same_as_step_by_step():
    traces = [{"type": "bar", "x": [1], "y": [2]}]
    layout = {"height": 200, "margin": {"t": 3}}
    at_once = theme.themed(traces, True, x={"title": "x"}, **layout)
    stepwise = theme.apply_theme(go.Figure(traces), True)
    stepwise.update_layout(height=200, margin={"t": 3}, xaxis={"title": {"text": "x"}})
    assert at_once.to_dict() == stepwise.to_dict()
    # The words of an axis keep the theme's font.
    assert at_once.layout.xaxis.title.font.color == theme.ink(True)


def test_theme_reaches_every_axis_and_keeps_what_it_does_not_say():
    fig = make_subplots(2, 2, subplot_titles=["a", "b", "c", "d"])
    domains = [axis.domain for axis in fig.select_xaxes()]
    assert theme.apply_theme(fig, False) is fig
    assert [axis.domain for axis in fig.select_xaxes()] == domains
    axes = [*fig.select_xaxes(), *fig.select_yaxes()]
    assert len(axes) == 8
    assert {axis.zeroline for axis in axes} == {False}
    assert [note.text for note in fig.layout.annotations] == ["a", "b", "c", "d"]
    fig.add_trace(go.Bar(x=[1], y=[1]), row=2, col=2)  # subplots are still known by their place
    assert fig.data[0].xaxis == "x4"
