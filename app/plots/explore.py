"""The chart of sizes."""

import pandas as pd

from app.charts.chart import Drawing
from app.figures import sizes as size_figure


def sizes_chart(table: pd.DataFrame, about: str) -> Drawing:
    """Bytes before and after, of the table of a `SizeReport`."""
    return Drawing(
        "sizes",
        lambda dark: size_figure.sizes_figure(table, dark=dark),
        table,
        size_figure.describe(table),
        about,
    )
