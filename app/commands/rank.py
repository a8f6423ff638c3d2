"""Commands on statistics: score, overlap."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError, StatsError, unknown_name
from analysis.model import load_model_index
from analysis.ranking.overlap import criterion_overlap, mean_overlaps, variant_overlaps
from analysis.ranking.proxy import SPARSITIES, proxy_overlap
from analysis.sparsity import num_removed
from analysis.stats.choose import newest_by_corpus, parse_corpus_weight, routed_runs
from analysis.stats.shards import parts_overlap
from analysis.stats.store import Run, load_expert_stats
from analysis.stats.tables import ExpertStats
from app.commands import options
from app.commands.files import write_csv
from app.console import follow, out, show_frame
from app.settings import stats_store
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.ranking import Selection, select_measured
from pruning.requests.base import OverlapRequest, validated
from pruning.requests.plan import PlanRequest


def selection_of(model: str, given: dict[str, object]) -> Selection:
    """The selection of a command's options; weights are measured first where they are needed.

    Raises:
        UserError: an option that is not valid, or no statistics that fit.
    """
    return selection_for(validated(PlanRequest, {"model": model, **given}))


def selection_for(request: PlanRequest) -> Selection:
    """The selection of a request; weights are measured first where they are needed.

    Raises:
        UserError: no statistics that fit.
    """
    described = load_model_index(request.model, revision=request.revision)
    return follow(select_measured(request, described, stats_store(request.stats_dir)))


def score(
    model: options.Model,
    criterion: options.CriterionName,
    out_file: options.Out = Path("scores.csv"),
    corpus: options.Corpora = None,
    run: options.Runs = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    granularity: Annotated[
        str, typer.Option(help="What is scored: whole experts (expert), or neurons (atomic).")
    ] = EXPERT_GRANULARITY,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Score every expert; writes layer, expert, score, saliency, rank, num_tokens as CSV.

    With --granularity atomic every neuron, and then also the column neuron.
    """
    if granularity not in (EXPERT_GRANULARITY, ATOMIC_GRANULARITY):
        raise StatsError(
            unknown_name("granularity", granularity, (EXPERT_GRANULARITY, ATOMIC_GRANULARITY))
        )
    selection = selection_of(
        model,
        {
            "granularity": granularity,
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "runs": tuple(run or ()),
            "gate": gate,
            "sparsity": "0",
            "revision": revision,
            "stats_dir": stats_dir,
        },
    )
    write_csv(selection.table, out_file)
    ranked = selection.criterion
    if selection.is_atomic:
        where = "of its layer" if ranked.within_layers else "of the model"
        said = f"neurons by {ranked.label}; rank 0 is the first {where} to stay"
    else:
        larger = "prune first" if ranked.prune_larger else "keep"
        said = f"experts by {ranked.label} (larger score = {larger}); rank 0 is kept first"
    out.print(f"{out_file}: {len(selection.table)} {said}", markup=False)
    say_runs(selection)


