"""Charts of results that no store holds."""

from types import SimpleNamespace

from app.charts.chart import Drawing
from app.charts.listing import CHARTS
from app.choices import ResultChoice


def drawn(name: str, table, **chosen) -> Drawing:
    """The chart of this name of a table of results, as a page that has read them draws it."""
    choices = SimpleNamespace(results=ResultChoice(table, **chosen))
    model = SimpleNamespace(name="m", identity="0" * 64)
    return CHARTS[name].make(SimpleNamespace(choices=choices, model=model))
