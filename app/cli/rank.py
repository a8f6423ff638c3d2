"""Commands on statistics: score, overlap, compare, blend."""

from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Annotated

from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import Criterion, get_criterion
from analysis.errors import PlanError, StatsError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.model.widths import quantised_role
from analysis.numbers.sparsity import num_removed, parse_sparsity
from analysis.progress import Progress
from analysis.ranking.choose import (
    notes_on_others,
    readable_runs,
    routed_runs,
    run_by_corpus,
)
from analysis.ranking.compare import FATES, Comparison
from analysis.ranking.coverage import Blender, fair_blend
from analysis.ranking.overlap import (
    criterion_overlap,
    mean_overlaps,
    overlap_of_parts,
    variant_overlaps,
)
from analysis.ranking.proxy import SPARSITIES, proxy_overlap
from analysis.stats.blend import Mixture
from analysis.stats.manifest import EXPERTS, SHARDS, Run
from analysis.stats.reading import load_expert_stats
from analysis.stats.shards import TOKEN_PARTS, check_has_parts, stats_at
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.files import write_table
from app.cli.say import say_choice, say_sources
from app.console import finish, follow, out, show_facts, show_frame, show_table
from pruning.option import Option
from pruning.plan.plan import PruningPlan
from pruning.plan.tables import STATES
from pruning.planning.comparing import (
    check_alike,
    decision,
    first_of,
    order_asked_of,
    pair_of,
    plan_held,
    with_counts_of,
)
from pruning.planning.neurons_compared import compare_neurons
from pruning.planning.ranking import Ranking
from pruning.requests.following import free_name, plan_command, usual_budget
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import BlendRequest, CompareRequest, OverlapRequest, ScoreRequest
from pruning.schedules.spreads import uniform
from pruning.spec.base import command_line, option_words, repeated
from pruning.spec.options import Switch
from pruning.study import Study


@command(ScoreRequest)
def score(request: ScoreRequest, *, out_file: options.OutTable = Path("scores.csv")) -> None:
    """Score every expert; writes layer, expert, score, saliency, rank, num_tokens as CSV.

    With --granularity neuron every neuron, and then also the column neuron.

    Example: moeprune score demo --criterion reap --calibrated-on demo-code
    """
    ranking = follow(_ranked(request.into(SpecRequest, sparsity="0")))
    write_table(ranking.table, out_file)
    say_choice(ranking.choice)
    ranked, count = ranking.criterion, len(ranking.table)
    if ranking.by_neuron:
        where = "of its layer" if ranked.within_layers else "of the model"
        description = f"neurons by {ranked.label}; rank 0 is the first {where} to stay"
    else:
        larger = "prune first" if ranked.prune_larger else "keep"
        description = f"experts by {ranked.label} (larger score = {larger}); rank 0 is kept first"
    neurons = ("--granularity", "neuron", "--shrink", "40%")
    budget = neurons if ranking.by_neuron else usual_budget(ranking.model)
    following = plan_command(request, ranked.name, request.ranking.corpora, budget)
    cannot = ranking.by_neuron and quantised_role(ranking.model)  # be cut, only scored
    finish(
        f"{out_file}: {count} {description}",
        {"file": str(out_file), "rows": count, "criterion": ranked.name},
        *(() if cannot else (following,)),
    )


@command(OverlapRequest)
def overlap(
    request: OverlapRequest,
    *,
    out_file: options.OutTable = Path("overlap.csv"),
    figure: Annotated[
        options.OutFigure | None,
        Option("Also draw the overlap map of the variants: .html, .svg, .png or .pdf."),
    ] = None,
    parts: Annotated[
        Switch, Option("Compare 1/8, 1/4, 1/2 of the tokens with all, per corpus; default: reap.")
    ] = False,
    proxy: Annotated[
        Switch, Option("Compare exact damage with its proxy per corpus, also at 25% and 50%.")
    ] = False,
) -> None:
    """Compare the pruned sets of the calibrated corpora, pair by pair; writes CSV.

    Example: moeprune overlap demo --sparsity 50% --criterion reap
    """
    following: list[str] = []
    if parts or proxy:
        if (parts and proxy) or figure or (proxy and request.criterion):
            raise StatsError(
                "--parts, --proxy and --figure exclude each other; --proxy ranks by damage."
            )
        table = _within_parts(request) if parts else _within_proxy(request)
        show_frame("Pruned sets within each corpus", table)
        conclusion = f"mean overlap {table['overlap'].mean():.3f}"
    else:
        table, conclusion, *following = _between_corpora(request, figure)
    write_table(table, out_file)
    result = {"file": str(out_file), "rows": len(table), "overlap": float(table["overlap"].mean())}
    finish(f"{out_file}: {len(table)} rows; {conclusion}", result, *following)


