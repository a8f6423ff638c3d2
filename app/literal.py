"""Escapes foreign text for Streamlit elements that read Markdown."""

import re

# Characters that start emphasis, code, links, images, formulas or tables. An underscore
# within a word is harmless, and Streamlit shows tags as text.
_MARKUP = re.compile(r"([\\`*\[\]!$~|]|(?<![^\W_])_|_(?![^\W_]))")


def literal(text: object) -> str:
    r"""`text` with Markdown escaped, on one line.

    Names of models and corpora come from their files: `![](http://host/pixel)` would be fetched,
    which tells that host about the viewer.
    """
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def literal_in_badge(text: object) -> str:
    """`text` for `st.badge`, which escapes brackets itself: escaping twice undoes it."""
    return re.sub(r"\\([\[\]])", r"\1", literal(text))
