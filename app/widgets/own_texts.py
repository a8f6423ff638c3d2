"""The popover that adds a text of one's own to the corpora."""

from collections.abc import Callable
from pathlib import Path

import streamlit as st

from analysis.errors import UserError
from app.errors import show_error
from app.session.own_texts import TEXT_SUFFIXES, add_text
from app.session.uploads import MEGABYTES


def add_text_part(key: str, use: Callable[[str], object]) -> None:
    """Draw it; `use` gets the path of the added text before the next run of the script."""
    with st.popover("Add a text", icon=":material/add:", key=f"{key}.popover"):
        with st.form(f"{key}.form", border=False, clear_on_submit=True):
            st.text_input("Name", key=f"{key}.name", max_chars=40, placeholder="support")
            st.text_area("Text", key=f"{key}.text", placeholder="Paste a text, or choose a file")
            st.file_uploader(
                "File",
                type=[suffix[1:] for suffix in TEXT_SUFFIXES],
                key=f"{key}.file",
                max_upload_size=MEGABYTES,
                help="Blank lines separate the documents of .txt; JSON has one in each row.",
            )
            st.form_submit_button("Add", on_click=_take, args=(key, use))
        st.caption("Kept in the server's state folder, for you alone.")
        if reason := st.session_state.pop(f"{key}.refused", ""):
            show_error(reason)


def _take(key: str, use: Callable[[str], object]) -> None:
    state = st.session_state
    name, file = state[f"{key}.name"].strip(), state[f"{key}.file"]
    content, suffix = state[f"{key}.text"].encode(), ".txt"
    if file is not None:
        content, suffix = file.getvalue(), Path(file.name).suffix.lower()
        name = name or Path(file.name).stem
    try:
        use(add_text(name, content, suffix))
    except UserError as error:
        state[f"{key}.refused"] = str(error)
