"""Text from elsewhere, for Streamlit's elements that read Markdown: shown as it is written."""

import re

# What begins emphasis, code, a link, an image, a formula or a table in Markdown. An underscore
# within a word begins nothing, and tags Streamlit shows as text by itself.
_MARKUP = re.compile(r"([\\`*\[\]!$~|]|(?<![^\W_])_|_(?![^\W_]))")


def literal(text: object) -> str:
    r"""`text` with its Markdown disarmed, on one line.

    A model or corpus is named by whoever made its files: `![](http://host/pixel)` would be fetched,
    and tell that host who looks at it.
    """
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def literal_in_badge(text: object) -> str:
    """`text` for `st.badge`, which disarms brackets itself: twice is not at all."""
    return re.sub(r"\\([\[\]])", r"\1", literal(text))
