"""Whether the rendering of a conversation has the text of every turn.

A template is a program that comes with a checkpoint: it leaves out what it does not know, such as a
role, a key or a form of content, without a word. A model would then be measured on markers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis.corpora.conversations import REASONING, Turn, function_of, texts_of
from analysis.files.json_text import parse_json

_END_OF_THOUGHT = "</think>"  # before it is reasoning, which templates leave out of earlier turns
# What templates write anew or take out: marks, and switches of reasoning.
_MARKS = re.compile(r"</?(?:think|answer|response)>|/(?:no_?)?think\b")
_ANYWHERE = ("system", "developer")  # roles whose turns templates may move
# As jinja's own tojson writes these characters of HTML.
_OF_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})
_LONGEST_SHOWN = 60  # characters

_Find = Callable[[str, int], int | None]  # (text, from where) -> the end of its first occurrence


def missing_text(
    turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], rendered: str
) -> str | None:
    """What a rendering lacks, in words; None if it has the text of every turn and tool.

    Texts must come in the order of the turns. Whitespace, which templates trim, does not matter,
    and texts may be escaped as JSON.
    """

    def end_as_written(text: str, start: int) -> int | None:
        place = rendered.find(text.strip(), start)
        return None if place < 0 else place + len(text.strip())

    if _first_missing(turns, tools, end_as_written) is None:
        return None
    dense = _dense(rendered)

    def end_in_some_form(text: str, start: int) -> int | None:
        ends = [
            place + len(form) for form in _forms(text) if (place := dense.find(form, start)) >= 0
        ]
        return min(ends, default=None)

    return _first_missing(turns, tools, end_in_some_form)


def _first_missing(
    turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], end_of: _Find
) -> str | None:
    """The first text without an occurrence after those of the turns before it.

    The earliest occurrences are taken, so that one by chance cannot hide a later one.
    """
    place = 0
    for number, turn in enumerate(turns, 1):
        is_fixed = turn.get("role") not in _ANYWHERE
        ends = [place]
        for what, text in _texts(turn):
            end = end_of(text, place if is_fixed else 0)
            if end is None:
                return f"{what} of turn {number} ({turn.get('role')}), {_cut(text)}"
            ends.append(end)
        place = max(ends) if is_fixed else place
    for tool in tools:
        name = function_of(tool).get("name")
        if isinstance(name, str) and end_of(name, 0) is None:
            return f"the tool {_cut(name)}, as it may know no tools"
    return None


def _texts(turn: Turn) -> Iterator[tuple[str, str]]:
    """What the text is -> each text of a turn that its rendering must have."""
    texts = [("the text", text) for text in _content_texts(turn.get("content"))]
    for call in turn.get("tool_calls") or ():
        function = function_of(call)
        texts += [("the call", text) for text in _leaves(function.get("name"))]
        texts += [("an argument", text) for text in _leaves(_parsed(function.get("arguments")))]
    if not texts and not turn.get("content"):
        texts = [("the reasoning", str(turn[name])) for name in REASONING if turn.get(name)]
    yield from (text for text in texts if text[1].strip())


def _content_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return _MARKS.split(content.rpartition(_END_OF_THOUGHT)[2])
    return texts_of(content) or list(_leaves(content))


def _parsed(arguments: Any) -> Any:
    """The value of arguments in JSON, else the arguments as they are."""
    try:
        return parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _leaves(value: Any) -> Iterator[str]:
    """The texts and numbers of a value, at every depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield json.dumps(value)


def _dense(text: str) -> str:
    return "".join(text.split())


def _forms(text: str) -> set[str]:
    """A text without whitespace, as it is and escaped in the ways of JSON, also twice."""
    stripped = text.strip()
    once = {json.dumps(stripped, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    once |= {form.translate(_OF_HTML) for form in once}
    twice = {json.dumps(form, ensure_ascii=False)[1:-1] for form in once}
    return {_dense(form) for form in {stripped, *once, *twice}}


def _cut(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= _LONGEST_SHOWN else f"{words[:_LONGEST_SHOWN]}...")
