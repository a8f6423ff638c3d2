"""Errors on pages."""

from typing import Any

import streamlit as st

from app.literal import literal_lines


def show_error(error: object, at: Any = st) -> None:
    """Show an error, each of its reasons on its own line, at a place of the page."""
    at.error(literal_lines(error), icon=":material/error:")
