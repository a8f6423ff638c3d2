"""Repair of the plan on screen: the choice in the plan bar, and the form that runs one."""

from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.numbers.words import time_in_words
from app.jobs.model import ACTIVE
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.data import calibration_corpora, corpus_label
from app.session.job_queue import job_store, queue, queued_key, shown_request
from app.session.repairs import (
    AS_PRUNED,
    REPAIR,
    changed_repairs,
    known_repairs,
    new_repair_request,
    with_repair,
)
from app.session.state import one_of
from app.widgets.controls import say_unknown
from app.widgets.job_form import skip_field
from app.widgets.job_panel import job_panel
from app.widgets.notes import show_command
from pruning.repair.costs import repair_seconds
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS, ranking_corpora

_TOKENS: Final = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144)


def repair_choice(loaded: Loaded, current_plan: CurrentPlan, bar: DeltaGenerator) -> CurrentPlan:
    """Draw which repair of the plan is used, if any is known; the plan with it.

    One that the URL asks for and that is not known is said in `bar`.
    """
    if current_plan.plan.repair:
        return current_plan
    for problem in changed_repairs(loaded, current_plan):
        st.warning(literal(problem), icon=":material/warning:")
    records = known_repairs(loaded, current_plan)
    options = [AS_PRUNED, *records]
    say_unknown("Repair", REPAIR, options, place=bar)
    if not records:
        return current_plan
    if st.session_state.get(REPAIR, AS_PRUNED) not in options:
        st.session_state[REPAIR] = AS_PRUNED  # that of another plan
    chosen = st.selectbox(
        "Repair",
        options,
        key=REPAIR,
        bind="query-params",
        label_visibility="collapsed",
        width=320,
        help="Evaluations, answers and exports are of this plan, as pruned or repaired.",
    )
    record = records.get(one_of(chosen, options))
    return with_repair(loaded, current_plan, record) if record else current_plan


def repair_part(loaded: Loaded, current_plan: CurrentPlan, *, with_jobs: bool = False) -> None:
    """The known repairs of a plan that removes something, and the form for another one."""
    plan = current_plan.plan
    st.markdown(
        "**Repair**: refits the down projections of the kept experts on a corpus, so that they "
        "take over part of what is removed. Shapes and bytes stay the same."
    )
    own = plan.repair.record_id if plan.repair else ""
    records = list(known_repairs(loaded, current_plan).values())
    if own and current_plan.repaired_by is None:  # from a file, which has no choice
        records = [record for record in records if record.record_id == own]
    for record in records:
        fitted = sum(layer.damping is not None for layer in record.layers)
        where = "used here" if record.record_id == own else "choose it under Repair in the sidebar"
        st.markdown(
            f":material/healing: {fitted} of {len(record.layers)} layers "
            f"{literal(record.reference.words)}; {where}."
        )
    if plan.repair and not records:
        st.markdown(
            f":material/healing: This plan is repaired, {literal(plan.repair.words)}; its record "
            f"{literal(plan.repair.record_id)} is not in the statistics folder, so it cannot run."
        )
    if plan.repair is None:
        _form(loaded, current_plan)
    is_active = any(state in job_store().counts(("repair",)) for state in ACTIVE)
    if with_jobs and (is_active or queued_key("repair") in st.session_state):
        job_panel("plan")


def _form(loaded: Loaded, current_plan: CurrentPlan) -> None:
    """Corpora, tokens, time estimate and run button."""
    corpora_column, tokens_column = st.columns([2, 1])
    ranked_on = [part.corpus for part in ranking_corpora(current_plan.plan)] or list(loaded.runs)
    corpora = corpora_column.multiselect(
        "Fitted on",
        calibration_corpora(),
        key="repair.on",
        format_func=corpus_label,
        placeholder=", ".join(ranked_on) or "Choose a corpus",
        help="Default: the corpora that ranked the plan, else all calibrated ones. On other text "
        "it may help less, or harm: evaluate on each corpus.",
    )
    tokens = tokens_column.selectbox(
        "Tokens",
        _TOKENS,
        index=_TOKENS.index(DEFAULT_REPAIR_TOKENS),
        key="repair.tokens",
        format_func="{:,}".format,
    )
    skips = skip_field("repair.skip_bad_rows", tokens_column)
    if not (corpora or ranked_on):
        st.text("Choose a corpus; text files in the models folder are offered.")
        return
    tokens = one_of(tokens, _TOKENS, DEFAULT_REPAIR_TOKENS)
    runs = list(loaded.runs.values())
    if time := repair_seconds(loaded.model, current_plan.plan, tokens, runs):
        st.markdown(f":material/timer: {' to '.join(map(time_in_words, time))}.")
    sent = st.button("Repair this plan", key="repair.start", icon=":material/play_arrow:")
    request = new_repair_request(loaded, current_plan, corpora, tokens, skips)
    command = shown_request(request).command((current_plan.file_name,))
    if sent:
        queue(request, current_plan.name, command)
    show_command(command)
