"""The popover that adds a text of one's own to the corpora."""

from collections.abc import Callable
from pathlib import Path

import streamlit as st

from analysis.errors import UserError
from app.errors import show_error
from app.session.data import added_texts
from app.session.own_texts import TEXT_SUFFIXES, add_text, remove_text
from app.session.uploads import MEGABYTES


def add_text_part(key: str, use: Callable[[str], object]) -> None:
    """Draw it; `use` gets the path of the added text before the next run of the script."""
    # Of each text its own fields: what is refused stays typed, and what is added does not.
    fields = f"{key}.{st.session_state.get(f'{key}.number', 0)}"
    with st.popover("Add a text", icon=":material/add:", key=f"{key}.popover"):
        with st.form(f"{fields}.form", border=False):
            st.text_input("Name", key=f"{fields}.name", max_chars=40, placeholder="support")
            st.text_area("Text", key=f"{fields}.text", placeholder="Paste a text, or choose a file")
            st.file_uploader(
                "File",
                type=[suffix[1:] for suffix in TEXT_SUFFIXES],
                key=f"{fields}.file",
                max_upload_size=MEGABYTES,
                help="Blank lines separate the documents of .txt; JSON has one in each row.",
            )
            st.form_submit_button("Add", on_click=_take, args=(key, fields, use))
        if reason := st.session_state.pop(f"{key}.refused", ""):
            show_error(reason)
        st.caption("Offered to you alone; what is measured on it is seen by all.")
        if added := added_texts():
            _remove_part(key, added)


def _remove_part(key: str, added: list[str]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.selectbox(
            "Added texts",
            added,
            key=f"{key}.added",
            format_func=lambda path: Path(path).name,
        )
        st.button("Remove", key=f"{key}.remove", on_click=remove_text, args=(text,))


def _take(key: str, fields: str, use: Callable[[str], object]) -> None:
    state = st.session_state
    name, file = state[f"{fields}.name"].strip(), state[f"{fields}.file"]
    content, suffix = state[f"{fields}.text"].encode(), ".txt"
    if file is not None:
        content, suffix = file.getvalue(), Path(file.name).suffix.lower()
        name = name or Path(file.name).stem
    try:
        use(add_text(name, content, suffix))
    except UserError as error:
        state[f"{key}.refused"] = str(error)
    else:
        state[f"{key}.number"] = state.get(f"{key}.number", 0) + 1
