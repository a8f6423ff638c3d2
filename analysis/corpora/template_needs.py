"""What a chat template takes: content as text or parts, or empty; arguments; ids of calls.

Templates differ, and few say so. Each is asked once, by conversations with words of their own.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Literal

from analysis.corpora.conversations import Turn, function_of, shown, texts_of
from analysis.corpora.template_worker import from_json, to_json
from analysis.corpora.templates import render, without_null_keys
from analysis.errors import CorpusError
from analysis.files.json_text import parse_json

Content = Literal["any", "text", "parts"]
Arguments = Literal["any", "text", "object"]
Ids = Literal["any", "nine", "named"]
Empty = Literal["absent", "text", "null"]  # a content without text: no key, "", or null

_WORDS = ("Zephyrine", "Quillfeather")  # in no template
_TYPES = ("'type'", '"type"', "\\u0027type", "\\u0022type", "&#39;type", "&#34;type")
_CALL_ID = "call00001"  # Mistral's templates want nine letters and digits
_ASKED = {"role": "user", "content": "How?"}
_VALUE = {"city": _WORDS[0]}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a city up.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city."}},
            "required": ["city"],
        },
    },
}


def fitted(turns: Sequence[Turn], template: str, variables: Mapping[str, Any]) -> list[Turn]:
    """The turns as the template takes them; `variables` are the special tokens."""
    variables_json = to_json(dict(variables))
    fitting = [
        _with_content(
            _with_arguments(turn, f"Turn {number}", template, variables_json),
            template,
            variables_json,
        )
        for number, turn in enumerate(map(without_null_keys, turns), 1)
    ]
    has_calls = any(turn.get("tool_calls") for turn in turns)
    style = ids_taken(template, variables_json) if has_calls else "any"
    return fitting if style == "any" else _with_ids(fitting, style)


def _with_ids(turns: Sequence[Turn], style: Ids) -> list[Turn]:
    """The turns with ids that fit the template, in calls and in their results."""
    changed: dict[str, str] = {}
    waiting: list[str] = []  # ids of the calls whose results are to come
    numbers = count()
    result: list[Turn] = []
    for turn in turns:
        fitting = turn
        if calls := turn.get("tool_calls"):
            waiting = [_fitting_id(call, style, next(numbers)) for call in calls]
            changed |= {str(call.get("id")): new for call, new in zip(calls, waiting, strict=True)}
            new_calls = [{**call, "id": new} for call, new in zip(calls, waiting, strict=True)]
            fitting = {**turn, "tool_calls": new_calls}
        elif turn.get("role") == "tool":
            new_id = changed.get(str(turn["tool_call_id"])) if turn.get("tool_call_id") else None
            if result_id := new_id or next(iter(waiting), None):
                waiting = [call_id for call_id in waiting if call_id != result_id]
                fitting = {**turn, "tool_call_id": result_id}
        result.append(fitting)
    return result


def _fitting_id(call: Mapping[str, Any], style: Ids, number: int) -> str:
    """The id of a call, or one in its place: nine digits, or as Moonshot numbers them."""
    call_id, name = str(call.get("id") or ""), str(function_of(call).get("name"))
    if style == "nine":
        return call_id if len(call_id) == len(_CALL_ID) and call_id.isalnum() else f"{number:09d}"
    return call_id if name in call_id else f"functions.{name}:{number}"


def _with_content(turn: Turn, template: str, variables: bytes) -> Turn:
    content = turn.get("content")
    if not content and turn.get("tool_calls"):
        form: Empty = "text" if content == "" else "absent"
        forms = empty_taken(template, variables)
        return turn if form in forms else _emptied(turn, next(iter(forms), "text"))
    if content and not texts_of(content) and not isinstance(content, str):  # a result as data
        if takes_data(template, variables):
            return turn
        turn = {**turn, "content": (content := json.dumps(content, ensure_ascii=False))}
    if isinstance(content, str):
        if content and content_taken(template, variables, str(turn.get("role"))) == "parts":
            return {**turn, "content": [{"type": "text", "text": content}]}
    elif (texts := texts_of(content)) and content_taken(
        template, variables, str(turn.get("role"))
    ) == "text":
        return {**turn, "content": "\n".join(texts)}  # as vLLM does it
    return turn


def _emptied(turn: Turn, form: Empty) -> Turn:
    """The turn with a content of no text, in this form."""
    others = {key: value for key, value in turn.items() if key != "content"}
    return others if form == "absent" else {**others, "content": "" if form == "text" else None}


def _with_arguments(turn: Turn, what: str, template: str, variables: bytes) -> Turn:
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    form = arguments_taken(template, variables)
    return {**turn, "tool_calls": [_with_argument(call, form, what) for call in calls]}


def _with_argument(call: Mapping[str, Any], wanted: Arguments, what: str) -> Mapping[str, Any]:
    function = function_of(call)
    arguments = function.get("arguments")
    if wanted == "object" and isinstance(arguments, str):
        arguments = _object(arguments, f"{what} calls {function.get('name')}")
    elif wanted == "text" and isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    else:
        return call
    changed = {**function, "arguments": arguments}
    return changed if function is call else {**call, "function": changed}


def _object(arguments: str, what: str) -> Mapping[str, Any]:
    try:
        value = parse_json(arguments) if arguments.strip() else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CorpusError(
            f"{what} with the arguments {shown(arguments)}, which are no JSON object, as the "
            "model's chat template needs"
        )
    return value


@lru_cache(maxsize=256)
def content_taken(template: str, variables: bytes, role: str) -> Content:
    """How a template takes the content of a role's turns.

    "any" if it shows the text of both forms, or of neither, which rendering then tells.
    """
    parts = [{"type": "text", "text": word} for word in _WORDS]
    as_text = _rendered(template, variables, _turns_of(role, " ".join(_WORDS), template, variables))
    as_parts = _rendered(template, variables, _turns_of(role, parts, template, variables))
    takes_text, takes_parts = _WORDS[-1] in as_text, all(word in as_parts for word in _WORDS)
    # A list that is written as it stands shows the names of its keys.
    takes_parts &= all(as_parts.count(sign) <= as_text.count(sign) for sign in _TYPES)
    if takes_text == takes_parts:
        return "any"
    return "text" if takes_text else "parts"


def _turns_of(role: str, content: Any, template: str, variables: bytes) -> list[Turn]:
    """A conversation in which a role has this content."""
    turn = {"role": role, "content": content}
    if role == "user":
        return [turn]
    if role == "assistant":
        return [_ASKED, turn]
    if role != "tool":
        return [turn, _ASKED]
    call = _call(_value_for(template, variables), _empty_for(template, variables))
    return [_ASKED, call, {**turn, "tool_call_id": _CALL_ID, "name": "look_up"}]


def _value_for(template: str, variables: bytes) -> Any:
    as_text = arguments_taken(template, variables) == "text"
    return json.dumps(_VALUE) if as_text else _VALUE


def _empty_for(template: str, variables: bytes) -> Empty:
    return next(iter(empty_taken(template, variables)), "text")


def _call(arguments: Any, empty: Empty, call_id: str = _CALL_ID) -> Turn:
    function = {"name": "look_up", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return _emptied({"role": "assistant", "tool_calls": calls}, empty)


@lru_cache(maxsize=64)
def empty_taken(template: str, variables: bytes) -> tuple[Empty, ...]:
    """The forms of a content without text beside which a template shows a call.

    Many templates join the content to other texts, so they fail where it is absent, and DeepSeek's
    first look for null.
    """
    forms: tuple[Empty, ...] = ("absent", "text", "null")
    examples = [
        (value, tools) for value in (_VALUE, json.dumps(_VALUE)) for tools in (None, [_TOOL])
    ]
    return tuple(
        form
        for form in forms
        if any(
            _WORDS[0] in _rendered(template, variables, [_ASKED, _call(value, form)], tools=tools)
            for value, tools in examples
        )
    )


@lru_cache(maxsize=64)
def takes_data(template: str, variables: bytes) -> bool:
    """Whether a template shows the result of a tool that is data, and not in Python's way."""
    data = {"state": _WORDS[1]}
    text = _rendered(template, variables, _turns_of("tool", data, template, variables))
    return _WORDS[1] in text and f"'{_WORDS[1]}'" not in text