def _between_corpora(
    request: OverlapRequest, figure: Path | None
) -> tuple["pd.DataFrame", str, str]:
    """The table, what it says, and the command that comes next."""
    criterion = _corpus_dependent(request.criterion) if request.criterion else None
    runs = _runs_to_compare(request, criterion, least=2)
    stats = {name: load_expert_stats(run) for name, run in runs.items()}
    if criterion is None:
        table = variant_overlaps(stats, request.gate, request.fraction)
    else:
        table = criterion_overlap(criterion, stats, request.gate, request.fraction)
    means = mean_overlaps(table).sort_values("overlap", ascending=False, kind="stable")
    if figure is not None:
        from app.charts.files import write_figure
        from app.charts.overlap_map import variant_map

        write_figure(variant_map(means), figure)
        out.print(str(figure))
    show_frame(f"Mean over pairs of {', '.join(stats)}", means[["criterion", "overlap", "chance"]])
    most, least = means.iloc[0], means.iloc[-1]
    conclusion = f"{most['criterion']} depends least on the corpus ({most['overlap']:.3f})"
    if len(means) > 1:
        conclusion += f", {least['criterion']} most ({least['overlap']:.3f})"
    conclusion += f"; chance is {most['chance']:.3f}"
    name = request.criterion or "reap"
    corpus_flag = "--run" if request.runs else "--calibrated-on"
    words = ("--criterion", name, *repeated(corpus_flag, request.runs or stats), "--fair")
    flags = option_words(request, only=("gate", "sparsity", "revision", "stats_dir"))
    return table, conclusion, command_line("blend", request.model, *words, *flags)


def _runs_to_compare(
    request: OverlapRequest, criterion: Criterion | None, least: int = 1, table: str = EXPERTS
) -> dict[str, Run]:
    """The runs of at least so many corpora, which are printed, by corpus or else by id.

    Where none is named, those that have this table.
    """
    model = load_model_index(request.model, revision=request.revision)
    if not any(num_removed(layer.num_experts, request.fraction) for layer in model.layers):
        one = 1 / max(layer.num_experts for layer in model.layers)
        raise PlanError(
            f"The sparsity {request.sparsity} removes no expert, so there is nothing to compare; "
            f"the least that removes one per layer is {one:.4g}."
        )
    store = stats_store(request.stats_dir)
    runs = readable_runs(store, model, criterion)
    every = [run for run in runs if table in run.manifest.files]
    chosen = run_by_corpus(every, criterion)
    if request.corpora or request.runs or not chosen:  # which says that there are none
        corpora = [parse_corpus_weight(text) for text in request.corpora]
        parts = routed_runs(store, model, corpora, request.runs, criterion)
        names = Counter(part.run.manifest.corpus for part in parts)
        chosen = {
            run.manifest.corpus if names[run.manifest.corpus] == 1 else run.manifest.run_id: run
            for run in (part.run for part in parts)
        }
    if table == SHARDS:
        for run in chosen.values():
            check_has_parts(run)
    if len(chosen) < least:
        more = "name a second one" if request.runs else "`moeprune calibrate` adds a corpus"
        if request.corpora:
            more = "name another with --calibrated-on, or leave it out for all"
        only = ", ".join(chosen)
        raise StatsError(f"Overlap compares at least two corpora and has only {only}; {more}.")
    others = () if request.runs else every
    say_sources(chosen.values(), notes_on_others(chosen.values(), others, criterion))
    return chosen


def _within_parts(request: OverlapRequest) -> "pd.DataFrame":
    """Table `corpus, tokens, overlap, chance`: parts of the tokens against all of them."""
    criterion = _corpus_dependent(request.criterion or "reap")
    stats = {
        name: [stats_at(run, parts) for parts in TOKEN_PARTS]
        for name, run in _runs_to_compare(request, criterion, table=SHARDS).items()
    }
    return _by_corpus(
        (name, overlap_of_parts(parts, criterion, request.gate, request.fraction))
        for name, parts in stats.items()
    )


def _within_proxy(request: OverlapRequest) -> "pd.DataFrame":
    """Table `corpus, sparsity, overlap, chance`: the exact damage against its proxy."""
    sparsities = sorted({*SPARSITIES, request.fraction})
    return _by_corpus(
        (name, proxy_overlap(load_expert_stats(run), sparsities))
        for name, run in _runs_to_compare(request, get_criterion("damage")).items()
    )


def _by_corpus(tables: "Iterable[tuple[str, pd.DataFrame]]") -> "pd.DataFrame":
    frames = [table.assign(corpus=name) for name, table in tables]
    table = pd.concat(frames, ignore_index=True)
    return table[["corpus", *table.columns.drop("corpus")]]


