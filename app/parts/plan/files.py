"""Import and check plans, schedules and recipes."""

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError
from app.charts.context import BLEND, Context
from app.session.data import shown_model
from app.session.plan_state import (
    forget_import,
    import_plan,
    keep_by_hand,
    sparsity_controls,
)
from app.session.state import CRITERION_OPTIONS, apply_exponents, apply_preset, share_key
from app.session.uploads import MEGABYTES, uploaded_text
from pruning.plan import EXPERT_GRANULARITY, fit_plan, plan_from_json
from pruning.planning.choice import percent_removing
from pruning.planning.recipes import controls_of, not_here
from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.schedules import counts_from_text

UPLOAD, _REFUSED = "plan.upload", "plan.upload.refused"
_TYPES = ("json", "yaml", "yml", "csv")


def upload_part(context: Context) -> None:
    """The file upload, and what each kind of file does."""
    st.file_uploader(
        "Plan, schedule or recipe",
        type=list(_TYPES),
        key=UPLOAD,
        on_change=_uploaded,
        args=(context,),
        max_upload_size=MEGABYTES,
        help="plan.json is shown and exported as it is. A schedule (CSV, JSON or YAML: layer and "
        "experts kept or removed) becomes manual counts. recipe.yaml sets the controls.",
    )
    st.text("plan.json, recipe.yaml, or a schedule: layer -> kept.")
    # Here and not on the page, which the open list covers.
    reason = st.session_state.pop(_REFUSED, "")
    if reason:
        st.error(reason, icon=":material/error:")


def _uploaded(context: Context) -> None:
    if (file := st.session_state.get(UPLOAD)) is None:
        return
    try:
        _take_file(context, Path(file.name).name, file.getvalue())
    except UserError as error:
        st.session_state[_REFUSED] = str(error)


def _take_file(context: Context, name: str, content: bytes) -> None:
    """Apply an uploaded file."""
    text, suffix = uploaded_text(name, content), Path(name).suffix.lower()
    is_recipe = any(line.startswith(("criterion:", "model:")) for line in text.splitlines())
    if suffix == ".json" and '"schema_version"' in text and '"granularity"' in text:
        plan = fit_plan(plan_from_json(text), context.model)
        import_plan(name, plan)
        st.session_state["granularity"] = plan.granularity
        # If possible: edits start from these counts.
        _move_sparsity(context, {layer: len(ids) for layer, ids in plan.kept.items()})
    elif suffix in (".yaml", ".yml") and is_recipe:
        _apply_recipe(context, recipe_from_yaml(text, name=name))
    else:
        kept = counts_from_text(text, Path(name), context.model.layers)
        if _move_sparsity(context, kept) is None:
            raise PlanError(
                f"{name} keeps {sum(kept.values())} of {context.model.num_experts} experts, which "
                "is none of the sparsities of this page; use it with "
                "`moeprune plan --schedule-file`."
            )
        keep_by_hand(kept, frozenset())


def _move_sparsity(context: Context, kept: Mapping[int, int]) -> int | None:
    """Set the slider to the sparsity of these counts; None if it has no such step."""
    removed = sum(layer.num_experts - kept[layer.index] for layer in context.model.layers)
    percent = percent_removing(context.model, removed)
    if percent is not None:
        st.session_state.update(sparsity_controls(percent))
    return percent


def _apply_recipe(context: Context, recipe: Recipe) -> None:
    """Set the controls from a recipe: all or nothing."""
    known = (shown_model(context.model), context.model.name)
    if recipe.model not in known:
        raise PlanError(
            f"The recipe is for {recipe.model}, but {context.model.name} is shown; choose that "
            "model in the sidebar, or open the recipe with `moeprune run`."
        )
    controls = controls_of(recipe, context.model)
    criterion = get_criterion(recipe.criterion)
    if recipe.granularity == EXPERT_GRANULARITY:
        if criterion.exponents is not None:
            apply_exponents(criterion.exponents)
        elif criterion.name in CRITERION_OPTIONS:
            apply_preset(criterion.name)
        else:
            raise PlanError(not_here(f"criterion: {criterion.name}"))
    _apply_corpora(context, recipe)
    forget_import()
    st.session_state.update(controls)


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
