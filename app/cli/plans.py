"""Commands on plans: plan, paths, plans show, plans diff."""

import glob
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, cast

import typer

from analysis.checkpoint.index import CONFIG_NAME
from analysis.criteria.pathfinder import PATHFINDER
from analysis.criteria.trajectory import Weighing, follow_paths, representative_samples
from analysis.errors import PlanError, UserError
from analysis.files.shipped import DEMO_MODEL
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from analysis.ranking.choose import notes_on_others, sample_runs
from analysis.stats.reading import load_sample_stats
from analysis.stats.samples import joined_stats
from analysis.stats.store import stats_store
from app.cli import options
from app.cli.derive import command
from app.cli.files import check_repair, read_plan, save_plan, write_csv
from app.cli.help import Commands
from app.cli.inspect import headers_or_outline
from app.cli.say import (
    say_choice,
    say_counted,
    say_notes,
    say_plan,
    say_sources,
    show_summary,
    show_width_options,
)
from app.console import finish, follow, note, out, show_frame
from app.settings import Settings
from pruning.option import Option
from pruning.plan.bits import bits_words
from pruning.plan.budget import (
    Budget,
    SizeTarget,
    check_removes,
    even_budget,
    size_budget,
    sparsity_budget,
)
from pruning.plan.experts_per_token import top_k_words
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, removes_nothing
from pruning.plan.plan_file import load_plan
from pruning.plan.routing import plan_routing
from pruning.plan.super_experts import super_note
from pruning.plan.tables import (
    expert_states,
    neuron_diff,
    neuron_outline,
    neuron_states,
    neuron_summary,
    plan_diff,
    plan_outline,
    plan_summary,
)
from pruning.plan.units import expert_units
from pruning.plan.widths import WidthChoice
from pruning.planning.count_plan import count_plan
from pruning.planning.files import check_spec
from pruning.requests.following import commands_after_plan
from pruning.requests.plan import SpecRequest
from pruning.requests.ranking import PathsRequest
from pruning.schedules.trajectory_plan import Cut, budget_plan, union_plan
from pruning.spec.options import CalibratedOn, Revision, Run, StatsDir, Switch, Text
from pruning.study import Study

plans = Commands("Look at plans: show, diff.")
OfModel = Annotated[
    Text, Option("The model that it is for; default: look for it by its name.", ("--model",))
]


def model_of(plan: PruningPlan, file: Path) -> MoEModel | None:
    """The model of a plan, if it lies where its name leads.

    That is: here, beside the plan's file, in the models' folder, or in a folder of these; for hub
    ids also the hub's cache.
    """
    name, root = plan.model.name, Settings.from_environment().models_root
    folders = {path.resolve(): None for path in (Path(), file.parent, root) if path}
    places = [folder / name for folder in folders]
    places += [place for folder in folders for place in folder.glob(f"*/{glob.escape(name)}")]
    names = [str(path) for path in places if (path / CONFIG_NAME).is_file()]
    for name in [*names, *_other_places(plan.model.name)]:
        try:
            model = load_model_index(name)
        except UserError:
            continue  # something else of the same name
        if model.identity == plan.model.identity:
            return model
    return None


def _other_places(name: str) -> Iterator[str]:
    """Where else a model of this name may be: the demo, or fetched from the hub before."""
    if name == DEMO_MODEL:
        yield name
    elif name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(name, CONFIG_NAME)
        if isinstance(config, str):
            yield str(Path(config).parent)


