"""Charts of results that no store holds."""

from types import SimpleNamespace

from app.charts.chart import Drawing
from app.charts.choices import ResultChoice
from app.charts.listing import CHARTS


def drawn(name: str, table, **chosen) -> Drawing:
    """The chart of this name of a table of results, as a page that has read them draws it."""
    choice = ResultChoice(table, **chosen)
    return CHARTS[name].make(SimpleNamespace(results=choice, model=SimpleNamespace(name="m")))
