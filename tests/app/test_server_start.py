"""What a server imports before its first answer, and what after it."""

import gc
import json
import subprocess
import sys
from pkgutil import iter_modules

import plotly.graph_objects as go
import plotly.io

from app import pages
from app.charts.chart import StillFigure
from app.imports import import_pages, importing, without

NOT_YET = "{'numpy', 'pandas', 'pyarrow', 'app.loaded', 'app.pages.explore'} & set(sys.modules)"


def test_a_server_answers_before_its_pages_are_imported():
    code = f"import sys, app.server\nprint(sorted({NOT_YET}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_streamlit_makes_no_theme_for_plotly_which_charts_find_later():
    code = (
        "import sys\nfrom app.imports import without\n"
        "with without('plotly'):\n    import app.server\n"
        "print('plotly' in sys.modules)\n"
        "import plotly.io\nprint(plotly.io.templates.default)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\nplotly\n"
    with without("plotly"):  # which is there already
        assert sys.modules["plotly.io"] is plotly.io
        assert sys.modules["plotly"] is plotly


def test_all_pages_are_imported_after_it_and_garbage_is_looked_for_again():
    try:
        with importing():
            assert not gc.isenabled()
        import_pages()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
    names = {f"app.pages.{module.name}" for module in iter_modules(pages.__path__)}
    assert names - set(sys.modules) <= {"app.pages.main"}


def test_a_still_figure_is_the_same_and_copied_once():
    figure = go.Figure(go.Heatmap(z=[[1, 2], [3, 4]], text=[["a", "b"], ["c", "d"]]))
    still = StillFigure(figure.update_layout(meta=2))
    shown = [json.loads(plotly.io.to_json(drawn, validate=False)) for drawn in (still, figure)]
    assert shown[0] == shown[1]
    assert still.to_dict() is still.to_dict()