@plans.command()
@command()
def show(
    *,
    path: Annotated[Path, Option("plan.json.", place="PLAN")],
    model: OfModel | None = None,
    corpora: tuple[CalibratedOn, ...] = (),
    runs: tuple[Run, ...] = (),
    revision: Revision | None = None,
    stats_dir: StatsDir | None = None,
) -> None:
    """What each layer keeps and loses, and how the plan came about; of neurons also what it saves.

    FLOPs of neurons follow how often experts were chosen: on --calibrated-on, else in the runs of
    the plan.

    Example: moeprune plans show plan.json
    """
    described = load_model_index(model, revision=revision) if model else None
    described = described or model_of(load_plan(path), path)
    loaded = read_plan(path, described, stats_dir)  # refuses what does not fit
    provenance = loaded.provenance
    how = ", ".join(
        filter(
            None, (provenance.criterion, provenance.gate, *provenance.corpora, provenance.schedule)
        )
    )
    is_whole = described is not None and removes_nothing(loaded, described)
    title = f"{path}: {how or ('all experts' if is_whole else 'made by hand')}"
    if loaded.repair:
        title += f"; repaired, {loaded.repair.words}"
    title += bits_words(loaded.named_bits) + top_k_words(loaded.per_token)
    by_neuron = loaded.granularity == NEURON_GRANULARITY
    if described is None:
        show_frame(title, neuron_outline(loaded) if by_neuron else plan_outline(loaded))
        out.print(
            f"The model {loaded.model.name} (identity {loaded.model.identity[:8]}) is not here, "
            "so what goes is not known; name it with --model."
        )
        return
    show_summary((neuron_summary if by_neuron else plan_summary)(loaded, described), title)
    say_notes(filter(None, [super_note(loaded, described, stats_store(stats_dir))]))
    if by_neuron:
        routing = plan_routing(loaded, described, stats_store(stats_dir), corpora, runs)
        show_width_options(described, loaded, WidthChoice(), routing)


@plans.command()
@command()
def diff(
    *,
    first: Annotated[Path, Option("plan.json.", place="A")],
    second: Annotated[Path, Option("plan.json of the same model.", place="B")],
    model: Annotated[
        OfModel | None,
        Option("The model, to count what neither keeps; default: look for it by its name."),
    ] = None,
    experts: Annotated[Switch, Option("A row for each expert on which the plans differ.")] = False,
    table_file: Annotated[
        Path | None, Option("Also write the table as CSV.", ("--table",), file="new")
    ] = None,
    revision: Revision | None = None,
) -> None:
    """Layer by layer: experts, or neurons, that both plans keep, only one of them, or neither.

    Example: moeprune plans diff plan.json repaired.json
    """
    described = load_model_index(model, revision=revision) if model else None
    one, other = (load_plan(path, model=described) for path in (first, second))
    described = described or model_of(one, first)
    for plan in (one, other):
        check_repair(plan, described)
    by_neuron = NEURON_GRANULARITY in (one.granularity, other.granularity)
    layers = described.layers if described else ()
    table = neuron_diff(one, other, described) if by_neuron else plan_diff(one, other, layers)
    if table.empty:
        raise PlanError("Neither plan names a layer, so there is nothing to compare.")
    rows = table
    if experts and by_neuron:
        rows = neuron_states(one, other, described)
        rows = rows[rows["only_a"] + rows["only_b"] > 0]
    elif experts:
        rows = expert_states(one, other, layers)
        rows = rows[rows["state"].isin(["only_a", "only_b"])]
    if table_file is not None:
        write_csv(rows, table_file)
    show_frame(f"A: {first}, B: {second}", rows.dropna(axis="columns", how="all"))
    alike = int((table["only_a"] + table["only_b"] == 0).sum())
    what = "neurons" if by_neuron else "experts"
    apart = f"; {table['differ'].sum()} experts differ" if by_neuron else ""
    jaccard = float(table["jaccard"].mean())
    finish(
        f"{alike} of {len(table)} layers are alike{apart}; mean Jaccard of the kept {what} "
        f"{jaccard:.4f}",
        {"layers_alike": alike, "layers": len(table), "jaccard": jaccard},
    )


