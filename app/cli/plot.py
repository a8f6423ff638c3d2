"""The commands that draw: plot, one figure of the dashboard; report, several in one page."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis.criteria import get_criterion
from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.durable import write_durably
from analysis.errors import PlanError
from analysis.model import load_model_index
from analysis.ranking.trajectory import Weighing
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_csv
from app.console import follow, out, show_table
from pruning.planning.comparing import compare_request
from pruning.planning.ranking import weights_measured
from pruning.requests.base import Option
from pruning.requests.pair import PlotRequest, ReportRequest

if TYPE_CHECKING:
    from app.charts.context import Context

_USUAL = {"expert": "reap", "atomic": "heapr"}
View = Annotated[str, Option("What to draw; --list names all.", place="VIEW")]


def _list_views(wanted: bool) -> None:
    if wanted:
        from app.charts.listing import CHARTS
        from app.charts.published import PAPER_CHARTS

        rows = [(view.name, view.page, view.title) for view in CHARTS.values()]
        rows += [(view.name, view.page, view.title) for view in PAPER_CHARTS.values()]
        show_table("", ("view", "page", "what it answers"), rows)
        raise typer.Exit


@command(PlotRequest)
def plot(
    request: PlotRequest,
    *,
    view: View,
    out_file: Annotated[
        options.Out | None,
        Option(".html, .svg, .png, .pdf, or .csv for the numbers; default: VIEW.html."),
    ] = None,
    list_views: Annotated[
        bool, typer.Option("--list", help="List the views.", is_eager=True, callback=_list_views)
    ] = False,
) -> None:
    """Draw a figure of the dashboard, or write the numbers behind it, without a browser session."""
    from app.charts.choices import PathChoice
    from app.charts.files import write_figure
    from app.charts.listing import get_chart
    from app.charts.published import PaperChart, block_of

    del list_views  # its callback has done it
    wanted, path = get_chart(view), out_file or Path(f"{view}.html")
    if isinstance(wanted, PaperChart):
        chart = wanted.draw(block_of(request.model, request.block))
    else:
        criterion = request.criterion or _USUAL[wanted.granularity]
        context = _context(*request.recipes(criterion, request.with_criterion, request.sparsity))
        choice = PathChoice(
            DEFAULT_PATHS if request.top_m is None else request.top_m,
            Weighing(request.weights, request.transitions),
            request.clusters,
        )
        chart = wanted.draw(replace(context, paths=choice))
    if path.suffix == ".csv":
        write_csv(chart.table, path)
    else:
        write_figure(chart.exported(), path)
    out.print(f"{chart.alt}\n{path}: {wanted.title}")


def _context(first: dict[str, Any], second: dict[str, Any]) -> "Context":
    from app.charts.context import context_of

    request = compare_request(first, second)
    described = load_model_index(request.a.model, revision=request.a.revision)
    store = stats_store(request.a.stats_dir)
    for each in (request.a, request.b):
        follow(weights_measured(get_criterion(each.criterion), described, store))
    return context_of(request, described, store)


@command(ReportRequest)
def report(request: ReportRequest, *, out_file: options.Out = Path("report.html")) -> None:
    """Write figures with their sentences and numbers as one HTML page that opens offline."""
    from app.report.contents import report_of, views_of
    from app.report.page import report_html

    views = views_of(request.views, request.criterion)
    recipes = request.recipes(request.criterion, request.with_criterion, request.sparsity)
    made = report_of(_context(*recipes), views, request.title)
    if not made.sections:
        raise PlanError(f"Nothing can be drawn. {next(iter(made.omitted.values()))}")
    write_durably(out_file, report_html(made).encode())
    for name, reason in made.omitted.items():
        out.print(f"left out: {name}: {reason}")
    out.print(f"{out_file}: {len(made.sections)} figures")