def _corpus_dependent(name: str) -> Criterion:
    """A criterion that ranks by a corpus; others are the same for all."""
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
    """Mix calibrated corpora: how much of each corpus' saliency the kept experts hold.

    Example: moeprune blend demo --criterion reap --sparsity 50% --calibrated-on demo-code:2
    --calibrated-on demo-math
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    # Refuses a sparsity that no plan can have, and names what would work.
    uniform(model.layers, request.sparsity)
    ranked_by = request.ranking
    chosen = ranked_by.rule
    corpora = [parse_corpus_weight(text) for text in ranked_by.corpora]
    if not corpora and not ranked_by.runs:
        raise StatsError("Name the corpora to mix with --calibrated-on, or their runs with --run.")
    parts = routed_runs(store, model, corpora, ranked_by.runs, chosen)
    if len(parts) < 2:
        raise StatsError(
            "A blend mixes at least two corpora; name them with --calibrated-on or --run."
        )
    runs = [part.run for part in parts]
    blender = Blender(Mixture(runs), chosen, ranked_by.gate, parse_sparsity(request.sparsity))
    if fair:
        solution = fair_blend(blender)
        weights, covered = list(solution.weights), list(solution.coverage)
    else:
        weights = [part.weight for part in parts]
        covered = blender.coverage(weights).tolist()
    rows = [
        (run.manifest.corpus, weight / sum(weights), cover)
        for run, weight, cover in zip(runs, weights, covered, strict=True)
    ]
    title = f"Coverage by {chosen.label} at sparsity {request.sparsity}"
    show_table(title, ("corpus", "share", "coverage"), rows)
    is_even = len({share for _, share, _ in rows}) == 1
    mixed = [name if is_even else f"{name}:{share:.4g}" for name, share, _ in rows if share >= 5e-5]
    others = () if ranked_by.runs else readable_runs(store, model, chosen)
    say_sources(runs, notes_on_others(runs, others, chosen))
    finish(
        f"the worst covered corpus holds {min(covered):.4f} of its saliency",
        {"weights": {name: share for name, share, _ in rows}, "worst": min(covered)},
        plan_command(request, chosen.name, mixed, ("--sparsity", request.sparsity)),
    )


def _study(request: SpecRequest) -> Study:
    model = load_model_index(request.model, revision=request.revision)
    return Study.of(request, model, stats_store(request.stats_dir))


def _ranked(request: SpecRequest) -> Generator[Progress, None, Ranking]:
    """What a request ranks; weights are measured first if needed."""
    return (yield from _study(request).rank(request.plan))


def _planned(request: SpecRequest) -> tuple[Ranking, PruningPlan]:
    """A ranking, for which weights are measured first if needed, and its plan."""
    study = _study(request)
    ranking = follow(study.rank(request.plan))
    return ranking, study.plan_of(ranking)


def _compare_neurons(a: PruningPlan, b: PruningPlan, model: MoEModel, out_file: Path) -> None:
    """Write how alike two plans treat the neurons of each expert."""
    comparison = compare_neurons(a, b, model)
    write_table(comparison.table, out_file)
    agreed, jaccard = comparison.agreement, comparison.jaccard
    show_facts(
        {
            "equal decisions": agreed,
            "jaccard of the pruned": jaccard,
            **{
                f"kept by {fate}": comparison.count(n)
                for n, fate in zip(STATES, FATES, strict=True)
            },
        }
    )
    finish(
        f"{out_file}: {agreed:.1%} of {comparison.total} decisions on neurons are equal",
        {"file": str(out_file), "agreement": agreed, "jaccard": jaccard},
    )


@command(CompareRequest)
def compare(
    request: CompareRequest,
    *,
    plans: tuple[Path, ...] = (),
    out_file: options.OutTable = Path("comparison.csv"),
) -> None:
    """Compare two plans: which experts both keep, one, or neither; writes CSV.

    Two plans of neurons take the second as a file: how many neurons of each expert.

    Example: moeprune compare demo --criterion reap --with-criterion ean --sparsity 50%
    --calibrated-on demo-code
    """
    asked = first_of(request, request.plan)
    if request.with_plan is None:
        pair = pair_of(request, request.plan)
        first, a = _planned(asked)
        pair = with_counts_of(a, pair)
        second, b = _planned(pair.b)
        following = [pair.b.command(out=free_name("b.json"))]
    else:
        model = load_model_index(request.model, revision=request.revision)
        b = plan_held(request.with_plan, model)
        check_alike(request.plan.ranking.granularity, b)
        first, a = _planned(asked)
        if request.plan.by_neuron:
            _compare_neurons(a, b, model, out_file)
            return
        second = follow(_ranked(asked.model_copy(update={"plan": order_asked_of(b, model)})))
        following = [command_line("plans", "show", str(plans[0]), "--model", request.model)]
    comparison, sides = Comparison(decision(first, a), decision(second, b)), (first, second)
    write_table(comparison.table(), out_file)
    for side, ranking in zip("AB", sides, strict=True):
        amount = next(iter(ranking.spec.budget.amounts.values()), "its own counts")
        out.print(f"{side}: {ranking.criterion.label} at {amount}")
        say_choice(ranking.choice)
    show_facts(
        {
            "equal decisions": comparison.agreement,
            "jaccard of the pruned": comparison.jaccard,
            "kendall tau, mean of layers": comparison.kendall_tau,
            **{f"kept by {fate}": comparison.count(fate) for fate in FATES},
        }
    )
    agreed = comparison.agreement
    finish(
        f"{out_file}: {agreed:.1%} of {len(comparison.table())} decisions are equal",
        {"file": str(out_file), "agreement": agreed, "jaccard": comparison.jaccard},
        asked.command(out=free_name("a.json")),
        *following,
    )
