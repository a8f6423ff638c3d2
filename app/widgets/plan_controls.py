"""The controls of a plan, for experts and neurons, and the import of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import PlanError, UserError
from analysis.model.moe_model import MoEModel
from app.errors import show_error
from app.loaded import Loaded
from app.session.data import shown_model
from app.session.measured_plan import show_plan
from app.session.plan_state import (
    counts_typed,
    import_plan,
    keep_by_hand,
    lasting_input,
    plan_input,
    schedule_chosen,
    sparsity_controls,
)
from app.session.search_data import ordered_for, searches_of
from app.session.state import BITS, USUAL, controls_for, is_about_neurons, not_here
from app.session.uploads import MEGABYTES, uploaded_text
from pruning.plan.bit_sizes import fewer_bits
from pruning.plan.bits import FORMATS
from pruning.plan.experts_per_token import possible_top_k
from pruning.plan.plan import fit_plan, plan_from_json
from pruning.planning.choice import (
    MOST_TEXT,
    MULTIPLES,
    NEURON_BUDGETS,
    SCHEDULE_NAMES,
    WIDTH_MODES,
    WIDTH_MULTIPLES,
    counts_example,
    percent_removing,
    schedule_label,
)
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.schedules import SCHEDULES, counts_from_text
from pruning.search.store import SEARCH

_OTHERS_LOSE: Final = " The others lose more, so that the budget holds."
_SUMMARIES: Final = "  \n".join(
    f"**{schedule_label(name)}**: {SCHEDULES[name].summary}."
    for name in SCHEDULE_NAMES
    if name in SCHEDULES
)
UPLOAD, _REFUSED = "plan.upload", "plan.upload.refused"
_TYPES = ("json", "yaml", "yml", "csv")


def plan_controls(
    model: MoEModel, corpora: Sequence[str], front: DeltaGenerator, rare: DeltaGenerator
) -> None:
    """Draw the schedule in `front` and the other controls in `rare`."""
    with front:
        if is_about_neurons():
            _unit_and_width_inputs()
        else:
            _schedule_input()
    with rare:
        if is_about_neurons():
            _neuron_limits()
        else:
            _expert_limits(model)
        _top_k_input(model)
        _bits_input(model)
        upload_part(model, corpora)


def _neuron_limits() -> None:
    _text("Protect layers", "protect", "e.g. 0,5-7", "Layers to keep whole.")
    note = "LAYER:EXPERTS that keep all neurons."
    _text("Keep experts whole", "pin", "e.g. 3:5,7-9", note)
    note = "LAYER:EXPERTS to remove whole, with their router rows."
    _text("Drop experts", "drop", "e.g. 4:0,2", note)
    _keep_super_input()


def _expert_limits(model: MoEModel) -> None:
    note = "Layers to keep whole; the others lose more, so that the budget holds."
    _text("Protect layers", "protect", "e.g. 0,5-7", note, rest="")
    most = max(layer.num_experts for layer in model.layers)
    _multiple_input(
        [number for number in MULTIPLES if number <= most],
        "Multiple of",
        "Layers keep a multiple of this many experts, as parallel kernels may require.",
        width=105,
    )
    note = "Experts kept per sparse layer, separated by dots."
    example = f"e.g. {counts_example(model.layers)}"
    _text("Manual counts", "counts", example, note, rest="", width=230, on_change=counts_typed)
    note = "Layers that stay unchanged when another layer is edited."
    _text("Locked layers", "locked", "none", note, rest="", width=120, on_change=None)
    _keep_super_input()


def _keep_super_input() -> None:
    plan_input(
        st.checkbox,
        "Keep super experts",
        key="keep_super",
        help="Experts whose largest output stands out of all in the calibration "
        "(arXiv:2507.23279): without three of them Qwen3-30B-A3B repeats itself." + _OTHERS_LOSE,
    )


def _text(
    label: str, key: str, example: str, note: str, rest: str = _OTHERS_LOSE, **overrides: Any
) -> None:
    options = {"placeholder": example, "help": note + rest, "width": 150, **overrides}
    plan_input(st.text_input, label, key=key, max_chars=MOST_TEXT, **options)


def _schedule_input() -> None:
    plan_input(
        st.segmented_control,
        "Schedule",
        SCHEDULE_NAMES,
        key="schedule",
        required=True,
        on_change=schedule_chosen,
        format_func=schedule_label,
        wrap=True,
        help=f"How the budget is split across layers.  \n{_SUMMARIES}  \n**Searched**: "
        "found by a search on the model itself.  \n**By hand**: counts set on the Plan page, "
        "starting from any schedule.",
    )


def search_input(loaded: Loaded) -> str | None:
    """Draw the list of searches, if their schedule is chosen; return the name of one."""
    if is_about_neurons() or st.session_state["schedule"] != SEARCH:
        return None
    # Those that fit the current budget and criterion first. Names only: the list shows
    # what the URL has.
    search_ids = [each.search_id for each in ordered_for(loaded, searches_of(loaded.model).known)]
    if not search_ids:
        return ""
    if st.session_state["searched"] not in search_ids:
        st.session_state["searched"] = search_ids[0]
    plan_input(
        st.selectbox,
        "Search",
        search_ids,
        key="searched",
        help="It also sets the order of experts within layers.",
        width=340,
    )
    return str(st.session_state["searched"])


def _multiple_input(options: Sequence[int], label: str, note: str, width: int) -> None:
    if st.session_state["multiple_of"] not in options:
        st.session_state["multiple_of"] = USUAL["multiple_of"]
    plan_input(st.selectbox, label, options, key="multiple_of", help=note, width=width)


def _top_k_input(model: MoEModel) -> None:
    options = possible_top_k(model)
    if st.session_state["top_k"] not in options:
        st.session_state["top_k"] = USUAL["top_k"]
    own = max(layer.top_k for layer in model.layers)
    plan_input(
        st.selectbox,
        "Experts per token",
        options,
        key="top_k",
        format_func=lambda number: str(number or own),
        help="Fewer of those that stay compute each token: less work, the same bytes. The loss of "
        "such a plan is measured, not predicted.",
        width=135,
    )


def _bits_input(model: MoEModel) -> None:
    options = ("", *fewer_bits(model))
    if st.session_state[BITS] not in options:
        st.session_state[BITS] = USUAL[BITS]
    plan_input(
        st.selectbox,
        "Simulated bits",
        options,
        key=BITS,
        format_func=lambda name: FORMATS[name].label if name else "none",
        help="The plan's experts in fewer bits, as evaluations simulate them. An export has the "
        "weights as they are; engines have their own tools for fewer bits.",
        width=135,
    )


def _unit_and_width_inputs() -> None:
    if st.session_state["budget"] not in NEURON_BUDGETS:
        st.session_state["budget"] = USUAL["budget"]
    plan_input(
        st.segmented_control,
        "Sparsity is a share of",
        list(NEURON_BUDGETS),
        key="budget",
        required=True,
        format_func=NEURON_BUDGETS.__getitem__,
        help="**Neurons** of the routed experts (HEAPr, Algorithm 1), **all parameters** of the "
        "model, embeddings and attention as well (its Figure 2, without padding), or **bytes** of "
        "the export in its width mode.",
    )
    lasting_input(
        st.segmented_control,
        "Widths of the export",
        WIDTH_MODES,
        key="width_mode",
        required=True,
        help="**uniform**: one width for the model, which every program reads.  \n**per-layer**: "
        "one per layer.  \n**ragged**: each expert its own on disk, one per layer when loaded.  \n"
        "Missing neurons are padded with zeros, so all three compute the same.",
    )
    lasting_input(
        st.selectbox,
        "Rounded up to",
        WIDTH_MULTIPLES,
        key="width_multiple_of",
        help="Loaded widths are multiples of this, which grouped matrix products need: 16 bytes, 8 "
        "numbers in bfloat16.",
        width=115,
    )
    _multiple_input(
        MULTIPLES,
        "Experts keep a multiple of",
        "Neurons are removed in blocks, so that each expert keeps a multiple of this many.",
        width=185,
    )


def upload_part(model: MoEModel, corpora: Sequence[str]) -> None:
    """The file upload, and what each kind of file does."""
    st.file_uploader(
        "Plan, schedule or recipe",
        type=list(_TYPES),
        key=UPLOAD,
        on_change=_take_upload,
        args=(model, corpora),
        max_upload_size=MEGABYTES,
        help="plan.json is shown and exported as it is. A schedule (CSV, JSON or YAML: layer and "
        "experts kept or removed) becomes manual counts. recipe.yaml sets the controls.",
    )
    st.text("plan.json, recipe.yaml, or a schedule: layer -> kept.")
    # Here, because the open list would cover it on the page.
    reason = st.session_state.pop(_REFUSED, "")
    if reason:
        show_error(reason)


def _take_upload(model: MoEModel, corpora: Sequence[str]) -> None:
    if (file := st.session_state.get(UPLOAD)) is None:
        return
    try:
        _take_file(model, corpora, Path(file.name).name, file.getvalue())
    except UserError as error:
        st.session_state[_REFUSED] = str(error)


def _take_file(model: MoEModel, corpora: Sequence[str], name: str, content: bytes) -> None:
    """Apply an uploaded file."""
    text, suffix = uploaded_text(name, content), Path(name).suffix.lower()
    is_recipe = any(line.startswith(("criterion:", "model:")) for line in text.splitlines())
    if suffix == ".json" and '"schema_version"' in text and '"granularity"' in text:
        plan = fit_plan(plan_from_json(text), model)
        import_plan(name, plan)
        st.session_state["granularity"] = plan.granularity
        # If possible: edits start from these counts.
        _move_sparsity(model, {layer: len(ids) for layer, ids in plan.kept.items()})
    elif suffix in (".yaml", ".yml") and is_recipe:
        _apply_recipe(model, corpora, recipe_from_yaml(text, name=name))
    else:
        kept = counts_from_text(text, Path(name), model.layers)
        if _move_sparsity(model, kept) is None:
            raise PlanError(
                f"{name} keeps {sum(kept.values())} of {model.num_experts} experts, which "
                "is not a sparsity that this page offers; use it with "
                "`moeprune plan --schedule-file`."
            )
        keep_by_hand(kept, frozenset())


def _move_sparsity(model: MoEModel, kept: Mapping[int, int]) -> int | None:
    """Set the slider to the sparsity of these counts; None if it has no such step."""
    removed = sum(layer.num_experts - kept[layer.index] for layer in model.layers)
    percent = percent_removing(model, removed)
    if percent is not None:
        st.session_state.update(sparsity_controls(percent))
    return percent


def _apply_recipe(model: MoEModel, corpora: Sequence[str], recipe: Recipe) -> None:
    """Set the controls from a recipe: all or nothing."""
    if recipe.model not in (shown_model(model), model.name):
        raise PlanError(
            f"The recipe is for {recipe.model}, but {model.name} is shown; choose that model in "
            "the sidebar, or open the recipe with `moeprune prune`."
        )
    for key in ("sensitivity", "repair", "search"):
        if getattr(recipe, key) is not None:
            raise not_here(key)
    show_plan(controls_for(recipe.plan, model, corpora))
