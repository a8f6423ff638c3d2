"""The Evaluate page: what this model's own evaluations say."""

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from analysis.model import DEMO_MODEL
from app.charts import csv_button, show_chart
from app.controls import switch
from app.evaluation_forms import evaluation_form
from app.literal import literal
from app.plots.evaluations import (
    AGAINST,
    at_share,
    curves_chart,
    leading_series,
    measures_of,
    own_winner_chart,
    results_of,
    shares_of,
)
from app.plots.pareto import own_pareto_chart
from app.record_parts import records_of
from app.state import View
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.result import MEASURES

_SCREENING: Final = (
    "Screening numbers: how far the pruned model moves away on held-out text. Run the benchmarks "
    "that matter to you before a release."
)
_NUMBERS: Final = {"mean": "mean", "low": "95% from", "high": "95% to", "full": "full model"}
_FEW_LINES: Final = 6  # as many as there are colours


def own_part(view: View) -> None:
    """Curves, the table at one sparsity, the winner map; the form below."""
    records = records_of(view, EvaluationStore)
    results = results_of(records)
    if results.empty:
        st.info(
            "This model has no evaluations yet. Queue some below: of your plan, or of every "
            "criterion at every sparsity with one loaded model.",
            icon=":material/info:",
        )
    else:
        _charts(view, results)
    with st.container(border=True):
        evaluation_form(view, records)


def _charts(view: View, results: pd.DataFrame) -> None:
    names = measures_of(results)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        measure = _one_of(
            st.selectbox(
                "Measure",
                names,
                index=names.index("nll") if "nll" in names else 0,
                key="measure",
                bind="query-params",
                format_func=lambda name: MEASURES[name].label,
                width=220,
            ),
            names,
        )
        corpora = list(dict.fromkeys(results["corpus"]))
        corpus = _one_of(
            st.selectbox("Held-out text", corpora, key="held_out", bind="query-params", width=220),
            corpora,
        )
        share = _share_control(results)
    known = MEASURES[measure]
    direction = "higher" if known.higher_is_better else "lower"
    st.text(f"{known.label}: {known.description} The {direction}, the better.")
    if share is not None:
        with st.container(border=True):
            _cost(view, results, measure, share, corpus)
    _drawings(view, results, measure, corpus)
    st.text(_SCREENING)
    if view.model.name == DEMO_MODEL:
        st.text("A small model trained for this demo; its rankings are its own.")


def _drawings(view: View, results: pd.DataFrame, measure: str, corpus: str) -> None:
    """Quality against memory on one text, curves on all, winner map."""
    if memory := own_pareto_chart(results, measure, corpus, view.model.name):
        with st.container(border=True):
            st.markdown(
                f"**Quality against memory** on {literal(corpus)}: the steps are the best that "
                "each amount of memory buys; bars are 95% intervals."
            )
            show_chart(memory)
    with st.container(border=True):
        _curves(view, results, measure)
    if chart := own_winner_chart(results, view.model.name):
        with st.container(border=True):
            st.markdown("**Winner map**: which candidate stays nearest to the full model (ESAP).")
            show_chart(chart)


def _curves(view: View, results: pd.DataFrame, measure: str) -> None:
    st.markdown("**What pruning costs**, a panel for each text; bands are 95% intervals.")
    against = switch("Against", "against", AGAINST)
    names = sorted(set(results["series"]) - {""})
    lit: list[str] | None = None
    if len(names) > _FEW_LINES:
        chosen = st.multiselect(
            "Lines in colour",
            names,
            default=leading_series(results, measure),
            key=f"lines.{measure}",
            help="At first those that are best somewhere, and random. The others are grey.",
        )
        lit = [name for name in chosen if name in names]
    show_chart(curves_chart(results, measure, against, view.model.name, lit))


def _one_of(value: Any, options: Sequence[str]) -> str:
    return value if value in options else options[0]


def _share_control(results: pd.DataFrame) -> float | None:
    shares = shares_of(results)
    if not shares:
        return None
    usual = "50%" if "50%" in shares else shares[0]
    if len(shares) == 1:
        return float(shares[0].rstrip("%")) / 100
    chosen = st.select_slider("Removed", shares, value=usual, key="removed", bind="query-params")
    return float((chosen if chosen in shares else usual).rstrip("%")) / 100


def _cost(view: View, results: pd.DataFrame, measure: str, share: float, corpus: str) -> None:
    table = at_share(results, measure, share, corpus)
    if table.empty:
        st.info(
            f"Nothing was evaluated at {share:.0%} on {literal(corpus)}.", icon=":material/info:"
        )
        return
    _metrics(table.iloc[0], measure, share, view.model.name)
    label = MEASURES[measure].label
    st.dataframe(
        # Measures of the difference between both models have no number of the full one.
        table.drop(columns="bytes").dropna(axis="columns", how="all"),
        hide_index=True,
        alt=f"{label} of {len(table)} candidates at {share:.0%} on {corpus}, best first",
        column_config={
            name: st.column_config.NumberColumn(heading, format="%.4f")
            for name, heading in _NUMBERS.items()
        }
        | {
            "change": st.column_config.NumberColumn(format="%+.4f"),
            "memory_saved": st.column_config.NumberColumn("memory saved", format="percent"),
        },
    )
    csv_button(table, "evaluations")


def _metrics(best: pd.Series, measure: str, share: float, model: str) -> None:
    """Three numbers of the best candidate."""
    first, second, third = st.columns(3)
    known, change = MEASURES[measure], best["change"]
    first.metric(
        f"{known.label}, best at {share:.0%}",
        f"{best['mean']:.3f}",
        None if pd.isna(change) else f"{change:+.3f} vs full {best['full']:.3f}",
        delta_color="normal" if known.higher_is_better else "inverse",
        border=True,
        height="stretch",
    )
    name, _, ranked_by = str(best["candidate"]).partition(", ")
    _plain_metric(second, "Best candidate", name, ranked_by or None)
    saved = best["memory_saved"]
    _plain_metric(third, "Memory saved", "-" if pd.isna(saved) else f"{saved:.0%}", f"of {model}")


def _plain_metric(place: Any, label: str, value: str, below: str | None) -> None:
    place.metric(
        label,
        value,
        below,
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
    )
