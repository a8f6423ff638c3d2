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
from analysis.ranking.trajectory import weighing_of
from app.commands import options
from app.commands.files import write_csv
from app.console import follow, out, show_table
from app.settings import stats_store
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.comparing import compare_request
from pruning.planning.ranking import weights_measured

if TYPE_CHECKING:
    from app.charts.chart import Drawing
    from app.charts.context import Context

_USUAL = {EXPERT_GRANULARITY: "reap", ATOMIC_GRANULARITY: "heapr"}
# Plotly takes a second to import, for which only those who draw should wait: inside functions.


def _list_views(wanted: bool) -> None:
    if wanted:
        from app.charts.listing import CHARTS, PAPER_CHARTS

        rows = [(view.name, view.page, view.title) for view in CHARTS.values()]
        rows += [(view.name, view.page, view.title) for view in PAPER_CHARTS.values()]
        show_table("", ("view", "page", "what it answers"), rows)
        raise typer.Exit


ListOption = Annotated[
    bool,
    typer.Option("--list", help="List the views.", is_eager=True, callback=_list_views),
]
Corpora = Annotated[
    list[str] | None,
    typer.Option(
        "--corpus",
        help="Calibrated corpus that ranks, CORPUS or CORPUS:WEIGHT; repeatable. Views of overlap "
        "compare all calibrated corpora.",
    ),
]
PlotCriterion = Annotated[
    str | None,
    typer.Option(
        help="Name, such as reap or aimer, or exponents b,alpha,beta; default: reap, for views of "
        "neurons heapr."
    ),
]
WithCriterion = Annotated[
    str, typer.Option(help="Criterion beside it, for views of two: a name, or b,alpha,beta.")
]


def plot(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="What to draw; --list names all.")],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Checkpoint directory, hub id, or `demo`; of views of the papers' results, one of "
            "their tables, such as unified-table-5.",
        ),
    ],
    criterion: PlotCriterion = None,
    sparsity: options.Sparsity = "50%",
    corpus: Corpora = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    with_criterion: WithCriterion = "frequency",
    with_corpus: options.WithCorpora = None,
    with_gate: options.WithGate = None,
    with_sparsity: options.WithSparsity = None,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help=".html, .svg, .png, .pdf, or .csv for the numbers; default: VIEW.html.",
            dir_okay=False,
        ),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(help="Block of a paper's table, 'MODEL SPARSITY%'; default: its first."),
    ] = None,
    top_m: Annotated[
        int | None, typer.Option(help="View paths: of each sample; default: 100.")
    ] = None,
    weights: options.PathWeights = "both",
    transitions: options.Transitions = "paper",
    clusters: options.Clusters = None,
    list_views: ListOption = False,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Draw a figure of the dashboard, or write the numbers behind it, without a browser session."""
    from app.charts.listing import PaperChart, block_of, get_chart
    from app.charts.path_choice import PathChoice

    wanted, path = get_chart(view), out_file or Path(f"{view}.html")
    if isinstance(wanted, PaperChart):
        _write(wanted.draw(block_of(model, block)), path, wanted.title)
        return
    context = _scene(
        _recipe(criterion or _USUAL[wanted.granularity], corpus, gate, sparsity)
        | {"model": model, "revision": revision, "stats_dir": stats_dir},
        _recipe(with_criterion, with_corpus, with_gate, with_sparsity),
    )
    count = DEFAULT_PATHS if top_m is None else top_m
    choice = PathChoice(count, weighing_of(weights, transitions), clusters)
    _write(wanted.draw(replace(context, paths=choice)), path, wanted.title)


def _write(chart: "Drawing", path: Path, title: str) -> None:
    from app.figures.files import write_figure

    if path.suffix == ".csv":
        write_csv(chart.table, path)
    else:
        write_figure(chart.exported(), path)
    out.print(chart.alt, markup=False)
    out.print(f"{path}: {title}", markup=False)


def _recipe(
    criterion: str, corpora: list[str] | None, gate: str | None, sparsity: str | None
) -> dict[str, Any]:
    return {
        "criterion": criterion,
        "corpora": tuple(corpora) if corpora else None,
        "gate": gate,
        "sparsity": sparsity,
    }


def _scene(first: dict[str, Any], second: dict[str, Any]) -> "Context":
    from app.charts.context import context_of

    request = compare_request(first, second)
    described = load_model_index(request.a.model, revision=request.a.revision)
    store = stats_store(request.a.stats_dir)
    for each in (request.a, request.b):
        follow(weights_measured(get_criterion(each.criterion), described, store))
    return context_of(request, described, store)


def report(
    model: options.Model,
    criterion: options.CriterionName = "reap",
    sparsity: options.Sparsity = "50%",
    corpus: Corpora = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    with_criterion: WithCriterion = "frequency",
    with_corpus: options.WithCorpora = None,
    with_gate: options.WithGate = None,
    with_sparsity: options.WithSparsity = None,
    view: Annotated[
        list[str] | None,
        typer.Option(help="A view of `moeprune plot --list`; repeatable; default: all of a model."),
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Pruning report",
    out_file: options.Out = Path("report.html"),
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Write figures with their sentences and numbers as one HTML page that opens offline."""
    from app.report.contents import report_of, views_of
    from app.report.page import report_html

    views = views_of(view or (), criterion)
    context = _scene(
        _recipe(criterion, corpus, gate, sparsity)
        | {"model": model, "revision": revision, "stats_dir": stats_dir},
        _recipe(with_criterion, with_corpus, with_gate, with_sparsity),
    )
    made = report_of(context, views, title)
    if not made.sections:
        raise PlanError(f"Nothing can be drawn. {next(iter(made.omitted.values()))}")
    write_durably(out_file, report_html(made).encode())
    for name, reason in made.omitted.items():
        out.print(f"left out: {name}: {reason}", markup=False)
    out.print(f"{out_file}: {len(made.sections)} figures", markup=False)