@command(SpecRequest)
def plan(
    request: SpecRequest,
    *,
    out_file: Annotated[options.Out | None, Option("File to write; default: plan.json.")] = None,
    force: options.Force = False,
) -> None:
    """Choose the experts that stay, or the neurons in them; writes plan.json.

    Example: moeprune plan demo --criterion reap --calibrated-on demo-code --shrink 40%
    """
    if request.config_only:
        if out_file is not None:
            raise PlanError(
                f"{out_file} would name the experts that stay, which --config-only does not choose;"
                " leave -o out."
            )
        outlined = headers_or_outline(request, config_only=True)
        say_counted(outlined, count_plan(request.plan, outlined), request)
        return
    out_file = out_file or Path("plan.json")
    model = load_model_index(request.model, revision=request.revision)
    check_spec(request.plan, model)
    study = Study.of(request, model, stats_store(request.stats_dir))
    made, ranking = follow(study.make(request.plan))
    save_plan(made, out_file, force=force)
    if request.plan.by_neuron:
        routing = ranking.routing if ranking else None
        show_width_options(model, made, request.plan.budget.widths, routing)
    say_notes(made.notes)
    if ranking:
        say_choice(ranking.choice)
    after = commands_after_plan(request, model, out_file, made)
    say_plan(model, made, out_file, *after)


@command(PathsRequest)
def paths(
    request: PathsRequest,
    *,
    out_file: options.Out = Path("plan.json"),
    table: Annotated[
        Path | None, Option("Also write how many samples need each expert, as CSV.", file="new")
    ] = None,
    force: options.Force = False,
) -> None:
    """Keep the experts on the heaviest paths through the layers (MoE Pathfinder); writes plan.json.

    Needs statistics of samples: calibrate with --group dense.

    Example: moeprune paths demo --calibrated-on demo-math --sparsity 50% -o paths.json
    """
    if request.top_m is None and request.sparsity is None and request.shrink is None:
        raise typer.BadParameter("give --top-m or --sparsity, or both; or --shrink")
    if request.sparsity is not None and request.shrink is not None:
        raise typer.BadParameter("give --sparsity or --shrink, not both")
    weighing = Weighing(request.weights, request.transitions)
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    runs = sample_runs(store, model, request.corpora, request.runs)
    parts = [load_sample_stats(run) for run in runs]
    if request.clusters is not None:
        parts = [representative_samples(samples, request.clusters) for samples in parts]
    stats = joined_stats(parts)
    if (budget := _budget(request, model)) is not None:
        cut = Cut(request.schedule, request.top_m)
        paths_plan = budget_plan(model, stats, budget, cut, weighing)
    else:
        paths_plan = union_plan(model, stats, cast("int", request.top_m), weighing)
    provenance = paths_plan.plan.provenance
    chosen = {"clusters": request.clusters} if request.clusters else {}
    read = replace(
        provenance,
        corpora=tuple(run.manifest.corpus for run in runs),
        runs=tuple(run.manifest.run_id for run in runs),
        schedule_parameters={**provenance.schedule_parameters, **chosen},
    )
    plan = replace(paths_plan.plan, provenance=read)
    save_plan(plan, out_file, force=force)
    if table is not None:
        write_csv(follow_paths(stats, paths_plan.count, weighing).table(paths_plan.count), table)
    there_are = prod(stats.grid.counts)
    followed = f"the first {counted(paths_plan.count, 'path')}"
    if paths_plan.count >= there_are:
        followed = f"all {there_are:,} paths"
    note(f"{paths_plan.union} experts lie on {followed} of {stats.num_samples} samples")
    others = () if request.runs else store.of_model(model.identity, "routed")
    say_sources(runs, notes_on_others(runs, others, PATHFINDER))
    say_notes(filter(None, [super_note(plan, model, store)]))
    say_plan(model, plan, out_file, *commands_after_plan(request, model, out_file, plan))


def _budget(request: PathsRequest, model: MoEModel) -> Budget | None:
    """How many experts go; None where all that lie on the paths stay."""
    is_even = request.schedule == "uniform"
    if request.sparsity is not None:
        units = expert_units(model.layers)
        return check_removes(sparsity_budget(units, request.sparsity, even=is_even), units)
    if request.shrink is None:
        return None
    target = SizeTarget("shrink", request.shrink)
    return (even_budget if is_even else size_budget)(model, target)
