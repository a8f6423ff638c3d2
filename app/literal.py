"""Foreign text in Streamlit elements that read Markdown."""

import re

from analysis.foreign_text import in_markdown


def literal(text: object) -> str:
    """`text` as Streamlit's Markdown; it shows tags as text, and a backslash before one too."""
    return in_markdown(text).replace(r"\<", "<")


def literal_lines(text: object) -> str:
    """`text` as `literal`, each of its lines on a line of its own."""
    return "  \n".join(map(literal, str(text).splitlines()))


def literal_in_badge(text: object) -> str:
    """`text` for `st.badge`, which escapes brackets itself: escaping twice undoes it."""
    return re.sub(r"\\([\[\]])", r"\1", literal(text))
