"""Foreign text, such as names in plans, manifests and recipes: one function per medium.

Tables have theirs in `app.tables.spreadsheets`; pages in HTML are made from templates that escape.
"""

import html
import json
import re

# Characters that start emphasis, code, links, images, tags, entities, headings, formulas or tables.
# An underscore within a word is harmless.
_MARKUP = re.compile(r"([\\`*\[\]!$~|<]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_]))")
# At the start of a block: headings, quotes, lists and rules.
_BLOCK = re.compile(r"^(\d+(?=[.)])|(?=[-+=#>]))")
# Streamlit draws icons and emoji for these even if they are escaped.
_ICON = re.compile(r":(?!\d\d:)(?=[\w+/-]+:)")
# Joiners and marks of direction are part of words; what overrides the direction is not.
_PARTS_OF_WORDS = "\u200c\u200d\u200e\u200f"


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in _PARTS_OF_WORDS


def in_terminal(text: object) -> str:
    """The text on one line, without characters that a terminal would obey."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(character if _is_shown(character) else " " for character in plain)


def in_markdown(text: object) -> str:
    r"""The text on one line, with Markdown and HTML escaped.

    `![](http://host/pixel)` would be fetched, which tells that host about the viewer.
    """
    escaped = _MARKUP.sub(r"\\\1", " ".join(in_terminal(text).split()))
    return _ICON.sub(":\u2060", _BLOCK.sub(r"\1\\", escaped))


def in_html(text: object) -> str:
    """The text between tags of HTML, or in a figure, where plotly would interpret tags."""
    return html.escape(str(text), quote=False)


def in_json(value: object, **options: object) -> str:
    """A value as indented JSON, whose text a terminal does not obey."""
    text = json.dumps(value, indent=2, ensure_ascii=False, **options)  # type: ignore[arg-type]
    characters = (c if c == "\n" or _is_shown(c) else json.dumps(c)[1:-1] for c in text)
    return "".join(characters)


def fenced(text: str, language: str) -> str:
    """Lines as a block of code in Markdown, whatever fences they have."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(map(in_terminal, text.strip().split("\n")))
    return f"{fence}{language}\n{lines}\n{fence}"
