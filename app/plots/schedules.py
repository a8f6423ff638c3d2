"""The chart of all schedules on one budget, for the Plan page and for files."""

import pandas as pd

from app.charts.chart import Drawing
from app.figures import schedules as schedules_figure
from pruning.planning.planning import schedule_label


def schedules_chart(counts: pd.DataFrame, shown: str, about: str) -> Drawing:
    """Experts kept by layer under every schedule, of the table of `side_by_side`; one is marked."""
    named = counts.assign(schedule=counts["schedule"].map(schedule_label))
    label = schedule_label(shown)
    return Drawing(
        "schedules",
        lambda dark: schedules_figure.schedules_figure(named, shown=label, dark=dark),
        counts,
        schedules_figure.describe(named),
        about,
    )
