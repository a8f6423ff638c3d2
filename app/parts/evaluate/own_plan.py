"""The Evaluate page: what one's own plan loses, on every corpus that it was measured on."""

from typing import Any

import pandas as pd
import streamlit as st

from app.charts.evaluations import of_plan
from app.frame.cards import card
from app.literal import literal
from pruning.evaluate.result import MEASURES
from pruning.planning.make import CurrentPlan


def own_plan_part(own: CurrentPlan, results: pd.DataFrame, measure: str) -> None:
    """A card with a number for each corpus, or what to do to get one."""
    found = of_plan(results, measure, own.plan.digest)
    st.markdown(f"**Your plan**: {literal(own.name)}.")
    if found.empty:
        st.text("It was not measured yet: the form below queues that.")
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
