"""The controls of a plan, for experts and neurons, and the import of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.corpora import name_among
from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError
from app.choices import BLEND
from app.loaded import Loaded
from app.session.data import shown_model
from app.session.granularity import (
    chosen_neuron_criterion,
    chosen_scope,
    is_about_neurons,
    is_spread_as_measured,
)
from app.session.plan_state import (
    DEFAULTS,
    counts_typed,
    forget_import,
    import_plan,
    keep_by_hand,
    plan_input,
    schedule_chosen,
    sparsity_controls,
)
from app.session.search_data import ordered_for, searches_of
from app.session.state import CRITERION_OPTIONS, apply_exponents, apply_preset, share_key
from app.session.uploads import MEGABYTES, uploaded_text
from app.widgets.controls import one_of
from pruning.neurons.widths import DEFAULT_MULTIPLE
from pruning.plan import NEURON_GRANULARITY, fit_plan, plan_from_json
from pruning.planning.choice import (
    MOST_TEXT,
    MULTIPLES,
    SCHEDULE_NAMES,
    UNITS,
    WIDTH_MODES,
    WIDTH_MULTIPLES,
    counts_example,
    experts_in,
    percent_removing,
    schedule_label,
)
from pruning.planning.recipes import controls_of, not_here
from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.requests.base import validated
from pruning.schedules import MEASURED, SCHEDULES, counts_from_text
from pruning.search.store import SEARCH
from pruning.spec import PlanSpec

Value = TypeVar("Value")
# Also declared to each widget; see `app.session.state.DEFAULTS`.
_OF_NEURONS: Final[Mapping[str, Any]] = {
    "unit": "neurons",
    "width": "uniform",
    "width_multiple": DEFAULT_MULTIPLE,
    "neuron_multiple": 1,
}
_OTHERS_LOSE: Final = " The others lose more, so that the budget holds."
_SUMMARIES: Final = "  \n".join(
    f"**{schedule_label(name)}**: {SCHEDULES[name].summary}."
    for name in SCHEDULE_NAMES
    if name in SCHEDULES
)
UPLOAD, _REFUSED = "plan.upload", "plan.upload.refused"
_TYPES = ("json", "yaml", "yml", "csv")


def plan_controls(loaded: Loaded, front: DeltaGenerator, rare: DeltaGenerator) -> None:
    """Draw the schedule in `front` and the other controls in `rare`."""
    with front:
        if is_about_neurons():
            _unit_and_width_inputs()
        else:
            _schedule_inputs(loaded)
    with rare:
        if is_about_neurons():
            _neuron_limits()
        else:
            _expert_limits(loaded)
        upload_part(loaded)


def _neuron_limits() -> None:
    _text("Protect layers", "protect", "e.g. 0,5-7", "Layers to keep whole.")
    note = "LAYER:EXPERTS that keep all neurons."
    _text("Keep experts whole", "pin", "e.g. 3:5,7-9", note)
    note = "LAYER:EXPERTS to remove whole, with their router rows."
    _text("Drop experts", "drop", "e.g. 4:0,2", note)


def _expert_limits(loaded: Loaded) -> None:
    note = "Layers to keep whole; the others lose more, so that the budget holds."
    _text("Protect layers", "protect", "e.g. 0,5-7", note, rest="")
    _multiple_input(loaded)
    # Drawn for every schedule: values that callbacks set for widgets not on the page would be
    # missing from the URL.
    note = "Experts kept per sparse layer, separated by dots as in the URL."
    example = f"e.g. {counts_example(loaded.model.layers)}"
    _text("Manual counts", "counts", example, note, rest="", width=230, on_change=counts_typed)
    note = "Layers that stay unchanged when another layer is edited."
    _text("Locked layers", "locked", "none", note, rest="", width=120, on_change=None)


# Control `unit` -> the budget that the share is.
_UNIT_BUDGETS: Final[Mapping[str, str]] = {
    "neurons": "sparsity",
    "params": "params_share",
    "bytes": "shrink",
}


def neuron_spec(loaded: Loaded) -> PlanSpec:
    """The plan of neurons that the controls ask for.

    The first option stands in where a control is not offered.
    """

    def chosen(key: str, options: Sequence[Value]) -> Value:
        usual: Value = _OF_NEURONS[key]
        return one_of(st.session_state.get(key), options, usual)

    criterion = chosen_neuron_criterion()
    texts = {key: str(st.session_state.get(key) or "") for key in ("protect", "pin", "drop")}
    spread = {"neuron_scope": str(chosen_scope(criterion))}
    if is_spread_as_measured():
        spread = {"schedule": MEASURED}
    values = {
        "criterion": criterion,
        "granularity": NEURON_GRANULARITY,
        "corpora": loaded.choices.corpora if get_criterion(criterion).source == "routed" else (),
        _UNIT_BUDGETS[chosen("unit", list(UNITS))]: loaded.sparsity,
        "width_mode": chosen("width", WIDTH_MODES),
        "width_multiple_of": chosen("width_multiple", WIDTH_MULTIPLES),
        "multiple_of": chosen("neuron_multiple", MULTIPLES),
        "protect": texts["protect"].strip() or (),
        "pin": experts_in(texts["pin"]),
        "drop": experts_in(texts["drop"]),
    }
    return validated(PlanSpec, values | spread)


def _text(
    label: str, key: str, example: str, note: str, rest: str = _OTHERS_LOSE, **overrides: Any
) -> None:
    options = {"placeholder": example, "help": note + rest, "width": 150, **overrides}
    plan_input(st.text_input, label, key=key, max_chars=MOST_TEXT, **options)


def _schedule_inputs(loaded: Loaded) -> None:
    plan_input(
        st.segmented_control,
        "Schedule",
        SCHEDULE_NAMES,
        default=DEFAULTS["schedule"],
        key="schedule",
        required=True,
        on_change=schedule_chosen,
        format_func=schedule_label,
        wrap=True,
        help=f"How the budget is split across layers.  \n{_SUMMARIES}  \n**Searched**: "
        "found by a search on the model itself.  \n**By hand**: counts set on the Plan page, "
        "starting from any schedule.",
    )
    if st.session_state.get("schedule") != SEARCH:
        return
    # Those that fit the current budget and criterion first. Names only: the list shows
    # what the URL has.
    search_ids = [each.search_id for each in ordered_for(loaded, searches_of(loaded.model).known)]
    if not search_ids:
        return
    if st.session_state.get("searched") not in search_ids:
        st.session_state["searched"] = search_ids[0]
    plan_input(
        st.selectbox,
        "Search",
        search_ids,
        key="searched",
        help="It also sets the order of experts within layers.",
        width=340,
    )


def _multiple_input(loaded: Loaded) -> None:
    most = max(layer.num_experts for layer in loaded.model.layers)
    options = [number for number in MULTIPLES if number <= most]
    if st.session_state.get("multiple", 1) not in options:
        st.session_state["multiple"] = 1
    plan_input(
        st.selectbox,
        "Multiple of",
        options,
        key="multiple",
        help="Layers keep a multiple of this many experts, as parallel kernels may require.",
        width=105,
    )


def _unit_and_width_inputs() -> None:
    plan_input(
        st.segmented_control,
        "Sparsity is a share of",
        list(UNITS),
        default=_OF_NEURONS["unit"],
        key="unit",
        required=True,
        format_func=lambda unit: UNITS[unit],
        help="**Neurons** of the routed experts (HEAPr, Algorithm 1), **all parameters** of the "
        "model, embeddings and attention as well (its Figure 2, without padding), or **bytes** of "
        "the export in its width mode.",
    )
    plan_input(
        st.segmented_control,
        "Widths of the export",
        WIDTH_MODES,
        default=_OF_NEURONS["width"],
        key="width",
        required=True,
        help="**uniform**: one width for the model, which every program reads.  \n**per-layer**: "
        "one per layer.  \n**ragged**: each expert its own on disk, one per layer when loaded.  \n"
        "Missing neurons are padded with zeros, so all three compute the same.",
        on_change=None,
    )
    plan_input(
        st.selectbox,
        "Rounded up to",
        WIDTH_MULTIPLES,
        index=WIDTH_MULTIPLES.index(_OF_NEURONS["width_multiple"]),
        key="width_multiple",
        help="Loaded widths are multiples of this, which grouped matrix products need: 16 bytes, 8 "
        "numbers in bfloat16.",
        width=115,
        on_change=None,
    )
    plan_input(
        st.selectbox,
        "Experts keep a multiple of",
        MULTIPLES,
        key="neuron_multiple",
        help="Neurons are removed in blocks, so that each expert keeps a multiple of this many.",
        width=185,
    )


def upload_part(loaded: Loaded) -> None:
    """The file upload, and what each kind of file does."""
    st.file_uploader(
        "Plan, schedule or recipe",
        type=list(_TYPES),
        key=UPLOAD,
        on_change=_take_upload,
        args=(loaded,),
        max_upload_size=MEGABYTES,
        help="plan.json is shown and exported as it is. A schedule (CSV, JSON or YAML: layer and "
        "experts kept or removed) becomes manual counts. recipe.yaml sets the controls.",
    )
    st.text("plan.json, recipe.yaml, or a schedule: layer -> kept.")
    # Here, because the open list would cover it on the page.
    reason = st.session_state.pop(_REFUSED, "")
    if reason:
        st.error(reason, icon=":material/error:")


def _take_upload(loaded: Loaded) -> None:
    if (file := st.session_state.get(UPLOAD)) is None:
        return
    try:
        _take_file(loaded, Path(file.name).name, file.getvalue())
    except UserError as error:
        st.session_state[_REFUSED] = str(error)


def _take_file(loaded: Loaded, name: str, content: bytes) -> None:
    """Apply an uploaded file."""
    text, suffix = uploaded_text(name, content), Path(name).suffix.lower()
    is_recipe = any(line.startswith(("criterion:", "model:")) for line in text.splitlines())
    if suffix == ".json" and '"schema_version"' in text and '"granularity"' in text:
        plan = fit_plan(plan_from_json(text), loaded.model)
        import_plan(name, plan)
        st.session_state["granularity"] = plan.granularity
        # If possible: edits start from these counts.
        _move_sparsity(loaded, {layer: len(ids) for layer, ids in plan.kept.items()})
    elif suffix in (".yaml", ".yml") and is_recipe:
        _apply_recipe(loaded, recipe_from_yaml(text, name=name))
    else:
        kept = counts_from_text(text, Path(name), loaded.model.layers)
        if _move_sparsity(loaded, kept) is None:
            raise PlanError(
                f"{name} keeps {sum(kept.values())} of {loaded.model.num_experts} experts, which "
                "is not a sparsity that this page offers; use it with "
                "`moeprune plan --schedule-file`."
            )
        keep_by_hand(kept, frozenset())


def _move_sparsity(loaded: Loaded, kept: Mapping[int, int]) -> int | None:
    """Set the slider to the sparsity of these counts; None if it has no such step."""
    removed = sum(layer.num_experts - kept[layer.index] for layer in loaded.model.layers)
    percent = percent_removing(loaded.model, removed)
    if percent is not None:
        st.session_state.update(sparsity_controls(percent))
    return percent


def _apply_recipe(loaded: Loaded, recipe: Recipe) -> None:
    """Set the controls from a recipe: all or nothing."""
    names = (shown_model(loaded.model), loaded.model.name)
    if recipe.model not in names:
        raise PlanError(
            f"The recipe is for {recipe.model}, but {loaded.model.name} is shown; choose that "
            "model in the sidebar, or open the recipe with `moeprune run`."
        )
    controls = controls_of(recipe, loaded.model)
    criterion = recipe.plan.ranking.rule
    if not recipe.plan.by_neuron:
        if criterion.exponents is not None:
            apply_exponents(criterion.exponents)
        elif criterion.name in CRITERION_OPTIONS:
            apply_preset(criterion.name)
        else:
            raise PlanError(not_here(f"criterion: {criterion.name}"))
    _apply_corpora(loaded, recipe)
    forget_import()
    st.session_state.update(controls)


def _apply_corpora(loaded: Loaded, recipe: Recipe) -> None:
    weights = recipe.plan.corpus_weights
    parts = {name_among(loaded.runs, part.corpus): part.weight for part in weights}
    if missing := sorted(set(parts) - set(loaded.runs)):
        raise PlanError(
            f"{loaded.model.name} has not been calibrated on {missing[0]}; start that on the "
            "Start page, or run the recipe with `moeprune run`."
        )
    if len(parts) == 1:
        st.session_state["corpus"] = next(iter(parts))
    elif parts:
        st.session_state["corpus"] = BLEND
        most = max(parts.values())
        for corpus in loaded.runs:
            st.session_state[share_key(corpus)] = round(100 * parts.get(corpus, 0.0) / most)
