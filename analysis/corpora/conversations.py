"""Reads the usual forms of conversations as turns with a role and content, and the tools given.

`docs/guide/corpora.md` has the table of forms. Turns keep all their other keys, so that the chat
template sees what it would see of the row as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.errors import CorpusError
from analysis.files.json_text import parse_json

if TYPE_CHECKING:
    from analysis.corpora.fields import Fields

Turn = Mapping[str, Any]  # with `role`, and `content`, `tool_calls` or reasoning
# As transformers names them for templates.
REASONING = ("reasoning_content", "thinking", "reasoning")

_LISTS = ("conversations", "conversation")  # usual names of a list of turns, besides `messages`
# A question and its answer, each a text or turns, besides `prompt` and `response`.
_PAIRS = (("prompt", "completion"), ("prompt", "chosen"), ("instruction", "output"))
_CALLED = ("query", "answers")  # xlam: a question, and the calls that answer it
_ARGUMENTS = ("arguments", "parameters", "input")  # of calls: OpenAI's, Llama's, Anthropic's
_FUNCTIONS = "functions"  # tools in OpenAI's first form
_BESIDE_INSTRUCTION = ("input", "history")  # of Alpaca
USUAL = (*_LISTS, *(name for pair in _PAIRS for name in pair), *_CALLED, *_BESIDE_INSTRUCTION)
# `from` of ShareGPT -> role.
_ROLES = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    **dict.fromkeys(("function_response", "tool_response"), "tool"),
}
# Roles of other forms that templates write as they stand, or leave out.
_RENAMED = ("human", "gpt", "chatgpt", "bot", "function")
_CALLS = ("function_call", "tool_call")  # speakers whose value may be the JSON of calls
_TEXTS = ("text", "input_text", "output_text")  # types of parts that are text
_LONGEST_SHOWN = 40  # characters of a value in a message


class Conversation(NamedTuple):
    """A conversation, and the tools that its assistant may call."""

    turns: tuple[Turn, ...]
    tools: tuple[Mapping[str, Any], ...] = ()  # as the row gives them, for the chat template


def conversation_in(row: Mapping[str, Any], fields: Fields, where: str) -> Conversation | None:
    """The conversation in a row, or None; `where` names the row.

    The usual other forms are looked for if no form was named.
    """
    turns = _turns_in(row, fields, where)
    if turns is None:
        return None
    if not any(map(_says_something, turns)):
        raise CorpusError(f"{where}: no turn of the conversation has text or calls.")
    system = row.get(fields.system)
    if system is not None and not isinstance(system, str):
        raise CorpusError(f"{where}: {fields.system} must be a text, not {shown(system)}.")
    if system and system.strip() and turns[0]["role"] not in _FIRST_ROLES:
        turns = ({"role": "system", "content": system}, *turns)
    tools = _tools(row.get(fields.tools), f"{where}: {fields.tools}")
    if not tools and fields.has_usual:
        tools = _tools(row.get(_FUNCTIONS), f"{where}: {_FUNCTIONS}")
    return Conversation(turns, tools)


def _says_something(turn: Turn) -> bool:
    content = turn.get("content")
    texts: list[Any] = [*texts_of(content)] or [content]
    is_text = any(not isinstance(text, str) or text.strip() for text in texts if text)
    return is_text or any(turn.get(name) for name in ("tool_calls", *REASONING))


_FIRST_ROLES = ("system", "developer")


def _has(row: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(row.get(name) is not None for name in names)


def _turns_in(row: Mapping[str, Any], fields: Fields, where: str) -> tuple[Turn, ...] | None:
    if row.get(fields.messages) is not None:
        return _turns(row[fields.messages], fields.messages, where)
    if _has(row, (fields.prompt, fields.response)):
        return _pair((fields.prompt, fields.response), row, where)
    if fields.has_usual:
        for name in _LISTS:
            if row.get(name) is not None:
                return _turns(row[name], name, where)
        for pair in _PAIRS:
            if _has(row, pair):
                return _pair(pair, row, where)
        if _has(row, _CALLED):
            return _called(row, where)
    # A prompt without a response, but with the answer that a check needs.
    checked = (fields.prompt, fields.answer)
    return _pair(checked, row, where) if all(checked) and _has(row, checked) else None


def _turns(value: Any, name: str, where: str) -> tuple[Turn, ...]:
    """The turns of a list, or of a list that is stored as JSON."""
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, list) or not value or not all(isinstance(e, Mapping) for e in value):
        raise CorpusError(
            f"{where}: {name} must be a list of objects with role and content, or its JSON."
        )
    return tuple(
        _turn(turn, f"{where}: turn {number} of {name}") for number, turn in enumerate(value, 1)
    )


def _parsed(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _pair(names: tuple[str, str], row: Mapping[str, Any], where: str) -> tuple[Turn, ...]:
    """A question and its answer; an answer that begins with a question is all of it.

    The latter is a whole conversation, as in data of preferences.
    """
    question, answer = names
    prompt, response = row[question], row[answer]
    before: tuple[Turn, ...] = ()
    if question == "instruction":
        prompt, before = _instruction(row, where)
    turns = _side(prompt, question, "user", where)
    answers = _side(response, answer, "assistant", where)
    if answers and answers[0]["role"] in (*_FIRST_ROLES, "user"):
        return answers
    if not (turns := (*before, *turns, *answers)):
        raise CorpusError(f"{where}: {question} and {answer} are empty.")
    return turns


def _side(value: Any, name: str, role: str, where: str) -> tuple[Turn, ...]:
    """One side of a pair as turns; none of an empty text."""
    if isinstance(value, list):
        return _turns(value, name, where)
    if isinstance(value, Mapping):
        raise CorpusError(f"{where}: {name} must be a text or a list of turns, not an object.")
    return ({"role": role, "content": str(value)},) if str(value) else ()


def _instruction(row: Mapping[str, Any], where: str) -> tuple[str, tuple[Turn, ...]]:
    """The question of a row of Alpaca, as LLaMA-Factory joins it, and the turns before it."""
    parts = [str(row[name]) for name in ("instruction", "input") if row.get(name)]
    history = row.get("history") or []
    pairs = isinstance(history, list) and all(isinstance(e, list) and len(e) == 2 for e in history)
    if not pairs:
        raise CorpusError(f"{where}: history must be a list of pairs of question and answer.")
    roles = ("user", "assistant")
    turns = [
        {"role": role, "content": str(text)}
        for pair in history
        for role, text in zip(roles, pair, strict=True)
    ]
    return "\n".join(parts), tuple(turns)


def _called(row: Mapping[str, Any], where: str) -> tuple[Turn, ...]:
    """A question, and the calls that answer it."""
    query, answers = _CALLED
    calls = _calls(row[answers])
    if calls is None:
        raise CorpusError(f"{where}: {answers} must be a list of calls with name and arguments.")
    prompt = {"role": "user", "content": str(row[query])}
    return prompt, {"role": "assistant", "tool_calls": calls}


def _calls(value: Any) -> list[Mapping[str, Any]] | None:
    """Calls in the form that templates read, from one or several with name and arguments."""
    value = _parsed(value) if isinstance(value, str) else value
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(
        isinstance(e, Mapping) and isinstance(e.get("name"), str) for e in calls
    ):
        return None
    return [_standard_call(call) for call in calls]


def _standard_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call in the form that templates read, with arguments: none are an empty object."""
    function, wrapper = function_of(call), call
    if function is call:
        wrapper = {"id": call["id"]} if "id" in call else {}
        function = {key: value for key, value in call.items() if key not in ("id", "type")}
    name = next(
        (argument for argument in _ARGUMENTS if function.get(argument) not in (None, "")), None
    )
    arguments = {} if name is None else function[name]
    others = {key: value for key, value in function.items() if key not in _ARGUMENTS}
    kind = wrapper.get("type") or "function"
    return {**wrapper, "type": kind, "function": {**others, "arguments": arguments}}


