"""Plans, schedules and recipes as files: taken in, checked, and handed out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError
from analysis.model import MoEModel
from app.charts.context import BLEND, Context
from app.session.data import shown_model
from app.session.plan_state import (
    forget_import,
    import_plan,
    keep_by_hand,
)
from app.session.state import CRITERION_OPTIONS, apply_exponents, apply_preset, share_key
from app.session.uploads import MEGABYTES, uploaded_text
from pruning.plan import (
    ATOMIC_GRANULARITY,
    EXPERT_GRANULARITY,
    PruningPlan,
    fit_plan,
    plan_from_json,
)
from pruning.planning.neuron_plan import controls_of
from pruning.planning.percents import percent_removing, possible_percents
from pruning.planning.planning import MULTIPLES, not_here, ranges, recipe_of
from pruning.planning.ranking import Selection
from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.schedules import counts_from_text

UPLOAD, _REFUSED = "plan.upload", "plan.upload.refused"
_TYPES = ("json", "yaml", "yml", "csv")


def upload_part(context: Context) -> None:
    """The place where a file is dropped, and what each kind does."""
    st.file_uploader(
        "Plan, schedule or recipe",
        type=list(_TYPES),
        key=UPLOAD,
        on_change=_uploaded,
        args=(context,),
        max_upload_size=MEGABYTES,
        help="plan.json is shown and exported as it is. A schedule (CSV, JSON or YAML: layer and "
        "experts kept or removed) becomes counts by hand. recipe.yaml sets the controls.",
    )
    st.text("plan.json, recipe.yaml, or a schedule: layer -> kept.")
    # Here and not on the page, which the open list covers.
    reason = st.session_state.pop(_REFUSED, "")
    if reason:
        st.error(reason, icon=":material/error:")


def _uploaded(context: Context) -> None:
    file = st.session_state.get(UPLOAD)
    if file is None:
        return
    try:
        take_file(context, Path(file.name).name, file.getvalue())
    except UserError as error:
        st.session_state[_REFUSED] = str(error)


def take_file(context: Context, name: str, content: bytes) -> None:
    """Show what a file asks for."""
    text = uploaded_text(name, content)
    kind = _kind(name, text)
    if kind == "plan":
        plan = fit_plan(plan_from_json(text), context.model)
        import_plan(name, plan)
        st.session_state["granularity"] = plan.granularity
        # Where it can: an edit goes on from these counts.
        _move_sparsity(context, {layer: len(ids) for layer, ids in plan.kept.items()})
    elif kind == "recipe":
        apply_recipe(context, recipe_from_yaml(text, name=name))
    else:
        kept = counts_from_text(text, Path(name), context.model.layers)
        if _move_sparsity(context, kept) is None:
            raise PlanError(
                f"{name} keeps {sum(kept.values())} of {context.model.num_experts} experts, which "
                "is none of the sparsities of this page; use it with "
                "`moeprune plan --schedule-file`."
            )
        keep_by_hand(kept, frozenset())


def _kind(name: str, text: str) -> str:
    suffix = Path(name).suffix.lower()
    if suffix == ".json" and '"schema_version"' in text and '"granularity"' in text:
        return "plan"
    is_yaml = suffix in (".yaml", ".yml")
    lines = text.splitlines()
    if is_yaml and any(line.startswith(("criterion:", "model:")) for line in lines):
        return "recipe"
    return "schedule"


def _move_sparsity(context: Context, kept: Mapping[int, int]) -> int | None:
    """Set the slider to what these counts spend; None, if it cannot say that."""
    removed = sum(layer.num_experts - kept[layer.index] for layer in context.model.layers)
    percent = percent_removing(context.model, removed)
    if percent is not None:
        st.session_state["sparsity"] = percent
    return percent


def apply_recipe(context: Context, recipe: Recipe) -> None:
    """Set the controls as a recipe asks; nothing is set where one thing is not possible."""
    known = (shown_model(context.model), context.model.name)
    if recipe.model not in known:
        raise PlanError(
            f"The recipe is for {recipe.model}, but {context.model.name} is shown; choose that "
            "model in the sidebar, or open the recipe with `moeprune run`."
        )
    if recipe.granularity == ATOMIC_GRANULARITY:
        _apply_neurons(context, recipe)
        return
    percent = _percent(context, recipe)
    limits = recipe.constraints
    for key, value in (("pin", limits.pin), ("drop", limits.drop), ("lock", limits.lock)):
        if value:
            raise PlanError(not_here(f"constraints.{key}"))
    if recipe.schedule.file is not None:
        raise PlanError(not_here("a schedule file"))
    if recipe.search is not None:
        raise PlanError(not_here("search, as a recipe"))
    if limits.multiple_of not in MULTIPLES:
        raise PlanError(not_here(f"multiple_of: {limits.multiple_of}"))
    kept = _set_counts(context.model, recipe)
    _apply_criterion(recipe)
    _apply_corpora(context, recipe)
    forget_import()
    state = st.session_state
    state["granularity"] = EXPERT_GRANULARITY
    state["gate"], state["sparsity"] = recipe.gate, percent
    state["schedule"], state["multiple"] = recipe.schedule.name, limits.multiple_of
    state["protect"] = ranges(limits.protect)
    if kept:
        keep_by_hand(kept, frozenset())


def _apply_neurons(context: Context, recipe: Recipe) -> None:
    """Set the controls of neurons as a recipe asks."""
    controls = controls_of(recipe)
    _apply_corpora(context, recipe)
    forget_import()
    for key, value in controls.items():
        st.session_state[key] = value


def _percent(context: Context, recipe: Recipe) -> int:
    text = recipe.budget.sparsity if recipe.budget else None
    if text is None:
        raise PlanError(not_here("a budget other than a sparsity"))
    for percent in possible_percents(context.model):
        if text in (f"{percent}%", f"{percent / 100:g}"):
            return percent
    raise PlanError(not_here(f"sparsity: {text}"))


def _set_counts(model: MoEModel, recipe: Recipe) -> dict[int, int]:
    """Counts of a recipe that sets every layer; empty where it sets none."""
    given = recipe.constraints.set
    if not given:
        return {}
    if set(given) != {layer.index for layer in model.layers}:
        raise PlanError(not_here("constraints.set for some layers only"))
    return dict(given)


def _apply_criterion(recipe: Recipe) -> None:
    criterion = get_criterion(recipe.criterion)
    if criterion.exponents is not None:
        apply_exponents(criterion.exponents)
    elif criterion.name in CRITERION_OPTIONS:
        apply_preset(criterion.name)
    else:
        raise PlanError(not_here(f"criterion: {criterion.name}"))


def _apply_corpora(context: Context, recipe: Recipe) -> None:
    parts = {part.corpus: part.weight for part in recipe.corpora}
    if missing := sorted(set(parts) - set(context.runs)):
        raise PlanError(
            f"{context.model.name} has not been calibrated on {missing[0]}; start that on the "
            "Start page, or run the recipe with `moeprune run`."
        )
    if len(parts) == 1:
        st.session_state["corpus"] = next(iter(parts))
    elif parts:
        st.session_state["corpus"] = BLEND
        most = max(parts.values())
        for corpus in context.runs:
            st.session_state[share_key(corpus)] = round(100 * parts.get(corpus, 0.0) / most)


def save_buttons(plan: PruningPlan, selection: Selection | None) -> None:
    """Plan and recipe, to take away."""
    with st.container(horizontal=True):
        download_button("Save plan.json", plan.to_json, "plan.json", "application/json")
        if selection is not None:
            text = recipe_of(selection).to_yaml()
            download_button("Save recipe.yaml", text, "recipe.yaml", "application/yaml")


def download_button(label: str, data: str | Callable[[], str], name: str, mime: str) -> None:
    """A file to take away; a function makes it when it is asked for."""
    options: dict[str, Any] = {"icon": ":material/download:", "on_click": "ignore"}
    st.download_button(label, data, file_name=name, mime=mime, key=f"plan.save.{name}", **options)
