"""Rows of conversations in the usual forms."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

_CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
_WEATHER = {"name": "weather", "description": "The weather of a city.", "parameters": _CITY}
SEARCH = {"type": "function", "function": _WEATHER}
FUNCTION = {"name": "weather", "arguments": {"city": "Paris"}}
CALL = {"type": "function", "function": FUNCTION}


def user(content):
    return {"role": "user", "content": content}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def in_parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


ASKED, SAID = user("a"), said("b")


def called(arguments, **more):
    """A row whose assistant calls a tool with these arguments and is told the result."""
    call = {"id": "call00001", "type": "function"}
    call["function"] = {"name": "weather", "arguments": arguments}
    result = {"role": "tool", "tool_call_id": "call00001", "content": 'hazel "<5>"'}
    turns = [user("alder"), said("", tool_calls=[call]), result, said("birch")]
    return {"messages": turns, "tools": [SEARCH], **more}


TOOL_WORDS = ("alder", "weather", "Paris", "hazel", "birch")
# A row in each form -> the words of its turns.
FORMS = {
    "messages": ({"messages": [user("alder"), said(" birch\n")]}, ("alder", "birch")),
    "from and value": (
        {"conversations": [{"from": "human", "value": "alder"}, {"from": "gpt", "value": "birch"}]},
        ("alder", "birch"),
    ),
    "instruction": (
        {"instruction": "alder", "input": "cedar", "output": "birch", "system": "maple"},
        ("maple", "alder", "cedar", "birch"),
    ),
    "parts": (
        {"messages": [user(in_parts("alder", "cedar")), said(in_parts("birch"))]},
        ("alder", "cedar", "birch"),
    ),
    "arguments as an object": (called({"city": "Paris"}), TOOL_WORDS),
    "arguments as text": (called('{"city": "Paris"}'), TOOL_WORDS),
    "messages as JSON": (
        {key: json.dumps(value) for key, value in called('{"city": "Paris"}').items()},
        TOOL_WORDS,
    ),
}


def arrow_type(values):
    """The type of JSON values, with keys as they come: pyarrow 21 would sort them."""
    first = next(iter(values), None)
    if isinstance(first, dict):
        names = dict.fromkeys(name for value in values for name in value)
        of = {name: [value[name] for value in values if name in value] for name in names}
        return pa.struct([(name, arrow_type(column)) for name, column in of.items()])
    if isinstance(first, list):
        return pa.list_(arrow_type([inner for value in values for inner in value]))
    return pa.infer_type(values)


def written(folder, kind, row):
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        # Arrow fills the keys of each row with those of the others.
        other = called({"ticker": "X", "days": 3}, other="a") if "tools" in row else row
        same_kind = isinstance(row.get("tools"), list)
        text = same_kind and isinstance(
            row["messages"][1]["tool_calls"][0]["function"]["arguments"], str
        )
        other = called('{"days": 3}') if text else other if same_kind else row
        rows = [row, other]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([*arrow_type(rows)])), path)
    else:
        path.write_text(json.dumps([row]) if kind == "json" else json.dumps(row) + "\n")
    return path
