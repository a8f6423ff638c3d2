"""Drawing of the controls of the plan from their table; switches, lists, unknown values of URLs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.criteria import criterion_label
from analysis.model.moe_model import MoEModel
from app.components.expert_map import Arrangement, Mode
from app.literal import literal
from app.loaded import Loaded
from app.session.controls import BESIDE, rows_on
from app.session.pins import pin_options, second_key
from app.session.search_data import ordered_for, searches_of
from app.session.state import (
    BASELINES,
    PINNED,
    UNIFIED,
    USUAL_BASELINE,
    Control,
    Group,
    Page,
    criterion_in,
    criterion_words,
    has_exponents,
    one_of,
    page_now,
    possible_scopes,
)
from pruning.plan.units import NeuronScope
from pruning.search.store import SEARCH

Choice = TypeVar("Choice", bound=str)
Value = TypeVar("Value")
_SAID: Final = "url.unknown"  # session: key of a control -> its page, and the line
_MOST_NAMED, _MOST_SAID = 12, 60  # options, and characters of a value
ORDERS: Mapping[Arrangement, str] = {"rank": "By rank", "expert": "By expert"}
MODES: Mapping[Mode, str] = {
    "values": "Saliency",
    "beside": "Side by side",
    "mask": "Kept",
    "delta": "Rank change",
}
_LISTS = (st.selectbox, st.select_slider, st.segmented_control, st.pills)
_NEVER_EMPTY = (st.segmented_control, st.pills)


def say_unknown(
    label: str,
    key: str,
    options: Sequence[Any],
    words: Callable[[Any], str] = str,
    place: DeltaGenerator | None = None,
) -> None:
    """Say which value of the URL a control does not have, and what it has, before it is drawn.

    Streamlit then takes its default without a word. The line stays while the page is open. Of a
    control that was drawn already, the URL holds what a person chose. The line goes to `place`, for
    controls of the sidebar, which may be closed.
    """
    lines = dict(st.session_state.get(_SAID, {}))
    if key not in st.session_state:
        lines.pop(key, None)
        valid_values = {*map(str, options), *map(words, options)}
        unknown = [value for value in st.query_params.get_all(key) if value not in valid_values]
        if unknown:
            lines[key] = page_now(), _line(label, unknown[0], _listed(options, words))
        st.session_state[_SAID] = lines
    page, line = lines.get(key, ("", ""))
    if line and page == page_now():
        (place or st).warning(line, icon=":material/link_off:")


def _line(label: str, value: str, listed: str) -> str:
    return f"{label} {literal(repr(value[:_MOST_SAID]))} of the URL is not here. Known: {listed}."


def _listed(options: Sequence[Any], words: Callable[[Any], str]) -> str:
    if isinstance(options, range):
        return f"{options[0]} to {options[-1]}"
    names = [literal(words(option)) for option in options]
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def choose(
    label: str, options: Sequence[Value], usual: Value | None = None, **widget: Any
) -> Value:
    """Draw a list of options; default `usual` or the first."""
    first = one_of(usual, options)
    if widget.get("bind"):
        say_unknown(label, widget["key"], options, widget.get("format_func", str))
    chosen = st.selectbox(label, options, index=options.index(first), **widget)
    return one_of(chosen, options, first)


def part_switch(label: str, key: str, options: Mapping[Choice, str]) -> Choice | None:
    """A choice between parts of a page, in the URL; None while none is open."""
    chosen = _switch(label, key, options)
    return chosen if chosen in options else None


def view_switch(label: str, key: str, options: Mapping[Choice, str]) -> Choice:
    """A choice between views, in the URL; `options` maps values to their words."""
    values = list(options)
    return one_of(_switch(label, key, options, required=True, default=values[0]), values)


def _switch(label: str, key: str, options: Mapping[Choice, str], **look: Any) -> Any:
    say_unknown(label, key, list(options.values()))  # a URL has the words
    return st.segmented_control(
        label,
        list(options),
        key=key,
        bind="query-params",
        format_func=lambda value: options[value],
        label_visibility="collapsed",
        **look,
    )


def control_row(**look: Any) -> DeltaGenerator:
    """Controls side by side, wrapped in narrow windows; `look` are arguments of `st.container`."""
    return st.container(horizontal=True, vertical_alignment="bottom", **look)


def draw_controls(group: Group, page: Page) -> None:
    """Draw the controls of the plan of a group, in the order of their table."""
    for row in rows_on(page):
        if row.group != group:
            continue
        if row.when is None or row.when(page):
            draw_control(row, page, row.offered(page))
        else:
            st.empty()  # those that follow keep their places: else a browser draws them all again


def draw_control(row: Control, page: Page, options: Sequence[Any]) -> None:
    """Draw a control of the plan with these options; a value that is none of them is replaced.

    Its value outlives it: a spec holds it, and `write_link` the URL.
    """
    state, is_list = st.session_state, row.widget in _LISTS
    if options and state.get(row.key) not in options:
        state[row.key] = row.usual if row.usual in options else options[0]
    words = {"format_func": row.words} if is_list else {}
    look = row.look(page) if callable(row.look) else row.look or {}
    needs = {"required": True} if row.widget in _NEVER_EMPTY else {}
    row.widget(
        row.label,
        *([options] if is_list else []),
        key=row.key,
        help=row.help,
        on_change=row.on_change,
        persist_state="session",
        **{**words, **needs, **look},
    )


def criterion_controls(page: Page) -> None:
    """Draw the criterion of experts with its exponents, or that of neurons with its scope."""
    state = st.session_state
    if not page.by_neuron and has_exponents(page):
        criterion = criterion_in(state)
        state["criterion"] = criterion.name if criterion else UNIFIED
    draw_controls("criterion", page)
    if page.by_neuron and NeuronScope.GLOBAL not in possible_scopes(page):
        st.caption(
            f":material/info: {criterion_label(state['neurons'])} compares neurons of one layer "
            "only, so a global budget is not offered."
        )


def search_input(loaded: Loaded, page: Page) -> str | None:
    """Draw the list of searches, if their schedule is chosen; return the name of one."""
    if page.by_neuron or st.session_state["schedule"] != SEARCH:
        return None
    # Those that fit the current budget and criterion first. Names only: the list shows
    # what the URL has.
    search_ids = [
        search.search_id for search in ordered_for(loaded, searches_of(loaded.model).known)
    ]
    if not search_ids:
        return ""
    draw_control(BESIDE["searched"], page, search_ids)
    return str(st.session_state["searched"])


def formula_part() -> None:
    """Show the formula of the toggles."""
    if (criterion := criterion_in(st.session_state)) is not None:
        st.markdown(f"${criterion.formula}$", width="content")


def second_of_neurons(model: MoEModel) -> None:
    """Draw the choice of the second plan of neurons, if one is pinned."""
    if pinned := pin_options(model, by_neuron=True):
        choose(
            "Compare with",
            ("", *pinned),
            key=second_key(by_neuron=True),
            bind="query-params",
            format_func=lambda name: pinned.get(name, "nothing"),
            width=260,
        )


def baseline_control(model: MoEModel) -> None:
    """Draw the choice of the second plan, on Explore and Compare: pinned, or by a criterion."""
    pinned = pin_options(model) if st.session_state.get(PINNED) else {}
    options = (*pinned, *BASELINES)

    def words(name: str) -> str:
        return pinned.get(name) or criterion_words(name)

    say_unknown("Compare with", "baseline", options, words)
    st.selectbox(
        "Compare with",
        options,
        index=options.index(USUAL_BASELINE),
        key="baseline",
        bind="query-params",
        format_func=words,
        width=260 if pinned else 175,
    )
