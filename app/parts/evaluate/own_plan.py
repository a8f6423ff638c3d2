"""The Evaluate page: what the plan in one's hands loses, on every text that it was measured on."""

from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd
import streamlit as st

from analysis.errors import UserError
from app.literal import literal
from app.parts.evaluate.candidates import plan_name, usual_percent
from app.plots.evaluations import of_plan
from app.session.needed import what_is_missing
from app.session.plan_data import made_plan
from app.session.plan_state import noted_plan
from app.session.state import View
from pruning.evaluate.result import MEASURES
from pruning.planning.planning import PlanChoice, Shown

_SEEN: Final = "recipe_view"


@dataclass(frozen=True, eq=False)
class OwnPlan:
    """The plan that a person has in hands.

    Args:
        shown: the plan.
        source: where it was chosen, in words.
        is_offered: whether the form below offers it.
    """

    shown: Shown
    source: str
    is_offered: bool


def remember_view(view: View) -> None:
    """Note what the sidebar says, for the Evaluate page, which asks for no recipe."""
    st.session_state[_SEEN] = view


def own_plan(view: View) -> OwnPlan | None:
    """What the Plan page showed last, else the sidebar's recipe; None where it makes no plan."""
    noted = noted_plan(view.model)
    if noted is not None:
        return OwnPlan(noted, "as Plan showed it last", is_offered=True)
    seen = st.session_state.get(_SEEN)
    if not isinstance(seen, View) or seen.model.identity != view.model.identity:
        seen = replace(view, sparsity=f"{usual_percent(view)}%")
    if seen.criterion is None or what_is_missing(seen, seen.criterion) is not None:
        return None
    try:
        shown = made_plan(seen, PlanChoice())
    except UserError:  # a share of neurons, which whole experts cannot meet
        return None
    if shown is None:
        return None
    return OwnPlan(shown, "as the sidebar has it; Plan changes it", is_offered=False)


def own_plan_part(own: OwnPlan, results: pd.DataFrame, measure: str) -> None:
    """A card with a number for each text, or what to do to get one."""
    found = of_plan(results, measure, own.shown.plan.digest)
    st.markdown(f"**Your plan**: {literal(plan_name(own.shown))} ({own.source}).")
    if found.empty:
        first = "" if own.is_offered else "open it on Plan, then "
        st.text(f"It was not measured yet: {first}queue it below.")
        return
    for place, row in zip(st.columns(len(found)), found.to_dict("records"), strict=True):
        label = f"{MEASURES[measure].label} on {literal(str(row['corpus']))}"
        measure_card(place, label, row, measure)
    if missing := [name for name in results["corpus"].unique() if name not in set(found["corpus"])]:
        st.text(f"Not measured on {', '.join(missing)}.")


def measure_card(place: Any, label: str, row: Any, measure: str) -> None:
    """A measure, and how far it is from the full model's, which is better or worse.

    Args:
        place: where it is drawn.
        label: what it is a number of.
        row: of a table with `mean` and `full`, the full model's or NaN.
        measure: one of MEASURES.
    """
    full = row["full"]
    place.metric(
        label,
        f"{row['mean']:.3f}",
        None if pd.isna(full) else f"{row['mean'] - full:+.3f} vs full {full:.3f}",
        delta_color="normal" if MEASURES[measure].higher_is_better else "inverse",
        border=True,
        height="stretch",
    )