def _standard_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool in the form that templates read, of one that is the function itself."""
    if "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    function = {key: value for key, value in tool.items() if (key, value) != ("type", "function")}
    return {"type": "function", "function": function}


def _tools(value: Any, what: str) -> tuple[Mapping[str, Any], ...]:
    """Tools from a list of objects or of their JSON, or from the JSON of that list."""
    if isinstance(value, str) and value.strip():
        value = _parsed(value)
    elif not value:
        return ()
    tools = [_parsed(tool) if isinstance(tool, str) else tool for tool in value or ()]
    is_list = isinstance(value, list)
    if not is_list or not all(isinstance(tool, Mapping) and tool for tool in tools):
        raise CorpusError(
            f"{what} must be a list of tools as objects, or its JSON; name the field that holds "
            "them, as ,tools=NAME after the corpus."
        )
    return tuple(map(_standard_tool, tools))


def _turn(message: Mapping[str, Any], what: str) -> Turn:
    """A turn with role and content; `what` names it."""
    turn = dict(message)
    speaker = str(turn.get("from") or "").lower()
    if turn.get("role") is None and speaker:
        if speaker not in _ROLES:
            raise CorpusError(f"{what} is from {speaker!r}; known are {', '.join(_ROLES)}.")
        turn = {"role": _ROLES[turn.pop("from").lower()], **turn}
    role = turn.get("role")
    if not isinstance(role, str) or not role.strip():
        raise CorpusError(
            f"{what} has no role; a turn is an object with role and content, or from and value."
        )
    if role in _RENAMED:
        turn["role"] = _ROLES[role]
    if turn.get("content") is None and "value" in turn:
        turn["content"] = turn.pop("value")
    if speaker in _CALLS and (calls := _calls(turn.get("content"))):
        turn = {**turn, "content": None, "tool_calls": calls}
    if turn.get("function_call") and not turn.get("tool_calls"):
        turn["tool_calls"] = _calls(turn.pop("function_call")) or [{}]  # refused below
    return _with_content(_with_calls(turn, what), what)


def _with_calls(turn: dict[str, Any], what: str) -> dict[str, Any]:
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    calls = _parsed(calls) if isinstance(calls, str) else calls
    is_list_of_calls = isinstance(calls, list) and all(
        isinstance(call, Mapping) and isinstance(function_of(call).get("name"), str)
        for call in calls
    )
    if not is_list_of_calls:
        raise CorpusError(f"{what}: tool_calls must be a list of calls with name and arguments.")
    return {**turn, "tool_calls": [_standard_call(call) for call in calls]}


def function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """What has the name and the arguments of a call, or the name of a tool."""
    function = call.get("function")
    return function if isinstance(function, Mapping) else call


def _with_content(turn: dict[str, Any], what: str) -> Turn:
    content = turn.get("content")
    if content is None or content == []:
        if not turn.get("tool_calls") and not any(turn.get(name) for name in REASONING):
            raise CorpusError(f"{what} has a role, but no content, tool calls or reasoning.")
        return {name: value for name, value in turn.items() if name != "content"}
    if isinstance(content, str):
        return turn
    is_data = isinstance(content, (Mapping, list)) and not _has_parts(content)
    if turn["role"] == "tool" and is_data:
        return turn
    if not isinstance(content, list):
        raise CorpusError(
            f"{what} has content that is no text, but {shown(content)}; give a text, or a list of "
            "parts of text."
        )
    return {**turn, "content": [_part(part, what) for part in content]}


def _has_parts(content: Any) -> bool:
    """Whether a list is of parts, and not the result of a tool as data."""
    return isinstance(content, list) and all(
        isinstance(part, str) or (isinstance(part, Mapping) and ("type" in part or "text" in part))
        for part in content
    )


def _part(part: Any, what: str) -> Mapping[str, Any]:
    """A part of text; images and whatever else are refused."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    text = part.get("text") if isinstance(part, Mapping) else None
    kind = shown(part)
    if isinstance(part, Mapping):
        kind = part.get("type", "text" if "text" in part else ", ".join(part))
    if kind not in _TEXTS or not isinstance(text, str):
        raise CorpusError(f"{what} has a part of the type {kind}; only parts of text can be read.")
    return part if part.get("type") == "text" else {"type": "text", "text": text}


def texts_of(content: Any) -> list[str]:
    """The texts of a content of parts; empty of another."""
    parts = content if isinstance(content, list) else ()
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return []
    return [part["text"] for part in parts]


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def without_nulls(value: Any) -> Any:
    """A value of Arrow without the keys that are null, at every depth.

    Arrow fills every key of every struct of a column, so its nulls say nothing of the row.
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list) and value and isinstance(value[0], (Mapping, list)):
        return [without_nulls(part) for part in value]
    return value
