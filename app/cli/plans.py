"""Commands that look at plans: plans show, plans diff."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.errors import PlanError, UserError
from app.cli.derive import command
from app.cli.files import write_csv
from app.cli.say import show_summary, show_width_options
from app.console import out, show_frame
from pruning.plan import ATOMIC_GRANULARITY
from pruning.requests.base import Option
from pruning.requests.options import Revision, Run, StatsDir, Switch, Text, WeighedCorpus

if TYPE_CHECKING:
    import pandas as pd

    from analysis.model import MoEModel
    from pruning.plan import PruningPlan

plans = typer.Typer(name="plans", help="Look at plans: show, diff.", no_args_is_help=True)
OfModel = Annotated[
    Text,
    Option("The model that it is for; default: look for it by its name.", ("--model",)),
]


def model_of(plan: "PruningPlan") -> "MoEModel | None":
    """The model of a plan, if it lies where its name leads: here, or below the models' folder."""
    from analysis.checkpoint import CONFIG_NAME
    from analysis.model import DEMO_MODEL, load_model_index
    from app.settings import Settings

    root = Settings.from_environment().models_root
    places = [Path(plan.model.name), *([root / plan.model.name] if root else [])]
    found = [str(path) for path in places if (path / CONFIG_NAME).is_file()]
    for name in [*found, *([DEMO_MODEL] if plan.model.name == DEMO_MODEL else [])]:
        try:
            model = load_model_index(name)
        except UserError:
            continue  # something else of the same name
        if model.identity == plan.model.identity:
            return model
    return None


@plans.command()
@command()
def show(
    *,
    path: Annotated[Path, Option("plan.json.", place="PLAN")],
    model: OfModel | None = None,
    corpora: tuple[WeighedCorpus, ...] = (),
    runs: tuple[Run, ...] = (),
    revision: Revision | None = None,
    stats_dir: StatsDir | None = None,
) -> None:
    """What each layer keeps and loses, and how the plan came about; of neurons also what it saves.

    FLOPs of neurons follow how often experts were chosen: on --corpus, or in the plan's own runs.
    """
    from analysis.model import load_model_index
    from analysis.stats.store import stats_store
    from pruning.atoms.widths import DEFAULT_MULTIPLE
    from pruning.measured_routing import plan_routing
    from pruning.plan import load_plan
    from pruning.plan_summary import neuron_outline, neuron_summary, plan_outline, plan_summary

    described = load_model_index(model, revision=revision) if model else None
    loaded = load_plan(path, model=described)
    described = described or model_of(loaded)
    made = loaded.provenance
    how = ", ".join(filter(None, (made.criterion, made.gate, *made.corpora, made.schedule)))
    title = f"{path}: {how or 'made by hand'}"
    is_atomic = loaded.granularity == ATOMIC_GRANULARITY
    if described is not None:
        summarise = neuron_summary if is_atomic else plan_summary
        show_summary(summarise(loaded, described), title)
        if is_atomic:
            routing = plan_routing(loaded, described, stats_store(stats_dir), corpora, runs)
            show_width_options(described, loaded, DEFAULT_MULTIPLE, routing)
        return
    outline = neuron_outline(loaded) if is_atomic else plan_outline(loaded)
    show_frame(title, outline)
    out.print(
        f"The model {loaded.model.name} (identity {loaded.model.identity[:8]}) is not here, so "
        "what goes is not known; name it with --model.",
        markup=False,
    )


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
    csv: Annotated[Path | None, Option("Also write the table as CSV.")] = None,
    revision: Revision | None = None,
) -> None:
    """Layer by layer: experts, or neurons, that both plans keep, only one of them, or neither."""
    from analysis.model import load_model_index
    from pruning.plan import load_plan

    described = load_model_index(model, revision=revision) if model else None
    one, other = (load_plan(path, model=described) for path in (first, second))
    described = described or model_of(one)
    is_atomic = ATOMIC_GRANULARITY in (one.granularity, other.granularity)
    table = _diff(one, other, described, is_atomic=is_atomic)
    if table.empty:
        raise PlanError("Neither plan names a layer, so there is nothing to compare.")
    asked = _by_expert(one, other, described, is_atomic=is_atomic) if experts else table
    if csv is not None:
        write_csv(asked, csv)
    shown = asked.dropna(axis="columns", how="all")
    show_frame(f"A: {first}, B: {second}", shown)
    alike = int((table["only_a"] + table["only_b"] == 0).sum())
    what = "neurons" if is_atomic else "experts"
    apart = f"; {table['differ'].sum()} experts differ" if is_atomic else ""
    out.print(
        f"{alike} of {len(table)} layers are alike{apart}; mean Jaccard of the kept {what} "
        f"{table['jaccard'].mean():.4f}",
        markup=False,
    )


def _diff(
    one: "PruningPlan", other: "PruningPlan", model: "MoEModel | None", *, is_atomic: bool
) -> "pd.DataFrame":
    from pruning.plan_diff import neuron_diff, plan_diff

    if is_atomic:
        return neuron_diff(one, other, model)
    return plan_diff(one, other, model.layers if model else ())


def _by_expert(
    one: "PruningPlan", other: "PruningPlan", model: "MoEModel | None", *, is_atomic: bool
) -> "pd.DataFrame":
    """The experts that the plans do not treat alike."""
    from pruning.plan_diff import expert_states, neuron_states

    if is_atomic:
        table = neuron_states(one, other, model)
        return table[table["only_a"] + table["only_b"] > 0]
    table = expert_states(one, other, model.layers if model else ())
    return table[table["state"].isin(["only_a", "only_b"])]
