"""Evaluate, the text lens: where a plan loses a text, and which experts it lost there."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from app.charts.listing import CHARTS
from app.charts.text_lens import (
    in_quotes,
    most_lost,
    shown_digest,
    shown_lens,
    shown_token,
    token_colors,
    visible,
)
from app.components.token_text import chosen_token, token_text
from app.loaded import CurrentPlan, Loaded
from app.session.chosen_expert import choose_in_chart
from app.session.data import records_of
from app.session.job_queue import own_model, queued_job
from app.session.prompts import chosen_records, own_last
from app.widgets.charts import chart_files, show_chart, show_named
from app.widgets.controls import choose, say_unknown
from app.widgets.expert import link_to_expert, reads
from app.widgets.job_form import offer_job
from app.widgets.job_panel import progress_part
from app.widgets.notes import inform
from pruning.actions.ask import AskRequest
from pruning.records.lens import (
    FIRST_TOKEN,
    LensPlan,
    LensRecord,
    LensStore,
    in_short,
    lost_experts,
    token_table,
)
from pruning.spec.base import validated

TEXT, TOKEN = "text", "token"  # keys of the controls, in the URL
_FIRST: Final = "text.first"  # session: the text that the list began with
_TOKENS: Final = "text.tokens"
_MOST_LOST: Final = 3


def text_part(loaded: Loaded) -> None:
    """The text with its tokens, the experts of the chosen one, and the other plans."""
    st.markdown("**Where does the plan lose this text?**")
    job = queued_job("ask")
    if job is not None and not job.is_finished and job.request.get("text"):
        progress_part(job)
        return  # another text would stand below the one that is scored
    every = records_of(loaded, LensStore)
    titles = {record.record_id: record.asked.title for record in every}
    records = chosen_records(every, LensStore, names=titles, key=TEXT, noun="texts")
    if not records:
        inform(
            "No text has been scored token by token yet. Score one here: the original model and "
            "this plan run once on it."
        )
        _new_text(loaded)
        return
    loaded = loaded.choosing(results=_text_choice(loaded, records))
    record = shown_lens(loaded)
    plan = record.of_plan(shown_digest(loaded)) if loaded.shown else None
    if plan is None:
        _other_plan(loaded, record)
    else:
        _lens(loaded, record, plan, records)
    with st.expander("Score another text", key="text.new", on_change="rerun") as other:
        if other.open:
            _new_text(loaded)


def _text_choice(loaded: Loaded, records: Sequence[LensRecord]) -> Any:
    """Draw the choice of text and token; return the results that charts show."""
    names = {record.record_id: record.asked.title for record in records}
    first = own_last(records) or most_lost(records, shown_digest(loaded)).record_id
    if st.session_state.get(_FIRST, first) != first:  # just scored
        st.session_state[TEXT] = first
    st.session_state[_FIRST] = first
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = choose(
            "Scored text",
            list(names),
            first,
            key=TEXT,
            bind="query-params",
            format_func=names.__getitem__,
            on_change=st.session_state.update,
            args=({TOKEN: None},),
        )
        length = next(len(record.ids) for record in records if record.record_id == name)
        say_unknown("Token", TOKEN, range(FIRST_TOKEN, length + 1))
        chosen = st.session_state.get(TOKEN)
        if type(chosen) is not int or not FIRST_TOKEN <= chosen <= length:
            st.session_state[TOKEN] = None
        token = st.number_input(
            "Token",
            FIRST_TOKEN,
            length,
            value=None,
            key=TOKEN,
            bind="query-params",
            placeholder="costs most",
            width=160,
            help="A click on a token also sets it; with the keyboard, arrow keys and Enter.",
        )
    results: Any = loaded.choices.results
    return type(results)(text=name, token=token)


def _lens(
    loaded: Loaded, record: LensRecord, plan: LensPlan, records: Sequence[LensRecord]
) -> None:
    table = token_table(record, plan)
    dark = st.context.theme.type == "dark"
    words = in_short(record, plan)
    st.text(f"{words[0].upper()}{words[1:]}.")
    notes = [
        in_quotes(str(text)) + ("" if change != change else f", {change:+z.2f} nats")
        for text, change in zip(table["text"], table["change"], strict=True)
    ]
    token_text(
        list(zip(map(visible, record.tokens), notes, token_colors(table, dark), strict=True)),
        shown_token(loaded, table),
        first=FIRST_TOKEN,
        key=_TOKENS,
        on_select=_take_token,
    )
    most, least = table["change"].max(), table["change"].min()
    st.caption(
        f"Orange: the plan predicts the token worse than the original, by up to {most:+z.2f} nats. "
        f"Blue: better, by up to {least:+z.2f}. Outlined: the chosen token."
    )
    chart_files("text-tokens", lambda: CHARTS["text-tokens"].draw(loaded))
    left, right = st.columns([3, 2])
    with left:
        show_chart(
            CHARTS["text-experts"].draw(loaded),
            with_sentence=True,
            on_select=choose_in_chart,
        )
    with right:
        _lost(loaded, record, plan, records)
        st.markdown("**Loss of this text by plan**")
        show_named("text-plans", loaded)


def _take_token() -> None:
    if (token := chosen_token(_TOKENS)) is not None:
        st.session_state[TOKEN] = token


def _lost(
    loaded: Loaded, record: LensRecord, plan: LensPlan, records: Sequence[LensRecord]
) -> None:
    """The removed experts that had most of the gate over the text, and what they read."""
    st.markdown("**What the whole text lost most**")
    lost = lost_experts(record, plan)
    if lost.empty:
        st.text("No token of this text wanted an expert that the plan removes.")
    for row in lost.head(_MOST_LOST).to_dict("records"):
        place = int(row["layer"]), int(row["expert"])
        st.markdown(
            f"**Expert {place[0]}.{place[1]}** had {row['share']:.0%} of the gate weight of its "
            f"layer. {reads(loaded, records, place)}"
        )
        link_to_expert(place, "text")


def _other_plan(loaded: Loaded, record: LensRecord) -> None:
    """The plans that were run on the text, and the form that runs the one on screen."""
    current = loaded.shown
    if current is None:
        st.text("There is no plan; see the bar above.")
    else:
        inform("This plan has not been run on this text yet.")
        sent = st.button(
            "Run this plan on the text",
            type="primary",
            icon=":material/play_arrow:",
            key="text.run",
        )
        fields = {**record.asked.fields, "dtype": record.settings["dtype"]}
        _offer(loaded, current, fields, record.asked.title, sent=sent)
    if record.plans:
        st.markdown("**Loss of this text by plan**")
        show_named("text-plans", loaded)


def _new_text(loaded: Loaded) -> None:
    current = loaded.shown
    text = st.text_area(
        "Your text",
        key=f"text.new.{loaded.model.name}",
        max_chars=4_000,
        placeholder="A text to score under the original model and this plan",
    )
    if current is None or not text.strip():
        st.text("Enter a text." if current else "There is no plan; see the bar above.")
        return
    sent = st.button("Score text", type="primary", icon=":material/play_arrow:", key="text.send")
    _offer(loaded, current, {"text": text}, " ".join(text.split())[:60], sent=sent)


def _offer(
    loaded: Loaded, plan: CurrentPlan, asked: Mapping[str, Any], about: str, *, sent: bool
) -> None:
    fields = {
        **own_model(loaded),
        **asked,
        "plans": (plan.plan.to_dict(),),
    }
    offer_job(loaded, validated(AskRequest, fields), about, sent=sent, plan=plan)
