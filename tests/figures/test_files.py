"""Figures as files."""

import subprocess
import sys

import plotly.graph_objects as go
import pytest

from analysis.errors import UserError
from app.charts.files import write_figure

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
