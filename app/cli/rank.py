"""Commands on statistics: score, overlap, blend."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from analysis.errors import StatsError
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_csv
from app.cli.say import say_runs, say_sources
from app.console import follow, out, show_frame, show_table
from pruning.requests.base import Option
from pruning.requests.options import Switch
from pruning.requests.plan import PlanRequest
from pruning.requests.ranking import BlendRequest, OverlapRequest, ScoreRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from analysis.criteria import Criterion
    from analysis.model import MoEModel
    from analysis.stats.blend import Part
    from analysis.stats.store import Run
    from analysis.stats.tables import ExpertStats


@command(ScoreRequest)
def score(request: ScoreRequest, *, out_file: options.Out = Path("scores.csv")) -> None:
    """Score every expert; writes layer, expert, score, saliency, rank, num_tokens as CSV.

    With --granularity atomic every neuron, and then also the column neuron.
    """
    from pruning.tasks.selection import selection_for

    selection = follow(selection_for(request.into(PlanRequest, sparsity="0")))
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


@command(OverlapRequest)
def overlap(
    request: OverlapRequest,
    *,
    out_file: options.Out = Path("overlap.csv"),
    figure: Annotated[
        Path | None,
        Option("Also draw the overlap map of the variants: .html, .svg, .png or .pdf."),
    ] = None,
    parts: Annotated[
        Switch, Option("Of each corpus: 1/8, 1/4, 1/2 of its tokens against all; default: reap.")
    ] = False,
    proxy: Annotated[
        Switch, Option("Of each corpus: exact damage against its proxy, also at 25% and 50%.")
    ] = False,
) -> None:
    """Compare the pruned sets of the calibrated corpora, pair by pair; writes CSV."""
    from analysis.ranking.overlap import mean_overlaps

    if parts or proxy:
        if (parts and proxy) or figure or (proxy and request.criterion):
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
        from app.charts.files import write_figure
        from app.charts.overlap_map import variant_map

        write_figure(variant_map(means), figure)
        out.print(str(figure), markup=False)
    columns = ["criterion", "overlap", "chance"]
    show_frame(f"Mean over pairs of {', '.join(stats)}", means[columns])
    out.print(f"{out_file}: {len(table)} rows", markup=False)


def _runs_to_compare(request: OverlapRequest, criterion: "Criterion | None") -> "dict[str, Run]":
    from analysis.errors import PlanError
    from analysis.model import load_model_index
    from analysis.sparsity import num_removed
    from analysis.stats.choose import newest_by_corpus, parse_corpus_weight, routed_runs
    from analysis.stats.store import stats_store

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


def _stats_to_compare(request: OverlapRequest) -> "dict[str, ExpertStats]":
    from analysis.criteria import get_criterion
    from analysis.stats.store import load_expert_stats

    criterion = get_criterion(request.criterion) if request.criterion else None
    runs = _runs_to_compare(request, criterion)
    if len(runs) < 2:
        (run,) = runs.values()
        raise StatsError(
            f"Overlap needs runs on at least two corpora; {run.manifest.model.name} has 1."
        )
    return {name: load_expert_stats(run) for name, run in runs.items()}


def _within_parts(request: OverlapRequest) -> "pd.DataFrame":
    """Table `corpus, tokens, overlap, chance`: parts of the tokens against all of them."""
    from analysis.stats.shards import TOKEN_PARTS, overlap_of_parts, stats_at

    criterion = _corpus_dependent(request.criterion or "reap")
    seen = {
        name: [stats_at(run, parts) for parts in TOKEN_PARTS]
        for name, run in _runs_to_compare(request, criterion).items()
    }
    return _by_corpus(
        (name, overlap_of_parts(parts, criterion, request.gate, request.fraction))
        for name, parts in seen.items()
    )


def _within_proxy(request: OverlapRequest) -> "pd.DataFrame":
    """Table `corpus, sparsity, overlap, chance`: the exact damage against its proxy."""
    from analysis.criteria import get_criterion
    from analysis.ranking.proxy import SPARSITIES, proxy_overlap
    from analysis.stats.store import load_expert_stats

    sparsities = sorted({*SPARSITIES, request.fraction})
    return _by_corpus(
        (name, proxy_overlap(load_expert_stats(run), sparsities))
        for name, run in _runs_to_compare(request, get_criterion("damage")).items()
    )


def _by_corpus(tables: "Iterable[tuple[str, pd.DataFrame]]") -> "pd.DataFrame":
    import pandas as pd

    named = [table.assign(corpus=name) for name, table in tables]
    table = pd.concat(named, ignore_index=True)
    return table[["corpus", *table.columns.drop("corpus")]]


def _show_within(table: "pd.DataFrame", path: Path) -> None:
    write_csv(table, path)
    show_frame("Pruned sets within each corpus", table)
    out.print(f"{path}: {len(table)} rows", markup=False)


def _overlaps(request: OverlapRequest, stats: "dict[str, ExpertStats]") -> "pd.DataFrame":
    from analysis.ranking.overlap import criterion_overlap, variant_overlaps

    if request.criterion is None:
        return variant_overlaps(stats, request.gate, request.fraction)
    chosen = _corpus_dependent(request.criterion)
    return criterion_overlap(chosen, stats, request.gate, request.fraction)


def _corpus_dependent(name: str) -> "Criterion":
    """A criterion that ranks by a corpus; others are the same for all."""
    from analysis.criteria import get_criterion

    criterion = get_criterion(name)
    if criterion.source != "routed":
        raise StatsError(f"{criterion.label} reads no corpus, so its overlap is always 1.")
    return criterion


@command(BlendRequest)
def blend(
    request: BlendRequest,
    *,
    fair: Annotated[Switch, Option("Find the weights that cover the worst corpus best.")] = False,
) -> None:
    """Mix calibrated corpora: how much of each corpus' saliency the kept experts hold."""
    from analysis.criteria import get_criterion
    from analysis.model import load_model_index
    from analysis.ranking.coverage import Blender, fair_blend
    from analysis.sparsity import parse_sparsity
    from analysis.stats.blend import Mixture
    from pruning.schedules.uniform import uniform

    model = load_model_index(request.model, revision=request.revision)
    # Refuses a sparsity that no plan can have, and names what would work.
    uniform(model.layers, request.sparsity)
    chosen = get_criterion(request.criterion)
    parts, notes = _parts(request, model, chosen)
    runs = [part.run for part in parts]
    blender = Blender(Mixture(runs), chosen, request.gate, parse_sparsity(request.sparsity))
    if fair:
        found = fair_blend(blender)
        weights, covered = list(found.weights), list(found.coverage)
    else:
        weights = [part.weight for part in parts]
        covered = blender.coverage(weights).tolist()
    rows = [
        (run.manifest.corpus, weight / sum(weights), cover)
        for run, weight, cover in zip(runs, weights, covered, strict=True)
    ]
    show_table(
        f"Coverage by {chosen.label} at sparsity {request.sparsity}",
        ("corpus", "share", "coverage"),
        rows,
    )
    mixed = " ".join(f"--corpus {name}:{share:.4g}" for name, share, _ in rows if share >= 5e-5)
    out.print(f"worst {min(covered):.4f}; use it with {mixed}", markup=False, soft_wrap=True)
    say_sources(runs, notes)


def _parts(
    request: BlendRequest, model: "MoEModel", criterion: "Criterion"
) -> "tuple[list[Part], tuple[str, ...]]":
    """The runs to mix, and notes on how they were chosen."""
    from analysis.stats.choose import notes_on_others, parse_corpus_weight, routed_runs
    from analysis.stats.store import stats_store

    store = stats_store(request.stats_dir)
    wanted = [parse_corpus_weight(text) for text in request.corpora]
    if not wanted and not request.runs:
        raise StatsError("Name the corpora to mix with --corpus, or their runs with --run.")
    parts = routed_runs(store, model, wanted, request.runs, criterion)
    if len(parts) < 2:
        raise StatsError("A blend mixes at least two corpora; name them with --corpus or --run.")
    if request.runs:
        return parts, ()
    runs = store.of_model(model.identity, "routed")
    return parts, notes_on_others([part.run for part in parts], runs, criterion)
