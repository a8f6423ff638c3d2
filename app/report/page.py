"""A report as one HTML page: opens in any browser, offline, and prints."""

import base64
from importlib.resources import files
from typing import Any

import pandas as pd
import plotly.io
import plotly.offline
from jinja2 import Environment, StrictUndefined

from app.charts.chart import Chart, Drawing, made_by
from app.report.contents import Report
from app.tables.spreadsheets import csv_text

# Tables on screen are truncated; the file below has every row.
_ROWS_SHOWN = 100


def report_html(report: Report) -> str:
    """The page as HTML; names are escaped."""
    # Every value is escaped except the two that the template marks as safe: plotly's own script,
    # and figures as JSON, in which plotly writes < and / as \u003c and \u002f.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = files("app.report").joinpath("report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        report=report,
        about=made_by(),
        sections=[_section(*section) for section in report.sections],
        rows_shown=_ROWS_SHOWN,
        plotly_js=plotly.offline.get_plotlyjs(),
    )


def _section(chart: Chart, drawing: Drawing) -> dict[str, Any]:
    table = drawing.table
    data = base64.b64encode(csv_text(table).encode()).decode()
    return {
        "name": chart.name,
        "title": chart.title,
        "takeaway": drawing.alt,
        "figure": plotly.io.to_json(drawing.exported()),
        "columns": [str(name) for name in table.columns],
        "rows": [[_cell(value) for value in row] for row in table.head(_ROWS_SHOWN).to_numpy()],
        "num_rows": len(table),
        "csv": f"data:text/csv;base64,{data}",
    }


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4g}"
    return str(value)