def takes_tools(template: str, variables: Mapping[str, Any]) -> bool:
    """Whether a template shows the tools it is given; `variables` are the special tokens."""
    return _shows_tools(template, to_json(dict(variables)))


@lru_cache(maxsize=64)
def _shows_tools(template: str, variables: bytes) -> bool:
    system = {"role": "system", "content": "Help."}  # some write tools into its turn
    return any(
        "look_up" in _rendered(template, variables, turns, tools=[_TOOL])
        for turns in ([_ASKED], [system, _ASKED])
    )


@lru_cache(maxsize=64)
def arguments_taken(template: str, variables: bytes) -> Arguments:
    """How a template takes the arguments of calls: "any" if both forms give the same, or neither.

    A template that writes a text as JSON escapes it twice, and wants objects; one that writes an
    object in Python's way wants text.
    """
    text = json.dumps(_VALUE)
    empty = _empty_for(template, variables)
    for tools in ([_TOOL], []):
        turns_with = [[_ASKED, _call(arguments, empty)] for arguments in (_VALUE, text)]
        of_object, of_text = (
            _rendered(template, variables, turns, tools=tools or None) for turns in turns_with
        )
        shows_object, shows_text = (_WORDS[0] in output for output in (of_object, of_text))
        if shows_object and (not shows_text or _is_escaped(of_text, of_object)):
            return "object"
        if shows_text and (not shows_object or f"'{_WORDS[0]}'" in of_object):
            return "text"
        if shows_text:
            return "any"
    return "any"


@lru_cache(maxsize=64)
def ids_taken(template: str, variables: bytes) -> Ids:
    """Which ids of calls a template takes: "nine" letters and digits, or with the function's name.

    Mistral's refuse others; Kimi's write the id in place of the name.
    """
    value, empty = _value_for(template, variables), _empty_for(template, variables)
    examples: tuple[tuple[Ids, str], ...] = (
        ("any", "call_0a1b2c3d4e5f"),
        ("nine", _CALL_ID),
        ("named", "functions.look_up:0"),
    )
    for style, call_id in examples:
        text = _rendered(template, variables, [_ASKED, _call(value, empty, call_id)])
        if "look_up" in text and _WORDS[0] in text:
            return style
    return "any"


def _is_escaped(text: str, other: str) -> bool:
    """Whether quotes are escaped in one rendering, and not in the other."""
    sign = '\\"'
    return text.count(sign) > other.count(sign)


def _rendered(template: str, variables: bytes, turns: Sequence[Turn], **options: Any) -> str:
    """The rendering of a conversation; empty where the template refuses it."""
    from jinja2 import TemplateError

    try:
        return render(template, turns, from_json(variables), keep_nulls=True, **options).text
    except (TemplateError, RuntimeError):
        return ""
