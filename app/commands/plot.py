"""The commands that draw: plot, one figure of the dashboard; report, several in one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis.model import load_model_index
from app.commands import options
from app.commands.console import out, show_table
from app.commands.rank import measure_weights, save_csv
from app.comparing import compare_request
from app.settings import stats_store

if TYPE_CHECKING:
    from app.plots.chart import Chart
    from app.plots.scene import Scene

# Plotly takes a second to import, for which only those who draw should wait: inside functions.


def _list_views(wanted: bool) -> None:
    if wanted:
        from app.plots.listing import PAPER_VIEWS, VIEWS

        views = (*VIEWS.values(), *PAPER_VIEWS.values())
        rows = [(view.name, view.page, view.title) for view in views]
        show_table("", ("view", "page", "what it answers"), rows)
        raise typer.Exit


ListOption = Annotated[
    bool,
    typer.Option("--list", help="List the views.", is_eager=True, callback=_list_views),
]
FirstCriterion = Annotated[
    str, typer.Option("--criterion", help="Name, such as reap or aimer, or exponents b,alpha,beta.")
]
Corpora = Annotated[
    list[str] | None,
    typer.Option(
        "--corpus",
        help="Calibrated corpus that ranks, CORPUS or CORPUS:WEIGHT; repeatable. Views of overlap "
        "compare all calibrated corpora.",
    ),
]
PlotSparsity = Annotated[str, typer.Option(help="Fraction of experts removed: 0.5 or 50%.")]
WithCriterion = Annotated[
    str, typer.Option(help="Criterion beside it, for views of two: a name, or b,alpha,beta.")
]
WithCorpora = Annotated[
    list[str] | None,
    typer.Option("--with-corpus", help="Corpus of the second recipe; default: the first one's."),
]
WithGate = Annotated[
    str | None, typer.Option(help="Gate weights of the second recipe; default: the same.")
]
WithSparsity = Annotated[
    str | None, typer.Option(help="Sparsity of the second recipe; default: the same.")
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
    criterion: FirstCriterion = "reap",
    sparsity: PlotSparsity = "50%",
    corpus: Corpora = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    with_criterion: WithCriterion = "frequency",
    with_corpus: WithCorpora = None,
    with_gate: WithGate = None,
    with_sparsity: WithSparsity = None,
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
    list_views: ListOption = False,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Draw a figure of the dashboard, or write the numbers behind it, without a browser session."""
    from app.plots.listing import PaperView, block_of, get_view

    wanted, path = get_view(view), out_file or Path(f"{view}.html")
    if isinstance(wanted, PaperView):
        _write(wanted.draw(block_of(model, block)), path, wanted.title)
        return
    scene = _scene(
        {
            "model": model,
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "gate": gate,
            "sparsity": sparsity,
            "revision": revision,
            "stats_dir": stats_dir,
        },
        {
            "criterion": with_criterion,
            "corpora": tuple(with_corpus) if with_corpus else None,
            "gate": with_gate,
            "sparsity": with_sparsity,
        },
    )
    _write(wanted.draw(scene), path, wanted.title)


def _write(chart: "Chart", path: Path, title: str) -> None:
    from app.figures.files import write_figure

    if path.suffix == ".csv":
        save_csv(chart.table, path)
    else:
        write_figure(chart.exported(), path)
    out.print(chart.alt, markup=False)
    out.print(f"{path}: {title}", markup=False)


def _scene(first: dict[str, Any], second: dict[str, Any]) -> "Scene":
    from app.plots.scene import Scene

    request = compare_request(first, second)
    described = load_model_index(request.a.model, revision=request.a.revision)
    store = stats_store(request.a.stats_dir)
    for each in (request.a, request.b):
        measure_weights(each, described, store)
    return Scene(request, described, store)
