"""Pages as links name them: by their URL path, which is all that Streamlit compares."""

from collections.abc import Callable
from typing import Final, NoReturn

import streamlit as st
from streamlit.navigation.page import Page

FIRST: Final = "start"  # also the page of the bare URL


def page_at(
    name: str,
    draw: Callable[[], None] = lambda: None,
    icon: str | None = None,
    *,
    is_bare: bool | None = None,
    is_listed: bool = True,
) -> Page:
    """The page at the URL path `name`; only the one that navigation has needs the rest.

    The first page is that of the bare URL too, unless `is_bare` says otherwise.
    """
    is_default = name == FIRST if is_bare is None else is_bare
    return st.Page(
        draw,
        title=name.capitalize(),
        icon=icon,
        url_path="" if is_default else name,
        default=is_default,
        visibility="visible" if is_listed else "hidden",
    )


def link_to(name: str, label: str, icon: str) -> None:
    """A link to the page at the URL path `name`."""
    st.page_link(page_at(name), label=label, icon=f":material/{icon}:")


def go_to(page: Page) -> NoReturn:
    """Switch to another page; the controls keep their values."""
    # Set to empty, not removed: Streamlit refuses to clear a URL with bound controls,
    # and the next page writes the values of its own.
    st.switch_page(page, query_params={})
