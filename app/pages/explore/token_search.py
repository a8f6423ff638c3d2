"""Explore, by token: the experts that read a token light up on the map."""

from collections.abc import Callable
from typing import Final

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import UserError
from analysis.numbers.words import counted
from app.charts.listing import CHARTS
from app.charts.text_lens import in_quotes, lenses
from app.charts.token_experts import frequent_tokens, searched_texts, shares_by_expert
from app.choices import TokenChoice
from app.literal import literal
from app.loaded import Loaded
from app.session.chosen_expert import choose_in_chart
from app.session.prompts import own_words, shown_unasked
from app.widgets.charts import show_chart
from app.widgets.links import link_to
from app.widgets.notes import inform
from pruning.records.lens import LensStore

_KEY: Final = "reads"
_MOST_TYPED: Final = 60  # characters
_MOST_NAMED: Final = 8
Map = Callable[[Loaded, NDArray[np.float64] | None], object]


def token_part(loaded: Loaded, words: DeltaGenerator, draw_map: Map) -> None:
    """A token, the map with its experts lit, and the experts that read most of it.

    `words` is a place beside the views, for the finding; `draw_map` draws the map with shares.
    """
    texts = shown_unasked(lenses(loaded), LensStore, own_words())
    map_column, side_column = st.columns([13, 8])
    ids = tuple(record.record_id for record in texts)
    with side_column:
        typed = _search_field()
    loaded = loaded.choosing(token=TokenChoice(typed, ids))
    chart, problem = None, ""
    try:
        chart = CHARTS["token-experts"].draw(loaded)
    except UserError as error:
        problem = str(error)
    with map_column:
        draw_map(loaded, shares_by_expert(chart.table, loaded.model) if chart else None)
    with side_column:
        _sources(loaded)
        if chart is None:
            inform(literal(problem))
            return
        show_chart(chart, on_select=choose_in_chart)
    words.markdown(literal(chart.alt))


def _search_field() -> str:
    typed = st.text_input(
        "Token",
        key=_KEY,
        bind="query-params",
        max_chars=_MOST_TYPED,
        placeholder="e.g. def",
        help="As the tokenizer cuts it, without blanks around it. \u2423 is a blank, \u21b5 a line "
        "break, \u21e5 a tab.",
    )
    return (typed or "")[:_MOST_TYPED]


def _sources(loaded: Loaded) -> None:
    """What is searched, and what is not known."""
    try:
        texts = searched_texts(loaded)
    except UserError:
        return
    tokens = sum(len(record.tokens) for record in texts)
    frequent = " ".join(literal(in_quotes(token)) for token in frequent_tokens(texts)[:_MOST_NAMED])
    st.caption(
        f"Searches {counted(len(texts), 'text')} scored token by token, {tokens:,} tokens, most "
        f"often {frequent}. Calibration counts tokens and does not keep them, so what experts read "
        "elsewhere is not known."
    )
    link_to("evaluate", "Score another text", "insights")
