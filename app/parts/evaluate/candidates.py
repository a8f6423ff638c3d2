"""Which pruned model the Evaluate page asks: the plan of the Plan page, or a criterion's."""

from dataclasses import replace
from typing import Final

import streamlit as st

from analysis.criteria import CRITERIA
from app.frame.controls import one_of
from app.literal import literal
from app.session.data import routed_runs
from app.session.plan_data import made_plan
from app.session.plan_state import noted_plan
from app.session.state import View
from pruning.planning.percents import possible_percents
from pruning.planning.planning import PlanChoice, Shown

_OF_PLAN_PAGE: Final = "(plan page)"
_FIRST: Final = "reap"
_USUAL_PERCENT: Final = 50


def plan_name(shown: Shown) -> str:
    """What people call a plan: its file, or criterion, text and sparsity."""
    if shown.file:
        return shown.file
    made = shown.plan.provenance
    label = CRITERIA[made.criterion].label if made.criterion in CRITERIA else made.criterion
    schedule = made.schedule if made.schedule not in ("", "uniform") else ""
    if made.constraints.get("fixed"):
        schedule = "by hand"
    return ", ".join(filter(None, (label, "+".join(made.corpora), schedule, made.sparsity)))


def candidate_part(view: View, prefix: str) -> Shown | None:
    """Draw the choice of a plan; the plan, or None after saying what is missing.

    Raises:
        UserError: the sparsity cannot be met.
    """
    noted = noted_plan(view.model)
    options = [*([_OF_PLAN_PAGE] if noted else []), *CRITERIA]

    def words(option: str) -> str:
        if option == _OF_PLAN_PAGE and noted:
            return f"The plan on the Plan page: {plan_name(noted)}"
        return CRITERIA[option].label

    if noted is None:
        st.caption("Open Plan or Export first, and the plan shown there is offered here as well.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox(
            "Pruned model",
            options,
            index=0 if noted else options.index(_FIRST),
            key=f"{prefix}.candidate",
            format_func=words,
            width=380,
        )
        if noted and chosen == _OF_PLAN_PAGE:
            return noted
        name = one_of(chosen, list(CRITERIA), _FIRST)
        percent = _percent(view, prefix)
        runs = routed_runs(view.model, CRITERIA[name])
        corpus = ""
        if runs and CRITERIA[name].source == "routed":
            picked = st.selectbox(
                "Statistics of", list(runs), key=f"{prefix}.corpus", format_func=literal, width=200
            )
            corpus = one_of(picked, list(runs))
    asked = replace(
        view, corpora=(corpus,) if corpus else (), sparsity=f"{percent}%", criterion=CRITERIA[name]
    )
    return made_plan(asked, PlanChoice())


def usual_percent(view: View) -> int:
    """The sparsity that is asked for at first: half, or the most below that is possible."""
    return max(p for p in possible_percents(view.model) if p <= _USUAL_PERCENT)


def _percent(view: View, prefix: str) -> int:
    percents, usual = possible_percents(view.model), usual_percent(view)
    chosen = st.selectbox(
        "Sparsity",
        percents,
        index=percents.index(usual),
        key=f"{prefix}.percent",
        format_func=lambda percent: f"{percent}%",
        width=110,
    )
    return one_of(chosen, percents, usual)
