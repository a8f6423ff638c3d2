"""The chosen plan, its controls and its files, drawn on every page."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import PlanError, UserError
from analysis.model.moe_model import MoEModel
from analysis.stats.columns import GATES
from app.choices import BLEND
from app.errors import show_error
from app.jobs.model import ACTIVE
from app.literal import literal
from app.loaded import Loaded
from app.session.controls import TEXTS, USUAL, asked_spec, controls_for
from app.session.data import (
    chosen_model,
    loaded_for,
    model_choices,
    runs_with_routing,
    shown_model,
    what_is_missing,
)
from app.session.job_queue import job_store
from app.session.link import open_link, write_link
from app.session.measured_plan import show_plan
from app.session.pinned_plans import NO_ORDER, open_pin, with_second
from app.session.pins import (
    chosen_second,
    is_shown_pinned,
    name_of,
    pin_named,
    pin_shown,
    second_key,
)
from app.session.plan_data import current_plan
from app.session.plan_state import import_plan, keep_by_hand, sparsity_controls
from app.session.state import (
    EQUAL_SHARE,
    PINNED,
    Page,
    apply_criterion,
    controls_on_page,
    corpora_of,
    corpus_options,
    criterion_in,
    not_here,
    page_choices,
    possible_steps,
    share_key,
)
from app.session.uploads import MEGABYTES, uploaded_text
from app.widgets.controls import (
    baseline_control,
    choose,
    control_row,
    criterion_controls,
    draw_controls,
    formula_part,
    say_unknown,
    search_input,
    second_of_neurons,
)
from app.widgets.notes import inform
from app.widgets.plan_bar import lost_note, no_plan, plan_line
from pruning.plan.layer_words import experts_text
from pruning.plan.plan import fit_plan
from pruning.plan.plan_file import plan_from_json
from pruning.plan.sizes import format_bytes
from pruning.planning.choice import percent_removing, possible_percents, possible_shrinks
from pruning.planning.comparing import is_ordered
from pruning.requests.ranking import SecondRequest
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.schedules.counts import counts_from_text

_UPLOAD, _REFUSED = "plan.upload", "plan.upload.refused"
_TYPES: Final = ("json", "yaml", "yml", "csv")
_GROUPS: Final = ("criterion", "baseline", "second", "schedule", "limits")
# Page -> groups of controls on the page; the others are in the sidebar.
_ON_PAGE: Final = {
    "explore": ("criterion", "baseline"),
    "compare": ("baseline", "second"),
    "plan": ("schedule",),
}
# Fields of B that may differ besides the criterion -> control.
_SIDE_B: Final = {"corpus": "b_text", "gate": "b_gate", "sparsity": "b_sparsity"}


def chosen_plan(page: str) -> tuple[Loaded, str]:
    """Draw the plan and its controls; return their values, or why there is no plan.

    The entry script draws all of them, not the pages: Streamlit forgets the value of a control that
    a run does not draw.

    Raises:
        UserError: no model, or one that cannot be used.
    """
    bar = st.container(key="plan-bar")
    controls = model_and_calibration(bar)
    model, corpora, neurons = controls.model, controls.corpora, controls.by_neuron
    places = _places(page, neurons=neurons)
    with places["criterion"]:
        criterion_controls(controls)
        if not neurons:
            formula_part()
    with places["baseline"]:
        (second_of_neurons if neurons else baseline_control)(model)
    with places["schedule"]:
        draw_controls("schedule", controls)
    with places["limits"]:
        draw_controls("limits", controls)
        _upload_part(model, corpora)
    with bar:
        lost_note(model)
    try:
        asked = asked_spec(controls_on_page(), model, corpora)
        loaded = loaded_for(model, page_choices(asked))
        with places["schedule"]:
            loaded = loaded.choosing(search=search_input(loaded, controls))
        if st.session_state.get(PINNED):
            with bar:
                loaded = with_second(loaded)
        write_link(asked, model, corpora)
    except UserError as error:
        plain = controls_on_page() | {key: USUAL[key] for key in TEXTS}
        with bar:
            no_plan(error)
        return loaded_for(model, page_choices(asked_spec(plain, model, corpora))), str(error)
    has_sides = page == "compare" and loaded.choices.criterion is not None
    if has_sides and not neurons and loaded.beside is None:
        with places["second"]:
            loaded = loaded.choosing(second=_recipe_controls(loaded))
    with st.sidebar:
        for note in loaded.run_notes:
            st.caption(literal(note))
    with bar:
        try:
            loaded = replace(loaded, shown=current_plan(loaded))
        except UserError as error:
            no_plan(error)
            return loaded, str(error)
        loaded = plan_line(loaded)
    if has_sides and loaded.beside:
        with places["second"]:
            _swap_button(swap_pinned, loaded)
    return loaded, ""


def model_and_calibration(bar: DeltaGenerator) -> Page:
    """Draw the sidebar; return on what the controls are read.

    What the URL asks for and does not exist is said in `bar`.
    """
    with st.sidebar:
        st.markdown("**MoE Prune Studio**")
        choices = {choice.name: choice for choice in model_choices()}
        if not choices:
            raise UserError(
                "There is no model to show. Build the demo with `python -m tools.demo.build`, or "
                "start with `moeprune app --models-root FOLDER`."
            )
        say_unknown("Model", "model", list(choices), place=bar)
        name = st.selectbox("Model", list(choices), key="model", bind="query-params")
        model = chosen_model(choices[name])
        st.text(
            f"{len(model.layers)} layers x {experts_text(model.layers)} experts, "
            f"top-{model.layers[0].top_k}, "
            f"{format_bytes(model.checkpoint.nbytes)} {model.dtype.lower()}"
        )
        corpora = list(runs_with_routing(model))
        open_link(model, corpora)
        page = Page(st.session_state, model, corpora)
        draw_controls("granularity", page)
        _corpus_control(page)
        _budget_controls(page)
        counts = job_store().counts()
        if active := [f"{counts[state]:,} {state}" for state in ACTIVE if state in counts]:
            number, _, state = active[0].partition(" ")
            active[0] = f"{number} {'job' if number == '1' else 'jobs'} {state}"
            st.badge(", ".join(active), icon=":material/sync:", color="blue")
    return page


def _corpus_control(page: Page) -> None:
    if not page.corpora:
        st.text("No calibration yet.")
        return
    draw_controls("corpus", page)
    criterion = criterion_in(st.session_state)
    if not page.by_neuron and criterion is not None and criterion.source != "routed":
        st.caption(f"{criterion.label} reads no corpus.")
    if st.session_state["corpus"] == BLEND:
        blend_sliders(page.corpora)


def blend_sliders(corpora: Iterable[str]) -> None:
    """The share of each corpus in the blend."""
    for corpus in corpora:
        st.session_state.setdefault(share_key(corpus), EQUAL_SHARE)
        st.slider(
            f"Share of {literal(corpus)}",
            0,
            100,
            key=share_key(corpus),
            persist_state="session",
            help="Its weight in the blend, relative to the other corpora.",
        )


def _budget_controls(page: Page) -> None:
    state, usual = st.session_state, USUAL["sparsity"]
    if not (page.by_neuron or possible_shrinks(page.model)):
        state["budget"] = USUAL["budget"]
    if state["sparsity"] not in (steps := possible_steps(page)):
        state["sparsity"] = max(percent for percent in steps if percent <= usual)
    draw_controls("budget", page)


def _places(page: str, *, neurons: bool) -> dict[str, DeltaGenerator]:
    """A container per group of controls: those of the page in a row, the others in the sidebar."""
    on_page: Collection[str] = _ON_PAGE.get(page, ())
    if neurons:  # of which Explore compares no plans
        on_page = {"plan": ("criterion", "schedule"), "explore": ("criterion",)}.get(page, on_page)
    row = control_row(key="plan-controls") if on_page else st.sidebar
    places = {}
    for name in _GROUPS:
        is_on_page = name in on_page
        with row if is_on_page else st.sidebar:
            width = "content" if is_on_page else "stretch"
            places[name] = control_row(key=f"group-{name}", width=width)
    return places


def swap(loaded: Loaded) -> None:
    """Swap A and B."""
    state, a = st.session_state, loaded.both.a
    side_a = {name: state.get(name) for name in ("corpus", "gate", "sparsity")}
    apply_criterion(str(state.get("baseline")))
    state["baseline"] = a.plan.ranking.criterion
    for name, key in _SIDE_B.items():
        if state.get(key, "") != "":
            state[name], state[key] = state[key], side_a[name]


def swap_pinned(loaded: Loaded) -> None:
    """Show the pinned plan B, and pin A in its place as the second one."""
    by_neuron = loaded.choices.spec.by_neuron
    b = chosen_second(loaded.model, by_neuron=by_neuron)
    if loaded.shown is None or b is None:
        return
    name = name_of(loaded.shown)
    if not is_shown_pinned(loaded.shown):
        pin_shown(loaded.shown)
    if pin_named(name, loaded.model):
        st.session_state[second_key(by_neuron=by_neuron)] = name
        open_pin(loaded, b)


def _swap_button(swap_sides: Callable[[Loaded], None], loaded: Loaded) -> None:
    """Off where A cannot be B: no criterion orders its experts."""
    can_be_b = swap_sides is swap or (loaded.shown is not None and is_ordered(loaded.shown.plan))
    st.button(
        "Swap A and B",
        key="swap",
        icon=":material/swap_horiz:",
        on_click=swap_sides,
        args=(loaded,),
        disabled=not can_be_b,
        help=None if can_be_b else NO_ORDER,
    )


def _recipe_controls(loaded: Loaded) -> SecondRequest:
    """Draw the controls of B. A is the plan."""
    options: dict[str, Sequence[Any]] = {
        "corpus": corpus_options(loaded.runs),
        "gate": GATES,
        "sparsity": possible_percents(loaded.model),
    }
    with st.popover("Change B", icon=":material/tune:"):
        side_b = {
            name: choose(
                f"{name.capitalize()} of B",
                ("", *options[name]),
                key=key,
                bind="query-params",
                format_func=lambda value: str(value) or "as A",
            )
            for name, key in _SIDE_B.items()
        }
    _swap_button(swap, loaded)
    values: dict[str, Any] = {}
    if side_b["corpus"] and loaded.choices.baseline.source == "routed":
        corpora = corpora_of(side_b["corpus"], controls_on_page(), list(loaded.runs))
        values["with_corpora"] = corpora
    if side_b["corpus"] == BLEND != loaded.corpus:
        with st.popover("Shares of the blend", icon=":material/tune:"):
            blend_sliders(loaded.runs)
    if side_b["gate"]:
        values["with_gate"] = side_b["gate"]
    if side_b["sparsity"]:
        values["with_sparsity"] = f"{side_b['sparsity']}%"
    return loaded.second_by(**values)


def _upload_part(model: MoEModel, corpora: Sequence[str]) -> None:
    """The file upload, and what its kinds of files do."""
    st.file_uploader(
        "Plan, schedule or recipe",
        type=list(_TYPES),
        key=_UPLOAD,
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
    if (file := st.session_state.get(_UPLOAD)) is None:
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


def has_statistics(loaded: Loaded) -> bool:
    """Whether both recipes can rank; shows what is missing unless the plan bar does."""
    for criterion in (loaded.choices.ranking_criterion, loaded.choices.baseline):
        if (missing := what_is_missing(loaded, criterion)) is not None:
            if loaded.shown is not None or criterion is loaded.choices.baseline:
                inform(missing)
            return False
    return True
