"""Commands on statistics: score, overlap, plan."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from analysis.choose import newest_by_corpus, parse_corpus_weight, routed_runs
from analysis.criteria import get_criterion
from analysis.errors import PlanError, StatsError
from analysis.model import load_model_index
from analysis.overlap import criterion_overlap, mean_overlaps, variant_overlaps
from analysis.sparsity import num_removed
from analysis.stats import ExpertStats
from analysis.store import PARTIAL, load_expert_stats, write_durably
from app.commands import options
from app.commands.console import follow, out, show_table
from app.selection import Selection, select
from app.settings import stats_store
from app.task_requests import OverlapRequest, SelectRequest, WeightsRequest, validated
from app.tasks import weights_run
from pruning.plan import save_plan
from pruning.sizes import format_bytes, size_report

Out = Annotated[Path, typer.Option("--out", "-o", help="File to write.", dir_okay=False)]


def _select(model: str, given: dict[str, object]) -> Selection:
    """The selection of a command's options; weights are measured first where they are needed."""
    request: SelectRequest = validated(SelectRequest, {"model": model, **given})
    described = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    reads_weights = get_criterion(request.criterion).source == "weights"
    if reads_weights and not store.of_model(described.identity, "weights"):
        # Seconds, and cached: not worth a command of its own first.
        wanted = WeightsRequest(
            model=request.model, revision=request.revision, stats_dir=request.stats_dir
        )
        follow(weights_run(wanted))
    return select(request, described, store)


def _save_csv(table: pd.DataFrame, path: Path) -> None:
    try:
        write_durably(path, table.to_csv(index=False).encode())
    except OSError as error:
        path.with_name(path.name + PARTIAL).unlink(missing_ok=True)
        raise StatsError(f"The table cannot be written to {path}: {error.strerror}.") from error


def score(
    model: options.Model,
    criterion: options.CriterionName,
    out_file: Out = Path("scores.csv"),
    corpus: options.Corpora = None,
    run: options.Runs = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Score every expert; writes layer, expert, score, saliency, rank, num_tokens as CSV."""
    selection = _select(
        model,
        {
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "runs": tuple(run or ()),
            "gate": gate,
            "sparsity": "0",
            "revision": revision,
            "stats_dir": stats_dir,
        },
    )
    table = selection.ranking()
    _save_csv(table, out_file)
    larger = "prune first" if selection.criterion.prune_larger else "keep"
    direction = f"larger score = {larger}"
    out.print(
        f"{out_file}: {len(table)} experts by {selection.criterion.label} ({direction}); "
        "rank 0 is kept first",
        markup=False,
    )
    _say_runs(selection)


def overlap(
    model: options.Model,
    sparsity: options.Sparsity,
    out_file: Out = Path("overlap.csv"),
    criterion: Annotated[
        str | None, typer.Option(help="One criterion; default: all 17 rankable variants.")
    ] = None,
    corpus: options.Corpora = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    figure: Annotated[
        Path | None,
        typer.Option(help="Also draw the overlap map of the variants: .html, .svg, .png or .pdf."),
    ] = None,
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
    stats = _stats_to_compare(request)
    table = _overlaps(request, stats)
    _save_csv(table, out_file)
    means = mean_overlaps(table).sort_values("overlap", ascending=False)
    if figure is not None:
        _draw(means, figure)
    rows = means[["criterion", "overlap", "chance"]].to_numpy().tolist()
    show_table(f"Mean over pairs of {', '.join(stats)}", ("criterion", "overlap", "chance"), rows)
    out.print(f"{out_file}: {len(table)} rows", markup=False)


def _stats_to_compare(request: OverlapRequest) -> dict[str, ExpertStats]:
    model = load_model_index(request.model, revision=request.revision)
    if not any(num_removed(layer.num_experts, request.fraction) for layer in model.layers):
        least = 1 / max(layer.num_experts for layer in model.layers)
        raise PlanError(
            f"The sparsity {request.sparsity} removes no expert, so there is nothing to compare; "
            f"the least that removes one per layer is {least:.4g}."
        )
    store = stats_store(request.stats_dir)
    if request.corpora:
        wanted = [parse_corpus_weight(text) for text in request.corpora]
        runs = [part.run for part in routed_runs(store, model, wanted, ())]
    else:
        runs = store.of_model(model.identity, "routed")
    stats = {name: load_expert_stats(run) for name, run in newest_by_corpus(runs).items()}
    if len(stats) < 2:
        raise StatsError(
            f"Overlap needs runs on at least two corpora; {model.name} has {len(stats)}."
        )
    return stats


def _overlaps(request: OverlapRequest, stats: dict[str, ExpertStats]) -> pd.DataFrame:
    if request.criterion is None:
        return variant_overlaps(stats, request.gate, request.fraction)
    chosen = get_criterion(request.criterion)
    if chosen.source != "routed":
        raise StatsError(f"{chosen.label} reads no corpus, so its overlap is always 1.")
    return criterion_overlap(chosen, stats, request.gate, request.fraction)


def _say_runs(selection: Selection) -> None:
    for run in selection.choice.runs:
        tokens = f", {run.manifest.num_tokens:,} tokens" if run.manifest.num_tokens else ""
        dtype = run.manifest.settings["dtype"]
        out.print(f"from {run.manifest.run_id}{tokens}, {dtype}", markup=False)


def _draw(means: pd.DataFrame, path: Path) -> None:
    # Plotly takes a second to import, which only those who draw should wait for.
    from app.figures.files import write_figure
    from app.figures.variant_map import variant_map

    write_figure(variant_map(means), path)
    out.print(str(path), markup=False)


def plan(
    model: options.Model,
    criterion: options.CriterionName,
    sparsity: options.Sparsity,
    out_file: Out = Path("plan.json"),
    corpus: options.Corpora = None,
    run: options.Runs = None,
    gate: options.GateOption = options.DEFAULT_GATE,
    schedule: Annotated[str, typer.Option(help="How the budget is spread: uniform.")] = "uniform",
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """Choose the experts that stay; writes plan.json."""
    selection = _select(
        model,
        {
            "criterion": criterion,
            "corpora": tuple(corpus or ()),
            "runs": tuple(run or ()),
            "gate": gate,
            "sparsity": sparsity,
            "schedule": schedule,
            "revision": revision,
            "stats_dir": stats_dir,
        },
    )
    described, made = selection.model, selection.plan()
    save_plan(made, out_file)
    report = size_report(described, made)
    kept = sum(len(ids) for ids in made.kept.values())
    out.print(
        f"{out_file}: keeps {kept} of {described.num_experts} experts, "
        f"{format_bytes(report.bytes_before)} -> {format_bytes(report.bytes_after)}, "
        f"digest {made.digest[:8]}",
        markup=False,
    )
    _say_runs(selection)
