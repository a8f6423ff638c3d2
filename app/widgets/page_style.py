"""The colours of the theme, for the style of the page that `app/first_paint.py` serves."""

import streamlit as st

from app.charts.theme import ink, muted, paper, primary


def apply_page_style() -> None:
    """Set the colours of the browser's theme, which `app/static/page.css` names."""
    dark = st.context.theme.type == "dark"
    colors = f"--page: {paper(dark)}; --ink: {ink(dark)}; --mark: {primary(dark)};"
    colors += f"--faint: {muted(dark)};"
    st.html(f"<style>:root {{ {colors} }}</style>")
