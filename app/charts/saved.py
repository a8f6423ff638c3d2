"""Bytes before and after a plan, by part of the model."""

from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.figures.sizes import describe, sizes_figure
from pruning.planning.make import make_plan
from pruning.sizes import size_report


def _draw(context: Context) -> Drawing:
    shown = context.shown
    plan = shown.plan if shown else make_plan(context.first, context.request).plan
    table = context.keep(size_report, context.model, plan).table
    return Drawing(
        "sizes",
        lambda dark: sizes_figure(table, dark=dark),
        table,
        describe(table),
        context.about(context.about_plan()),
    )


SIZES = Chart("sizes", "export", "What pruning saves", _draw, reads_plan=True)
