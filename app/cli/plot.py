"""The commands that draw: plot, one figure of the dashboard; report, several in one page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis.criteria import Criterion, get_criterion
from analysis.criteria.pathfinder import DEFAULT_PATHS
from analysis.criteria.trajectory import Weighing
from analysis.errors import PlanError
from analysis.files.durable import write_durably
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from analysis.ranking.choose import run_by_corpus
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.files import check_free, read_plan, write_csv
from app.cli.say import say_notes
from app.console import finish, follow, note, show_table
from app.loaded import CurrentPlan
from pruning.measures.store import readable_records
from pruning.option import Option
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY, PruningPlan, fit_plan
from pruning.plan.size_words import less_in_words
from pruning.plan.sizes import format_bytes, size_report
from pruning.plan.super_experts import super_note
from pruning.plan.widths import WidthChoice
from pruning.planning.comparing import asked_of, check_alike
from pruning.planning.ranking import weights_measured
from pruning.planning.ship_verdict import recorded_verdict
from pruning.records.evaluation import EvaluationStore
from pruning.records.kept_answers import AnswerStore
from pruning.records.quality import stored_losses
from pruning.requests.following import export_command
from pruning.requests.ranking import HALF, DrawRequest, PlotRequest, ReportRequest
from pruning.serving.engines import Readers, contents_of, readers, verdicts
from pruning.spec.base import command_line, flat_fields, flat_values, option_words, repeated
from pruning.spec.spec import PlanSpec
from pruning.surgery.width_sizes import width_option

if TYPE_CHECKING:
    from app.loaded import Loaded

_USUAL = {"expert": "reap", "neuron": "heapr"}
View = Annotated[str, Option("What to draw; --list names all.", place="VIEW")]


def _list_views(lists_views: bool) -> None:
    if lists_views:
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
    plans: tuple[Path, ...] = (),
    view: View,
    plan_file: Annotated[
        options.Plan | None,
        Option("Draw this plan.json, instead of the plan that the options make.", ("--plan",)),
    ] = None,
    out_file: Annotated[
        options.Out | None,
        Option(
            ".html, .svg, .png, .pdf, or .csv for the numbers; default: VIEW.html.",
            endings=(".html", ".svg", ".png", ".pdf", ".csv"),
        ),
    ] = None,
    force: options.Force = False,
    list_views: Annotated[
        bool, typer.Option("--list", help="List the views.", is_eager=True, callback=_list_views)
    ] = False,
) -> None:
    """Draw a figure of the dashboard, or write the numbers behind it, without a browser session.

    Example: moeprune plot loss-by-size demo
    """
    from app.charts.files import write_figure
    from app.charts.listing import get_chart
    from app.charts.published import PaperChart, block_of

    del list_views  # its callback has done it
    chart_view, path = get_chart(view), out_file or Path(f"{view}.html")
    check_free(path, "is there already", force=force)
    if is_of_paper := isinstance(chart_view, PaperChart):
        chart = chart_view.draw(block_of(request.model, request.block))
    else:
        panels = tuple(map(get_criterion, request.panels))
        loaded = _loaded(request, plans, chart_view.granularity, plan_file, panels)
        chart = chart_view.draw(loaded.choosing(**_choices(request, panels)))
        if plan_file and loaded.shown:
            by, criterion = loaded.shown.plan.provenance.criterion, request.plan.ranking.criterion
            if by and criterion and by != criterion:
                note(f"{plan_file} was ranked by {by}; here {criterion} orders its experts")
    if path.suffix == ".csv":
        write_csv(chart.table, path)
    else:
        write_figure(chart.exported(), path)
    finish(
        f"{chart.alt}\n{path}: {chart_view.title}",
        {"file": str(path), "says": chart.alt},
        *([] if is_of_paper else [_report_command(request, chart_view.name, plans)]),
    )


def _choices(request: PlotRequest, panels: Sequence[Criterion]) -> dict[str, Any]:
    """What a single chart has to choose, as fields of `Choices`."""
    from app.choices import USUAL_STRATA, PathChoice, ResultChoice, StrataChoice, TokenChoice

    criteria = tuple(panel.name for panel in panels) or USUAL_STRATA.criteria
    return {
        "paths": PathChoice(
            DEFAULT_PATHS if request.top_m is None else request.top_m,
            Weighing(request.weights, request.transitions),
            request.clusters,
        ),
        "results": ResultChoice.asked(request),
        "strata": StrataChoice(criteria, request.scale),
        "token": TokenChoice(request.token_text or ""),
        "pair": request.pair,
    }


def _report_command(request: PlotRequest, view: str, plans: Sequence[Path]) -> str:
    """The command for the same chart in a report."""
    values = {name: value for name, value in flat_values(request).items() if name != "model"}
    shared = [name for name in flat_fields(ReportRequest) if name in values]
    if values.get("sparsity") == HALF:
        shared.remove("sparsity")
    words = [*option_words(request, only=shared)] if shared else []
    second = repeated("--with-plan", map(str, plans))
    return command_line("report", request.model, "--view", view, *words, *second)


def _loaded(
    request: DrawRequest,
    plans: Sequence[Path] = (),
    granularity: str = EXPERT_GRANULARITY,
    plan_file: Path | None = None,
    panels: Sequence[Criterion] = (),
) -> "Loaded":
    """What charts of a plan are drawn from, and of further criteria; the granularity is theirs.

    `plans` has the file of the second plan, if it is of one.
    """
    from app.requested import loaded_of

    described = load_model_index(request.model, revision=request.revision)
    plan = read_plan(plan_file, described, request.stats_dir) if plan_file else None
    spec = request.plan
    if plan and plan.provenance.spec:
        spec = _ordered(spec, asked_of(plan, described))
    elif not spec.ranking.criterion:
        spec = spec.changed(criterion=_USUAL[granularity], granularity=granularity)
    store = stats_store(request.stats_dir)
    loaded = loaded_of(request.model_copy(update={"plan": spec}), described, store)
    for criterion in (spec.ranking.rule, loaded.choices.baseline, *panels):
        follow(weights_measured(criterion, described, store))
    if plan and plan_file:
        loaded = replace(loaded, shown=CurrentPlan(plan, file=plan_file.name))
    if loaded.beside:
        loaded = replace(loaded, beside=replace(loaded.beside, file=plans[0].name))
    say_notes(loaded.run_notes)
    return loaded


def _ordered(spec: PlanSpec, asked: PlanSpec) -> PlanSpec:
    """What orders the experts of a plan from a file: what was asked of it, or another criterion."""
    if not spec.ranking.criterion:
        return asked
    is_told = spec.ranking.corpora or spec.ranking.runs or spec.ranking.rule.source != "routed"
    return spec if is_told else spec.changed(corpora=asked.ranking.corpora)


@command(ReportRequest)
def report(
    request: ReportRequest,
    *,
    plans: tuple[Path, ...] = (),
    plan: Annotated[
        options.Plan | None,
        Option("Write one page for decision makers on this plan.json, without figures."),
    ] = None,
    out_file: Annotated[options.Out, Option(endings=(".html", ".htm"))] = Path("report.html"),
) -> None:
    """Write figures with their sentences and numbers as one HTML page that opens offline.

    With --plan one printed page: what it saves, what it loses against Random and the original, and
    the figures of --with-plan.
    With --story the findings of the page Story, live.

    Example: moeprune report demo --plan plan.json
    """
    from app.report.page import report_html, report_of, views_of

    if request.story:
        if plan is not None or request.views:
            raise PlanError(
                "--story tells all its findings of a plan of options; leave out --plan and --view."
            )
        _report_story(request, out_file)
        return
    if plan is not None and request.views:
        raise PlanError("--view is for figures, and a page on a --plan has none; leave one out.")
    if plan is not None:
        _report_decision(request, plan, out_file, plans)
        return
    loaded = _loaded(request, plans)
    views = views_of(request.views, loaded.choices.spec.ranking.criterion)
    page = report_of(loaded, views, request.title)
    if not page.sections:
        raise PlanError(f"Nothing can be drawn. {next(iter(page.omitted))}")
    write_durably(out_file, report_html(page).encode())
    for reason, titles in page.omitted.items():
        note(f"left out: {'; '.join(titles)}: {reason}")
    count = len(page.sections)
    finish(f"{out_file}: {counted(count, 'figure')}", {"file": str(out_file), "figures": count})


def _report_story(request: ReportRequest, out_file: Path) -> None:
    from app.report.story import story_spec
    from app.report.story_page import story_html, story_page
    from app.requested import loaded_of

    model, store = (
        load_model_index(request.model, revision=request.revision),
        stats_store(request.stats_dir),
    )
    corpora = list(run_by_corpus(store.of_model(model.identity, "routed")))
    spec = story_spec(request.plan, corpora)
    follow(weights_measured(spec.ranking.rule, model, store))
    loaded = loaded_of(request.model_copy(update={"plan": spec}), model, store)
    page = story_page(loaded, request.title)
    if page.story["percent"] != 100 * loaded.fraction:
        note(
            f"{loaded.sparsity} is no step of the slider, which begins at {page.story['percent']}%"
        )
    content = story_html(page).encode()
    write_durably(out_file, content)
    for slide in page.missing:
        note(f"left out: {slide['title']}: {slide['missing']}")
    count = len(page.story["slides"]) - len(page.missing)
    finish(
        f"{out_file}: {counted(count, 'finding')}, {format_bytes(len(content))}",
        {"file": str(out_file), "findings": count, "bytes": len(content)},
    )


def _plan_in(path: Path, request: ReportRequest, model: MoEModel) -> CurrentPlan:
    plan = read_plan(path, model, request.stats_dir)
    return CurrentPlan(plan, file="" if CurrentPlan(plan).name else path.name)


def _export_of(plan: PruningPlan, model: MoEModel) -> tuple[int, Readers]:
    """Bytes of the export of a plan, and the programs that load it."""
    num_bytes = size_report(model, plan).bytes_after
    if plan.granularity == NEURON_GRANULARITY:
        option = width_option(model, fit_plan(plan, model), WidthChoice())
        num_bytes = model.checkpoint.nbytes if option.refused else option.disk_bytes
    return num_bytes, readers(verdicts(contents_of(model, fit_plan(plan, model))))


def _report_decision(
    request: ReportRequest, path: Path, out_file: Path, second: Sequence[Path]
) -> None:
    from app.report.decision import answer_pair, decision_html, decision_of, row_of

    model = load_model_index(request.model, revision=request.revision)
    current_plan = _plan_in(path, request, model)
    others = [_plan_in(other, request, model) for other in second]
    plan = current_plan.plan
    for other in others:
        check_alike(plan.granularity, other.plan)
    store = stats_store(request.stats_dir)
    folders = store.directories
    losses = stored_losses(EvaluationStore(folders), model.identity)
    answers, _ = readable_records(AnswerStore(folders), model.identity)
    files = repeated("--with-plan", (other.name for other in second))
    words = ("report", request.model, "--plan", path.name, *files, "-o", out_file.name)
    num_bytes, _ = _export_of(plan, model)
    decision = decision_of(model, current_plan, num_bytes, losses, command_line(*words))
    warning = super_note(plan, model, store)
    pair = answer_pair(answers, plan.digest)
    rows = []
    for shown in (current_plan, *others):
        export = _export_of(shown.plan, model)
        ship = recorded_verdict(shown.plan, model, store, export)
        rows.append(row_of(model, shown, export[0], losses, ship))
    decision = replace(
        decision,
        answers=pair,
        warning=warning or "",
        ship=rows[0].ship,
        plans=tuple(rows) if others else (),
    )
    write_durably(out_file, decision_html(decision).encode())
    finish(
        f"{out_file}: {less_in_words(decision.before, decision.after)}. {decision.verdict}",
        {"file": str(out_file), "bytes_before": decision.before, "bytes_after": decision.after},
        export_command(request.model, "--plan", str(path)),
    )
