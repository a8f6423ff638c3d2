"""Which pruned model the Evaluate page asks: the plan of the Plan page, or a criterion's."""

from dataclasses import replace
from typing import Final

import streamlit as st

from analysis.criteria import CRITERIA
from app.charts.context import Context
from app.frame.controls import choose
from app.literal import literal
from app.session.data import routed_runs
from app.session.plan_data import made_plan
from app.session.plan_state import noted_plan
from pruning.planning.choice import PlanChoice
from pruning.planning.make import CurrentPlan
from pruning.planning.percents import possible_percents

_OF_PLAN_PAGE: Final = "(plan page)"


def plan_name(shown: CurrentPlan) -> str:
    """What people call a plan: its file, or criterion, text and sparsity."""
    if shown.file:
        return shown.file
    made = shown.plan.provenance
    label = CRITERIA[made.criterion].label if made.criterion in CRITERIA else made.criterion
    schedule = made.schedule if made.schedule not in ("", "uniform") else ""
    if made.constraints.get("fixed"):
        schedule = "by hand"
    return ", ".join(filter(None, (label, "+".join(made.corpora), schedule, made.sparsity)))


def candidate_part(context: Context, prefix: str) -> CurrentPlan | None:
    """Draw the choice of a plan; the plan, or None after saying what is missing."""
    noted = noted_plan(context.model)
    options = [*([_OF_PLAN_PAGE] if noted else []), *CRITERIA]
    words = {name: criterion.label for name, criterion in CRITERIA.items()}
    if noted:
        words[_OF_PLAN_PAGE] = f"The plan on the Plan page: {plan_name(noted)}"
    else:
        st.caption("Open Plan or Export first, and the plan shown there is offered here as well.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = choose(
            "Pruned model",
            options,
            _OF_PLAN_PAGE if noted else "reap",
            key=f"{prefix}.candidate",
            format_func=words.__getitem__,
            width=380,
        )
        if name == _OF_PLAN_PAGE:
            return noted
        percent = choose(
            "Sparsity",
            possible_percents(context.model),
            usual_percent(context),
            key=f"{prefix}.percent",
            format_func=lambda percent: f"{percent}%",
            width=110,
        )
        runs, key = list(routed_runs(context.model, CRITERIA[name])), f"{prefix}.corpus"
        corpora: tuple[str, ...] = ()
        if runs and CRITERIA[name].source == "routed":
            corpora = (choose("Statistics of", runs, key=key, format_func=literal, width=200),)
    asked = replace(context, corpora=corpora, sparsity=f"{percent}%", criterion=CRITERIA[name])
    return made_plan(asked, PlanChoice())


def usual_percent(context: Context) -> int:
    """The sparsity that is asked for at first: half, or the most below that is possible."""
    return max(p for p in possible_percents(context.model) if p <= 50)
