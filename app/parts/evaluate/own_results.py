"""The Evaluate page: what this model's own evaluations say."""

from dataclasses import replace
from typing import Final

import pandas as pd
import streamlit as st

from analysis.model import DEMO_MODEL
from app.charts import evaluation_curves
from app.charts.choices import ResultChoice
from app.charts.context import Context
from app.charts.evaluations import (
    at_share,
    is_share,
    measures_of,
    of_plan,
    pool_draws,
    results_of,
    shares_of,
    usual_measure,
    worst_elsewhere,
)
from app.frame.cards import card
from app.frame.charts import chart_card, csv_button, show
from app.frame.controls import choose, switch
from app.frame.notes import inform
from app.literal import literal
from app.parts.evaluate.evaluation_form import evaluation_form
from app.parts.evaluate.own_plan import measure_card, own_plan_part
from app.parts.evaluate.sweep_fields import share_control
from app.session.records import records_of
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.result import MEASURES

_SCREENING: Final = (
    "Screening numbers: how far the pruned model moves away on held-out text. Run the benchmarks "
    "that matter to you before a release."
)
_NUMBERS: Final = {"mean": "mean", "low": "95% from", "high": "95% to", "full": "full model"}


def own_part(context: Context) -> None:
    """Curves, the table at one sparsity, the winner map; the form below."""
    records = records_of(context, EvaluationStore)
    results = results_of(records)
    if results.empty:
        inform(
            "This model has no evaluations yet; the form below measures your plan, or every "
            "criterion at every sparsity with one loaded model."
        )
    else:
        _charts(context, results)
    with st.container(border=True):
        evaluation_form(context, records)


def _charts(context: Context, measured: pd.DataFrame) -> None:
    results = pool_draws(measured)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        measure = choose(
            "Measure",
            measures_of(results),
            usual_measure(results),
            key="measure",
            bind="query-params",
            format_func=lambda name: MEASURES[name].label,
            width=220,
        )
        corpora = list(dict.fromkeys(results["corpus"]))
        corpus = choose("Held-out text", corpora, key="held_out", bind="query-params", width=220)
        shares = {words: float(words.rstrip("%")) / 100 for words in shares_of(results)}
        share = share_control(shares, "removed") if shares else None
    own = context.shown
    known = MEASURES[measure]
    direction = "higher" if known.higher_is_better else "lower"
    st.text(f"{known.label}: {known.description} The {direction}, the better.")
    mine = of_plan(measured, measure, own.plan.digest) if own else results.iloc[:0]
    if own is not None:
        with st.container(border=True):
            own_plan_part(own, measured, measure)
    if share is not None:
        with st.container(border=True):
            _cost(context, results, (measure, share, corpus), mine)
    context = replace(context, results=ResultChoice(results, measure=measure, corpus=corpus))
    chart_card(
        "pareto",
        context,
        f"**Quality against memory** on {literal(corpus)}: the steps are the best that each amount "
        "of memory buys; bars are 95% intervals.",
    )
    with st.container(border=True):
        _curves(context, results, measure, mine)
    chart_card(
        "own-winner-map",
        context,
        "**Winner map**: which candidate stays nearest to the full model (ESAP).",
    )
    st.text(_SCREENING)
    if context.model.name == DEMO_MODEL:
        st.text("A small model trained for this demo; its rankings are its own.")


def _curves(context: Context, results: pd.DataFrame, measure: str, mine: pd.DataFrame) -> None:
    st.markdown("**What pruning costs**, a panel for each text; bands are 95% intervals.")
    axes = {name: label for name, (label, *_) in evaluation_curves.AXES.items()}
    against = switch("Against", "against", axes)
    names = sorted(set(results["series"]) - {""})
    lit: list[str] | None = None
    if len(names) > 6:  # as many as there are colours
        chosen = st.multiselect(
            "Lines in colour",
            names,
            default=sorted(
                {*evaluation_curves.leading_series(results, measure), *mine["series"]} - {""}
            ),
            key=f"lines.{measure}",
            help="At first those that are best somewhere, your plan's, and random. The others are "
            "grey.",
        )
        lit = [name for name in chosen if name in names]
    choice = replace(context.results, against=against, lit=lit)
    show("evaluation-curves", replace(context, results=choice))


def _cost(
    context: Context, results: pd.DataFrame, seen: tuple[str, float, str], mine: pd.DataFrame
) -> None:
    """The best at one share on one text, what it loses on the others, and the table of all.

    `seen` is the measure, the share and the text, `mine` are the rows of one's own plan.
    """
    measure, share, corpus = seen
    known = MEASURES[measure]
    table = at_share(results, measure, share, corpus)
    if table.empty:
        inform(f"Nothing was evaluated at {share:.0%} on {literal(corpus)}.")
        return
    best = table.iloc[0]
    _metrics(best, seen, context.model.name)
    elsewhere = worst_elsewhere(results, measure, share, corpus, best["candidate"])
    if elsewhere is not None:
        loses = f"{known.label} {elsewhere['mean']:.3f}"
        if not pd.isna(whole := elsewhere["full"]):
            loses = f"{known.label} {elsewhere['mean'] - whole:+.3f} vs full {whole:.3f}"
        st.markdown(
            f":material/warning: The best was picked on {literal(corpus)}, the text it is reported "
            "on. On the other texts it does worst on "
            f"**{literal(elsewhere['corpus'])}: {loses}**."
        )
    marked = set(mine.loc[is_share(mine["removed"], share), "series"])
    # Measures of the difference between both models have no number of the full one.
    shown = table.drop(columns="bytes").dropna(axis="columns", how="all")
    if not marked.isdisjoint(shown["candidate"]):
        words = ["yours" if name in marked else "" for name in shown["candidate"]]
        shown.insert(1, "plan", words)
    st.dataframe(
        shown,
        hide_index=True,
        alt=f"{known.label} of {len(table)} candidates at {share:.0%} on {corpus}, best first",
        column_config={
            name: st.column_config.NumberColumn(heading, format="%.4f")
            for name, heading in _NUMBERS.items()
        }
        | {
            "plan": st.column_config.TextColumn("", width=56),
            "num_samples": st.column_config.NumberColumn("samples"),
            "change": st.column_config.NumberColumn(format="%+.4f"),
            "memory_saved": st.column_config.NumberColumn("memory saved", format="percent"),
        },
    )
    csv_button(table, "evaluations")


def _metrics(best: pd.Series, seen: tuple[str, float, str], model: str) -> None:
    """Three numbers of the best candidate at one share on one corpus."""
    measure, share, corpus = seen
    first, second, third = st.columns(3)
    measure_card(first, f"{MEASURES[measure].label}, best at {share:.0%}", best, measure)
    name, _, ranked_by = str(best["candidate"]).partition(", ")
    # What ranked the best is not to be read as what it was measured on.
    ranked = f"ranked {ranked_by}" if ranked_by.startswith("on ") else ranked_by or None
    card(f"Best on {literal(corpus)}", name, ranked, place=second)
    saved = best["memory_saved"]
    memory = "-" if pd.isna(saved) else f"{saved:.0%}"
    card("Memory saved", memory, f"of {model}", place=third)
