"""Evaluate, this model: candidates by loss, curves and maps, and the form for more."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn

from app.charts import evaluation_curves
from app.charts.evaluations import (
    intervals_of,
    measures_of,
    series_name,
    stored_results,
    usual_measure,
)
from app.charts.traces import signed
from app.choices import ResultChoice
from app.literal import literal
from app.loaded import CurrentPlan, Loaded, loss_of_plan
from app.pages.evaluate.right import question_choice, right_column, right_table
from app.session.data import (
    corpus_label,
    held_out_corpora,
    records_of,
    remembered,
    settings,
    usual_corpora,
)
from app.session.job_queue import own_model
from app.widgets.charts import chart_card, show_named, table_with_csv
from app.widgets.controls import choose, view_switch
from app.widgets.job_form import (
    dtype_field,
    offer_job,
    queue_button,
    samples_field,
    share_control,
    skip_field,
    sweep_fields,
)
from app.widgets.notes import inform, say_if_demo
from app.widgets.own_texts import add_text_part
from app.widgets.plan_bar import (
    loss_words,
    losses_table,
    measure_button,
    plan_in_bits,
)
from app.widgets.repair import repair_part
from pruning.measures.result import FEW_DOCUMENTS, MEASURES
from pruning.plan.plan import changes_nothing, removes_nothing
from pruning.plan.sizes import format_bytes
from pruning.records.evaluation import EvaluationRecord, EvaluationStore
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.records.quality import (
    PlanLoss,
    RandomLoss,
    candidates_at,
    full_losses,
    losses_at,
    random_at,
)
from pruning.records.quality_by_sample import difference
from pruning.records.right_of_plans import random_draws, usual_questions
from pruning.requests.evaluation import EvaluateRequest, SweepRequest
from pruning.spec.base import validated

_SCREENING: Final = (
    "Screening numbers: how far the pruned model drifts on held-out corpora. Run your own "
    "benchmarks before a release."
)
_ORDER: Final = (
    "mean",
    "worst",
    "candidate",
    "right",
    "worst_on",
    "away",
    "size",
    "num_samples",
    "num_documents",
)
_COLUMNS: Final = {
    "mean": NumberColumn(width=64, format="%+.3f", help="Mean over the corpora."),
    "worst": NumberColumn(width=64, format="%+.3f"),
    "right": NumberColumn(
        "right answers", format="percent", help="To held-out questions, mean over the corpora."
    ),
    "worst_on": TextColumn("worst on"),
    "num_samples": NumberColumn("samples"),
    "num_documents": NumberColumn(
        "documents",
        help="That the samples are of, on the corpus with the fewest. Intervals resample them: "
        f"with fewer than {FEW_DOCUMENTS} they are rough.",
    ),
    "repaired_on": TextColumn(
        "repaired on", help="Corpora that the repair was fitted on; empty without a repair."
    ),
    "repair_tokens": NumberColumn("tokens of the repair", help="Of these corpora together."),
    "away": TextColumn(
        "vs best",
        help="Too close to call: the 95% interval of the difference, by documents, contains 0.",
    ),
}
_OF_REPAIR: Final = ("repaired_on", "repair_tokens")
_REPAIRED: Final = {False: "", True: " (repaired)"}
_PLAN: Final = "plan"
_CORPORA: Final = "evaluate.corpora"
_WHAT: Final = {_PLAN: "Your plan", "sweep": "Criteria at sparsities"}


def own_part(loaded: Loaded) -> None:
    """All candidates by loss, then curves and maps, with the form below."""
    records = records_of(loaded, EvaluationStore)
    store = EvaluationStore(settings().store.directories).snapshot(loaded.model.identity)
    results = remembered(stored_results, store, loaded.model.identity)
    if results.empty:
        inform(
            "No evaluations of this model yet. Run one below: your plan, or many criteria and "
            "sparsities with the model loaded once."
        )
    else:
        _charts(loaded, results)
        with st.container(border=True):
            candidates_part(loaded)
    with st.expander("Run more evaluations", expanded=results.empty):
        evaluation_form(loaded, records)
    if loaded.shown and not changes_nothing(loaded.shown.plan, loaded.model):
        with st.expander("Repair this plan"):
            repair_part(loaded, loaded.shown)


def _charts(loaded: Loaded, results: pd.DataFrame) -> None:
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
        corpus = choose("Held-out corpus", corpora, key="held_out", bind="query-params", width=220)
        axes = {name: label for name, (label, *_) in evaluation_curves.AXES.items()}
        against = view_switch("Against", "against", axes)
    choice = ResultChoice(results, measure=measure, corpus=corpus, against=against)
    loaded = loaded.choosing(results=choice)
    _curves(loaded, results, measure)
    definition = MEASURES[measure]
    direction = "higher" if definition.higher_is_better else "lower"
    st.text(f"{definition.label}: {definition.description} {direction.capitalize()} is better.")
    chart_card(
        "pareto",
        loaded,
        f"**Quality against memory** on {literal(corpus)}: steps mark the best at each memory "
        f"size; bars are {intervals_of(results[results['corpus'] == corpus])}.",
    )
    st.text(_SCREENING)
    say_if_demo(loaded.model)


def _curves(loaded: Loaded, results: pd.DataFrame, measure: str) -> None:
    """The curves, and below them which lines are highlighted, if there are more than colours."""
    names = sorted(set(results["series"]) - {""})
    if len(names) <= 6:
        show_named("evaluation-curves", loaded)
        return
    digest = loaded.shown.plan.digest if loaded.shown else ""
    plan_series = set(results.loc[results["plan"] == digest, "series"]) if digest else set()
    granularity = loaded.choices.spec.ranking.granularity
    leading = evaluation_curves.leading_series(results, measure, granularity)
    usual, key = sorted({*leading, *plan_series} - {""}), f"lines.{measure}.{granularity}"
    # The value is known before its list is drawn, which a slow chart would push down.
    lit = [name for name in st.session_state.get(key, usual) if name in names]
    choice = replace(loaded.choices.results, lit=lit)
    show_named("evaluation-curves", loaded.choosing(results=choice))
    st.multiselect(
        "Highlighted lines",
        names,
        default=usual,
        key=key,
        help="Default: your plan, Random, and the two that are best over all corpora at most "
        "sparsities. Others are grey.",
    )


def candidates_part(loaded: Loaded) -> None:
    """Loss per corpus of the plan, the original, Random and the best; then all candidates."""
    losses, granularity = loaded.study.losses, loaded.choices.spec.ranking.granularity
    same_kind = [loss for loss in losses if loss.facts.granularity == granularity]
    shares = sorted({round(loss.facts.removed or 0.0, 4) for loss in same_kind} - {0.0})
    if not shares:
        what = "neurons" if loaded.choices.spec.by_neuron else "experts"
        inform(f"No evaluations of plans that remove {what}; run one below.")
        return
    plan_loss, _ = loss_of_plan(loaded)
    words = {f"{100 * share:.4g}%": share for share in shares}
    facts = _facts(loaded) if plan_loss is None else plan_loss.facts
    plan_share = f"{100 * round(facts.removed or 0.0, 4):.4g}%" if facts else ""
    with st.container(width=400):
        share = share_control(words, "removed", plan_share)
    table = candidates_at(losses, share, granularity)
    if table.empty:
        inform(f"No evaluations at a sparsity of {share:.0%} of the expert weights.")
        return
    losses_by_plan = {loss.plan: loss for loss in losses_at(losses, share) if not loss.way}
    best = losses_by_plan.get(next((plan for plan in table["plan"] if plan in losses_by_plan), ""))
    added = _columns(loaded, best, random_at(losses, share, granularity))
    repaired = ""
    if (table["repaired_on"] != "").any():
        repaired = " Candidates **+ repair** are refitted, the others are not."
    st.markdown(
        f"**Loss increase at {share:.0%} sparsity**, in nats per token on held-out corpora; lower "
        f"is better.{repaired}"
    )
    losses_table(full_losses(losses), added)
    draws, asked = random_draws(losses, share, granularity), usual_questions(losses)
    if asked:
        right_table(losses, asked, _asked_plans(loaded, best, draws))
    table = table.assign(
        right=right_column(table, losses_by_plan, draws, asked),
        candidate=_names(table, {loss.plan: loss.created_at for loss in losses}),
        away=[
            _distance(best, losses_by_plan.get(plan))
            for plan in table["plan"].where(table["way"] == "")
        ],
        size=table["bytes"].map(format_bytes),
    )
    own_plan = loaded.shown.plan.digest if loaded.shown else None  # pooled draws have the plan ""
    if plan_loss is None and loaded.shown and facts:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"Your plan: {loss_words(loaded, None, None)}.", width="content")
            measure_button(loaded, loaded.shown, "candidates.measure")
        table = pd.concat([_unmeasured_row(loaded, loaded.shown, facts), table], ignore_index=True)
    _table(table[table["way"] == ""], own_plan)
    if (others := table[table["way"] != ""]).empty:
        return
    with st.expander("Measured on other samples or in another dtype"):
        for way, rows in others.groupby("way"):
            st.text(str(way))
            _table(rows, own_plan)


def _columns(
    loaded: Loaded, best: PlanLoss | None, chance: RandomLoss | None
) -> dict[str, Mapping[str, float]]:
    """Loss increases by corpus, by column: the plan on screen, Random and the best plan."""
    added: dict[str, Mapping[str, float]] = {}
    plan_loss, _ = loss_of_plan(loaded)
    if plan_loss is not None:
        name = f"your plan{_REPAIRED[plan_loss.is_repaired]}"
        added[", ".join(filter(None, (name, plan_loss.way)))] = plan_loss.change
    elif (predicted := loaded.predicted) is not None:
        added["your plan, predicted"] = predicted.change
    elif loaded.shown is not None:
        added["your plan, not measured"] = {}
    if chance is not None:
        added[_random_name(chance.draws)] = chance.change
    if best is not None and best is not plan_loss:
        added[f"the best{_REPAIRED[best.is_repaired]}"] = best.change
    return added


def _asked_plans(
    loaded: Loaded, best: PlanLoss | None, draws: Sequence[PlanLoss]
) -> dict[str, Sequence[PlanLoss]]:
    """The plan on screen, the draws of Random and the best plan, by column."""
    plan_loss, _ = loss_of_plan(loaded)
    plans: dict[str, Sequence[PlanLoss]] = {"your plan": [plan_loss]} if plan_loss else {}
    if draws:
        plans[_random_name(len(draws))] = draws
    if best is not None and best is not plan_loss:
        plans["the best"] = [best]
    return plans


def _random_name(draws: int) -> str:
    """Column of so many draws of Random."""
    return f"Random ({draws} draws)" if draws > 1 else "Random"


def _facts(loaded: Loaded) -> PlanFacts | None:
    """The facts of the plan on screen; None if it removes nothing."""
    if loaded.shown is None or removes_nothing(loaded.shown.plan, loaded.model):
        return None
    return plan_facts(loaded.shown.plan, loaded.model)


def _unmeasured_row(loaded: Loaded, plan: CurrentPlan, facts: PlanFacts) -> pd.DataFrame:
    """The row of the plan on screen in the table of candidates: at its sparsity, without a loss."""
    columns = facts.columns
    row = {
        **{name: columns[name] for name in ("granularity", *_OF_REPAIR)},
        "way": "",
        "candidate": f"yours: {plan.name}",
        "away": loss_words(loaded, None, None),
        "size": format_bytes(columns["bytes"]),
    }
    return pd.DataFrame([row])


def _table(table: pd.DataFrame, own_plan: str | None) -> None:
    """Table of candidates; plan `own_plan` is labelled as yours."""
    way = str(table["way"].iloc[0]) if len(table) else ""
    names = table["candidate"]
    table_with_csv(
        table,
        f"candidates{way and '-other'}",
        f"{len(table)} candidates by mean loss increase, lowest first",
        shown=table.assign(
            candidate=names.mask(table["plan"] == own_plan, "yours: " + names),
            repair_tokens=table["repair_tokens"].where(table["repaired_on"] != ""),
            **{name: signed(table[name], 3) for name in ("mean", "worst") if name in table},
        ),
        # Key numbers come first, so that a phone shows them.
        column_order=(
            *(name for name in _ORDER if name != "right" or table["right"].notna().any()),
            *(_OF_REPAIR if (table["repaired_on"] != "").any() else ()),
        ),
        column_config=_COLUMNS,
        placeholder="-",
        key=f"candidates.{way}",
    )


def _names(table: pd.DataFrame, times: Mapping[str, str]) -> list[str]:
    """Display names; later candidates of the same name include their plan id.

    `times` maps plan -> time of measurement.
    """
    labels = [
        series_name(row) + (f" ({row['draws']} draws)" if row["draws"] > 1 else "")
        for row in table.to_dict("records")
    ]
    names = pd.Series(labels, index=table.index)
    in_time = table["plan"].iloc[[*table["plan"].map(times).fillna("").argsort(kind="stable")]]
    first = in_time.groupby(names).transform("first").reindex(table.index)
    later = ", plan " + table["plan"].str[:8]
    return names.where(table["plan"] == first, names + later).tolist()


def _distance(best: PlanLoss | None, other: PlanLoss | None) -> str:
    """Loss of a plan relative to the best, if the difference is significant."""
    if best is None or other is None or other.missing:
        return ""
    if other is best:
        return "best"
    apart = difference(other, best)
    if apart is None:
        return f"{other.mean - best.mean:+z.3f}"
    return f"{apart.mean:+z.3f}" if apart.is_clear else "too close to call"


def evaluation_form(loaded: Loaded, records: Sequence[EvaluationRecord]) -> None:
    """Form that queues an evaluation; existing `records` set its defaults."""
    plan = loaded.shown
    chosen = st.segmented_control(
        "Evaluate",
        list(_WHAT),
        default=_PLAN if plan else "sweep",
        required=True,
        key="evaluate.what",
        format_func=_WHAT.__getitem__,
    )
    if chosen != _PLAN:
        plan = None
    elif plan is None:
        st.text("There is no plan; see the bar above.")
        return
    corpora = _corpora_field(loaded)  # the form sends its fields with its button alone
    with st.form(f"evaluate.{_PLAN if plan else 'sweep'}", border=False):
        values = {} if plan else sweep_fields(loaded, "evaluate")
        questions = question_choice(corpora)
        values |= _common_fields(records)
        sent = queue_button("Run evaluation", "" if corpora else "Choose a corpus to evaluate on.")
    if not corpora:
        return
    values |= questions.fields()
    if plan:
        fields = {**own_model(loaded), **values, **plan_in_bits(plan.plan)}
        offer_job(loaded, validated(EvaluateRequest, fields), plan.name, sent=sent, plan=plan)
    elif not (values["criteria"] and values["sparsities"]):
        st.text("Choose at least one criterion and one sparsity.")
    else:
        request = validated(SweepRequest, {**own_model(loaded), **values})
        offer_job(loaded, request, loaded.model.name, sent=sent)


def _corpora_field(loaded: Loaded) -> tuple[str, ...]:
    """Draw the corpora to evaluate on; return them."""
    corpora = st.multiselect(
        "Held-out corpora",
        held_out_corpora(loaded),
        default=usual_corpora(loaded)[:1],
        key=_CORPORA,
        format_func=corpus_label,
        placeholder="Choose a corpus",
    )
    add_text_part("evaluate.text", _take_text)
    return tuple(corpora)


def _take_text(path: str) -> None:
    st.session_state[_CORPORA] = [*st.session_state.get(_CORPORA, ()), path]


def _common_fields(records: Sequence[EvaluationRecord]) -> dict[str, Any]:
    """Draw sample count and dtype; return request fields."""
    # Default: the dtype of most evaluations, if offered.
    ran = Counter(record.settings["dtype"] for record in records).most_common(1)
    return {
        "samples": samples_field("Samples per corpus", "evaluate"),
        "skip_bad_rows": skip_field("evaluate.skip_bad_rows"),
        "dtype": dtype_field(
            ran[0][0] if ran else "auto",
            "evaluate.dtype",
            "Defaults to the dtype of most evaluations here; other dtypes get their own lines.",
        ),
    }
