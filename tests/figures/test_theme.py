"""The look of all figures: contrast, size, provenance, and files of them."""

import subprocess
import sys

import pandas as pd
import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from analysis.errors import UserError
from app.charts import theme
from app.charts.evaluation_curves import curves_figure
from app.charts.files import enlarged, write_figure
from app.charts.kept_by import kept_by_map
from app.charts.neurons import layer_lines
from app.charts.overlap import overlap_heatmap
from app.charts.paths import path_frequency
from app.charts.theme import add_provenance, apply_theme, colorbar


def test_contrast_by_hand():
    # WCAG: black has luminance 0, white 1, so (1 + 0.05) / (0 + 0.05) = 21.
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert theme.contrast("#0072b2", "#0072b2") == 1


def test_numbers_are_readable_on_every_cell_colour():
    for dark in (False, True):
        cells = [theme.color_at(percent / 100, dark) for percent in range(0, 101, 5)]
        assert min(theme.contrast(theme.text_on(cell), cell) for cell in cells) >= 4.5
        # From near the page to far from it, step by step.
        away = [theme.contrast(cell, theme.paper(dark)) for cell in cells]
        assert away == sorted(away)
        assert away[0] > 1.2
        assert away[-1] > 10


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_series_stand_out_from_the_page(dark):
    page = theme.paper(dark)
    assert theme.contrast(theme.ink(dark), page) >= 7
    assert theme.contrast(theme.muted(dark), page) >= 4.5
    for index in range(6):
        assert theme.contrast(theme.series_color(index, dark), page) >= 3


def test_colour_of_a_share_meets_the_stops_and_is_clamped():
    for dark, stops in theme.SEQUENTIAL.items():
        assert theme.color_at(0, dark) == theme.color_at(-1, dark) == stops[0]
        assert theme.color_at(1, dark) == theme.color_at(2, dark) == stops[-1]
        assert theme.color_at(1 / 7, dark) == stops[1]
    # Between #d5e8e4 and #a9d2cd, in the middle: (213 + 169) / 2 = 191, 221, 216.5.
    assert theme.color_at(1 / 14, dark=False) in ("#bfddd8", "#bfddd9")


def test_scale_of_the_page_is_the_scale_of_the_expert_map():
    from importlib.resources import files

    script = files("app.components.expert_map").joinpath("browser", "paint.js").read_text("utf-8")
    for stops in theme.SEQUENTIAL.values():
        assert ", ".join(f'"{color}"' for color in stops) in script


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


def small_figure():
    fig = go.Figure(
        go.Scatter(x=[1, 2], y=[3, 4], marker={"size": [7, 9]}, textfont={"size": 10}),
    )
    fig.add_trace(go.Heatmap(z=[[1, 2]], colorbar=colorbar("overlap", dark=False)))
    fig.add_trace(go.Scatter(x=[1], y=[1], marker={"size": 10}))
    fig.add_annotation(text="here <span style='font-size:11px'>small</span>", font={"size": 20})
    apply_theme(fig, dark=False).update_layout(height=200)
    return add_provenance(fig, "made by hand")


def test_fonts_markers_and_height_grow():
    before = small_figure()
    given, after = before.to_json(), enlarged(before)
    assert before.to_json() == given
    # 13, 12 and 20 px times 1.35.
    assert after.layout.font.size == 17.6
    assert after.layout.xaxis.tickfont.size == 16.2
    assert after.layout.annotations[0].font.size == 27.0
    assert after.data[1].colorbar.title.font.size == 16.2
    assert after.data[0].textfont.size == 13.5
    assert after.data[2].marker.size == 13.5
    assert list(after.data[0].marker.size) == [7, 9]  # data
    assert after.layout.height == round(before.layout.height * 1.35)  # else words outgrow cells
    # Words within a label too; 11 px times 1.35.
    assert after.layout.annotations[0].text == "here <span style='font-size:15px'>small</span>"


FIGURE = go.Figure(go.Bar(x=["kept", "pruned"], y=[3, 1]))


def test_html_holds_plotly_itself_and_needs_no_browser(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    write_figure(FIGURE, tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text()
    assert "plotly.js v" in page
    assert "cdn.plot.ly" not in page.partition("plotly.js v")[0]


def test_an_image_without_a_browser_is_one_clear_line(tmp_path):
    # In a process of its own: kaleido remembers a browser that it found once.
    script = (
        "import sys; from pathlib import Path; import plotly.graph_objects as go\n"
        "from analysis.errors import UserError; from app.charts.files import write_figure\n"
        "try:\n    write_figure(go.Figure(), Path(sys.argv[1]))\n"
        "except UserError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "map.png")],
        env={"PATH": "", "HOME": str(tmp_path), "BROWSER_PATH": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    assert "needs Chromium or Chrome" in done.stdout
    assert list(tmp_path.glob("map*")) == []


def test_an_image_is_drawn_with_a_browser(tmp_path, chromium_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", chromium_path)
    write_figure(FIGURE, tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text().startswith("<svg")


def test_an_unknown_ending_names_those_that_work(tmp_path):
    with pytest.raises(UserError, match=r"map\.jpeg has no known ending; use \.html"):
        write_figure(FIGURE, tmp_path / "map.jpeg")


NAMED = pd.DataFrame({"corpus": "<b>x", "series": "<b>x", "layer": [2], "expert": 0})
COMPARED = NAMED.assign(kept_by="both", rank_a=0, rank_b=0)


@pytest.mark.parametrize(
    "figure",
    [
        overlap_heatmap(
            pd.DataFrame({"corpus_a": ["<b>x"], "corpus_b": "y", "overlap": 0.5}), chance=0
        ),
        path_frequency(NAMED.assign(num_samples=1, rank=0), {"<b>x": 4}),
        kept_by_map(COMPARED, ("<b>x", "y")),
        layer_lines(NAMED.assign(share=0.5)),
        curves_figure(NAMED.assign(removed=0.5, mean=1.0, low=0.9, high=1.1), label="loss"),
    ],
    ids=["overlap", "paths", "kept by", "neurons", "evaluations"],
)
def test_names_that_people_chose_are_shown_as_written(figure):
    shown = str(figure.to_plotly_json())
    assert "&lt;b&gt;x" in shown
    # The key that links entries of a legend is not shown.
    assert "<b>x" not in shown.replace("'legendgroup': '<b>x'", "")