def overlap(
    model: options.Model,
    sparsity: options.Sparsity,
    out_file: options.Out = Path("overlap.csv"),
    criterion: Annotated[
        str | None, typer.Option(help="One criterion; default: all 17 rankable variants.")
    ] = None,
    corpus: options.Corpora = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    figure: Annotated[
        Path | None,
        typer.Option(help="Also draw the overlap map of the variants: .html, .svg, .png or .pdf."),
    ] = None,
    parts: Annotated[
        bool,
        typer.Option(
            "--parts",
            help="Of each corpus: 1/8, 1/4, 1/2 of its tokens against all; default: reap.",
        ),
    ] = False,
    proxy: Annotated[
        bool,
        typer.Option(
            "--proxy", help="Of each corpus: exact damage against its proxy, also at 25% and 50%."
        ),
    ] = False,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Compare the pruned sets of the calibrated corpora, pair by pair; writes CSV."""
    request = validated(
        OverlapRequest,
        {
            "model": model,
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "gate": gate,
            "sparsity": sparsity,
            "revision": revision,
            "stats_dir": stats_dir,
        },
    )
    if parts or proxy:
        if (parts and proxy) or figure or (proxy and criterion):
            raise StatsError(
                "--parts, --proxy and --figure exclude each other; --proxy ranks by damage."
            )
        _show_within(_within_parts(request) if parts else _within_proxy(request), out_file)
        return
    stats = _stats_to_compare(request)
    table = _overlaps(request, stats)
    write_csv(table, out_file)
    means = mean_overlaps(table).sort_values("overlap", ascending=False)
    if figure is not None:
        _draw(means, figure)
    columns = ["criterion", "overlap", "chance"]
    show_frame(f"Mean over pairs of {', '.join(stats)}", means[columns])
    out.print(f"{out_file}: {len(table)} rows", markup=False)


def _runs_to_compare(request: OverlapRequest, criterion: Criterion | None) -> dict[str, Run]:
    model = load_model_index(request.model, revision=request.revision)
    if not any(num_removed(layer.num_experts, request.fraction) for layer in model.layers):
        least = 1 / max(layer.num_experts for layer in model.layers)
        raise PlanError(
            f"The sparsity {request.sparsity} removes no expert, so there is nothing to compare; "
            f"the least that removes one per layer is {least:.4g}."
        )
    store = stats_store(request.stats_dir)
    runs = store.of_model(model.identity, "routed")
    if request.corpora or not newest_by_corpus(runs):  # which says that there are none
        wanted = [parse_corpus_weight(text) for text in request.corpora]
        runs = [part.run for part in routed_runs(store, model, wanted, (), criterion)]
    return newest_by_corpus(runs, criterion)


def _stats_to_compare(request: OverlapRequest) -> dict[str, ExpertStats]:
    criterion = get_criterion(request.criterion) if request.criterion else None
    runs = _runs_to_compare(request, criterion)
    if len(runs) < 2:
        (run,) = runs.values()
        raise StatsError(
            f"Overlap needs runs on at least two corpora; {run.manifest.model.name} has 1."
        )
    return {name: load_expert_stats(run) for name, run in runs.items()}


def _within_parts(request: OverlapRequest) -> pd.DataFrame:
    """Table `corpus, tokens, overlap, chance`: parts of the tokens against all of them."""
    criterion = _of_text(request.criterion or "reap")
    return _by_corpus(
        (name, parts_overlap(run, criterion, request.gate, request.fraction))
        for name, run in _runs_to_compare(request, criterion).items()
    )


def _within_proxy(request: OverlapRequest) -> pd.DataFrame:
    """Table `corpus, sparsity, overlap, chance`: the exact damage against its proxy."""
    sparsities = sorted({*SPARSITIES, request.fraction})
    return _by_corpus(
        (name, proxy_overlap(load_expert_stats(run), sparsities))
        for name, run in _runs_to_compare(request, get_criterion("damage")).items()
    )


def _by_corpus(tables: Iterable[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    named = [table.assign(corpus=name) for name, table in tables]
    table = pd.concat(named, ignore_index=True)
    return table[["corpus", *table.columns.drop("corpus")]]


def _show_within(table: pd.DataFrame, path: Path) -> None:
    write_csv(table, path)
    show_frame("Pruned sets within each corpus", table)
    out.print(f"{path}: {len(table)} rows", markup=False)


def _overlaps(request: OverlapRequest, stats: dict[str, ExpertStats]) -> pd.DataFrame:
    if request.criterion is None:
        return variant_overlaps(stats, request.gate, request.fraction)
    chosen = _of_text(request.criterion)
    return criterion_overlap(chosen, stats, request.gate, request.fraction)


def _of_text(name: str) -> Criterion:
    """A criterion that corpora can differ by."""
    criterion = get_criterion(name)
    if criterion.source != "routed":
        raise StatsError(f"{criterion.label} reads no corpus, so its overlap is always 1.")
    return criterion


def say_runs(selection: Selection) -> None:
    """Print which runs the numbers come from, and why these where there are others."""
    say_sources(selection.choice.runs, selection.choice.notes)


def say_sources(runs: Iterable[Run], notes: Iterable[str]) -> None:
    """Print these runs, and what a person should know of their choice."""
    for run in runs:
        say_run(run)
    for note in notes:
        out.print(note, markup=False)


def say_run(run: Run) -> None:
    """Print that numbers come from this run."""
    tokens = f", {run.manifest.num_tokens:,} tokens" if run.manifest.num_tokens else ""
    dtype = run.manifest.settings["dtype"]
    out.print(f"from {run.manifest.run_id}{tokens}, {dtype}", markup=False)


def _draw(means: pd.DataFrame, path: Path) -> None:
    # Plotly takes a second to import, which only those who draw should wait for.
    from app.charts.overlap_map import variant_map
    from app.figures.files import write_figure

    write_figure(variant_map(means), path)
    out.print(str(path), markup=False)
