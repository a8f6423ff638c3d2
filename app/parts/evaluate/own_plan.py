"""The Evaluate page: what one's own plan loses, on every corpus that it was measured on."""

from dataclasses import replace
from typing import Any, Final

import pandas as pd
import streamlit as st

from analysis.errors import UserError
from app.charts.context import Context
from app.charts.evaluations import of_plan
from app.frame.cards import card
from app.literal import literal
from app.parts.evaluate.candidates import plan_name, usual_percent
from app.session.needed import what_is_missing
from app.session.plan_data import made_plan
from app.session.plan_state import noted_plan
from pruning.evaluate.result import MEASURES
from pruning.planning.choice import PlanChoice
from pruning.planning.make import CurrentPlan

_SEEN: Final = "recipe_view"


def remember_view(context: Context) -> None:
    """Note what the sidebar says, for the Evaluate page, which asks for no recipe."""
    st.session_state[_SEEN] = context


def own_plan(context: Context) -> CurrentPlan | None:
    """What the Plan page showed last, else the sidebar's recipe; None where it makes no plan."""
    if (noted := noted_plan(context.model)) is not None:
        return noted
    seen = st.session_state.get(_SEEN)
    if not isinstance(seen, Context) or seen.model.identity != context.model.identity:
        seen = replace(context, sparsity=f"{usual_percent(context)}%")
    if seen.criterion is None or what_is_missing(seen, seen.criterion) is not None:
        return None
    try:
        return made_plan(seen, PlanChoice())
    except UserError:  # a share of neurons, which whole experts cannot meet
        return None


def own_plan_part(context: Context, own: CurrentPlan, results: pd.DataFrame, measure: str) -> None:
    """A card with a number for each corpus, or what to do to get one."""
    is_offered = noted_plan(context.model) is not None  # by the form below
    source = "as Plan showed it last" if is_offered else "as the sidebar has it; Plan changes it"
    found = of_plan(results, measure, own.plan.digest)
    st.markdown(f"**Your plan**: {literal(plan_name(own))} ({source}).")
    if found.empty:
        first = "" if is_offered else "open it on Plan, then "
        st.text(f"It was not measured yet: {first}queue it below.")
        return
    for place, row in zip(st.columns(len(found)), found.to_dict("records"), strict=True):
        label = f"{MEASURES[measure].label} on {literal(str(row['corpus']))}"
        measure_card(place, label, row, measure)
    if missing := [name for name in results["corpus"].unique() if name not in set(found["corpus"])]:
        st.text(f"Not measured on {', '.join(missing)}.")


def measure_card(place: Any, label: str, row: Any, measure: str) -> None:
    """A measure, and how far it is from the full model's, which is better or worse.

    `row` is of a table with `mean` and `full`, the full model's or NaN.
    """
    full = row["full"]
    card(
        label,
        f"{row['mean']:.3f}",
        None if pd.isna(full) else f"{row['mean'] - full:+.3f} vs full {full:.3f}",
        place=place,
        delta_color="normal" if MEASURES[measure].higher_is_better else "inverse",
        delta_arrow="auto",
    )
