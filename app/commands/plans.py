"""Commands that look at plans: plans show, plans diff."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from analysis.checkpoint import CONFIG_NAME
from analysis.errors import PlanError, UserError
from analysis.model import DEMO_MODEL, MoEModel, load_model_index
from app.commands import options
from app.commands.files import write_csv
from app.commands.widths import plan_routing, show_width_options
from app.console import out, plain_rows, show_frame, show_table
from app.settings import Settings, stats_store
from pruning.atoms.diff import atom_diff, atom_states
from pruning.atoms.summary import atom_outline, atom_summary
from pruning.atoms.widths import DEFAULT_MULTIPLE
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, load_plan
from pruning.plan_diff import expert_states, plan_diff
from pruning.plan_summary import plan_outline, plan_summary

plans = typer.Typer(name="plans", help="Look at plans: show, diff.", no_args_is_help=True)
_ADDED = ("experts", "kept", "removed", "neurons", "stay", "empty", "pinned", "dropped")


def show_summary(summary: pd.DataFrame, title: str) -> None:
    """Print a summary of either granularity, with a line for all layers."""
    totals = {name: int(summary[name].sum()) for name in _ADDED if name in summary}
    size, left = ("neurons", "stay") if "neurons" in totals else ("experts", "kept")
    share = 1 - totals[left] / totals[size]
    last = {"layer": "all", **totals, "share": share, **_widths_of_all(summary)}
    rows = [*plain_rows(summary), [last.get(name, "") for name in summary.columns]]
    show_table(title, tuple(summary.columns), rows)


def _widths_of_all(summary: pd.DataFrame) -> dict[str, object]:
    if "mean" not in summary:
        return {}
    mean = (summary["mean"] * summary["kept"]).sum() / summary["kept"].sum()
    return {"least": int(summary["least"].min()), "mean": mean, "most": int(summary["most"].max())}


def model_of(plan: PruningPlan) -> MoEModel | None:
    """The model of a plan, if it lies where its name leads: here, or below the models' folder."""
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
def show(
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="plan.json.")],
    model: Annotated[
        str | None, typer.Option(help="The model that it is for; default: look for it by its name.")
    ] = None,
    corpus: options.Corpora = None,
    run: options.Runs = None,
    revision: options.Revision = None,
    stats_dir: options.StatsDir = None,
) -> None:
    """What each layer keeps and loses, and how the plan came about; of neurons also what it saves.

    FLOPs of neurons follow how often experts were chosen: on --corpus, or in the plan's own runs.
    """
    described = load_model_index(model, revision=revision) if model else None
    loaded = load_plan(path, model=described)
    described = described or model_of(loaded)
    made = loaded.provenance
    how = ", ".join(filter(None, (made.criterion, made.gate, *made.corpora, made.schedule)))
    title = f"{path}: {how or 'made by hand'}"
    is_atomic = loaded.granularity == ATOMIC_GRANULARITY
    if described is not None:
        summarise = atom_summary if is_atomic else plan_summary
        show_summary(summarise(loaded, described), title)
        if is_atomic:
            store, named = stats_store(stats_dir), (tuple(corpus or ()), tuple(run or ()))
            routing = plan_routing(loaded, described, store, *named)
            show_width_options(described, loaded, DEFAULT_MULTIPLE, routing)
        return
    outline = atom_outline(loaded) if is_atomic else plan_outline(loaded)
    show_frame(title, outline)
    out.print(
        f"The model {loaded.model.name} (identity {loaded.model.identity[:8]}) is not here, so "
        "what goes is not known; name it with --model.",
        markup=False,
    )


@plans.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="plan.json.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="plan.json of the same model.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model, to count what neither keeps; default: look for it by its name."
        ),
    ] = None,
    experts: Annotated[
        bool, typer.Option("--experts", help="A row for each expert on which the plans differ.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    revision: options.Revision = None,
) -> None:
    """Layer by layer: experts, or neurons, that both plans keep, only one of them, or neither."""
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
    one: PruningPlan, other: PruningPlan, model: MoEModel | None, *, is_atomic: bool
) -> pd.DataFrame:
    if is_atomic:
        return atom_diff(one, other, model)
    return plan_diff(one, other, model.layers if model else ())


def _by_expert(
    one: PruningPlan, other: PruningPlan, model: MoEModel | None, *, is_atomic: bool
) -> pd.DataFrame:
    """The experts that the plans do not treat alike."""
    if is_atomic:
        table = atom_states(one, other, model)
        return table[table["only_a"] + table["only_b"] > 0]
    table = expert_states(one, other, model.layers if model else ())
    return table[table["state"].isin(["only_a", "only_b"])]
