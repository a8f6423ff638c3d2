"""Foreign text in Streamlit elements that read Markdown."""

import re

from analysis.foreign_text import in_markdown as literal

__all__ = ["literal", "literal_in_badge"]


def literal_in_badge(text: object) -> str:
    """`text` for `st.badge`, which escapes brackets itself: escaping twice undoes it."""
    return re.sub(r"\\([\[\]])", r"\1", literal(text))
