"""The chart of all schedules on one budget, for the Plan page and for files."""

import pandas as pd

from app.figures import schedules as schedules_figure
from app.plots.chart import Chart


def schedules_chart(counts: pd.DataFrame, shown: str, about: str) -> Chart:
    """Experts kept by layer under every schedule, of the table of `side_by_side`."""
    return Chart(
        "schedules",
        lambda dark: schedules_figure.schedules_figure(counts, shown=shown, dark=dark),
        counts,
        schedules_figure.describe(counts),
        about,
    )
