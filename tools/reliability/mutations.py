"""Valid files made wrong: every mutation knows the format that it breaks. Seeded, and pure.

A mutation takes the valid bytes and a `random.Random`, and gives the bytes to be read.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Mutation = Callable[[bytes, Random], bytes]

# Stand-ins that `json.dumps` cannot write; they are put into the text.
_DEEP, _DIGITS = "@@deep@@", "@@digits@@"
_DEPTHS = (70, 2_000, 200_000)
_HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    7,
    1.5,
    -0.0,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**30,
    float("nan"),
    float("inf"),
    float("-inf"),
    1e308,
    5e-324,
    "",
    " ",
    "0",
    "-1",
    "1e3",
    "nan",
    "\0",
    "\ud800",
    "\u0660",
    "a\nb",
    "<b>",
    "x" * 100_000,
    "../../etc/passwd",
    "/etc/passwd",
    "model.safetensors",
    "$(id)",
    "{0}",
    "%s",
    [],
    {},
    [[]],
    [None],
    {"": None},
    list(range(1000)),
    [[0]] * 3,
    {"0": {"0": 0}},
    _DEEP,
    _DIGITS,
)
_PIECES = (
    "",
    "0",
    "-1",
    "1e999999999",
    "1e-999999999",
    "nan",
    "inf",
    "9" * 5000,
    "\u0661",
    "\u00b2",
    " ",
    ",",
    ":",
    "=",
    "-",
    "%",
    ".",
    "/",
    "../",
    "\0",
    "\n",
    "\ud800",
    "a\nb",
    "[x]",
    "{}",
    "_1",
    "0-999999",
    "999999-0",
    "1_000",
    "0x10",
    "+1",
    "1.5",
    "True",
    "None",
    "x" * 5000,
)
_ROWS_OF_A_BOMB = 40_000_000


def bytes_changed(data: bytes, random: Random) -> bytes:
    """Any file: bits flipped, cut short, repeated, filled with zeros, other encodings."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 3, 20))):
        place = random.randrange(len(changed) + 1)
        match random.randrange(9):
            case 0 if place < len(changed):
                changed[place] ^= 1 << random.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                del changed[place : place + random.randrange(64)]
            case 3:
                changed[place:place] = random.randbytes(random.randrange(1, 16))
            case 4:
                changed[place:place] = changed[place : place + random.randrange(1, 400)]
            case 5:
                length = random.randrange(1, 64)
                changed[place : place + length] = bytes(length)
            case 6:
                changed[:0] = random.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n\n"))
            case 7:
                digits = random.choice((b"9", b"0", b"-", b"e5", b"."))
                changed[place:place] = digits * random.choice((1, 1, 30, 5000))
            case _:
                changed[place : place + 2] = random.choice((b'"', b"{", b"]", b",", b"\xff", b":"))
    return bytes(changed)


def json_changed(data: bytes, random: Random) -> bytes:
    """A JSON file: values of wrong kinds, keys twice, gone or renamed, too deep, too large."""
    tree = json.loads(data)
    twins: dict[str, str] = {}
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        tree = _node_changed(tree, random, twins)
    # A lone surrogate is valid JSON in its escaped form only.
    return _with_stand_ins(json.dumps(tree), random, twins).encode()


def lines_changed(data: bytes, random: Random) -> bytes:
    """A file of JSON lines: one of them changed, gone, moved, doubled, or not ended."""
    lines = data.splitlines(keepends=True)
    place = random.randrange(len(lines))
    match random.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(random.randrange(len(lines) + 1), lines[place])
        case 2:
            lines[place] = lines[place].rstrip(b"\n")
        case _:
            lines[place] = json_changed(lines[place], random) + b"\n"
    return b"".join(lines)


def header_changed(data: bytes, random: Random) -> bytes:
    """A safetensors file: its header's length, or the JSON of its header."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    if random.random() < 0.2:
        wrong = random.choice((0, 1, length - 1, length + 1, 99_999_999, 2**40, 2**64 - 1))
        return wrong.to_bytes(8, "little") + data[8:]
    header = json_changed(header, random)
    if random.random() < 0.3:
        header = bytes_changed(header, random)
    return len(header).to_bytes(8, "little") + header + rest


def table_changed(data: bytes, random: Random) -> bytes:
    """A parquet file: columns gone, renamed, of other types; rows gone, doubled, far too many."""
    table = pq.read_table(io.BytesIO(data))
    for _ in range(random.choice((1, 1, 2))):
        table = random.choice(_TABLE_CHANGES)(table, random)
    return _stored(table)


def text_changed(data: bytes, random: Random) -> bytes:
    """A text of lines, such as YAML or CSV: words replaced, lines moved, doubled or indented."""
    lines = data.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(lines))
        words = lines[place].replace(",", " ").split() or ["x"]
        match random.randrange(6):
            case 0:
                lines[place] = lines[place].replace(random.choice(words), _word(random))
            case 1:
                lines.insert(random.randrange(len(lines) + 1), lines[place])
            case 2:
                lines[place] = " " * random.randrange(1, 9) + lines[place]
            case 3:
                lines[place] += random.choice(
                    (":", "]", " &a [*a, *a]", "!!python/none ", ",,,", '"')
                )
            case 4:
                lines[place] = lines[place].partition(":")[0] + ": " + _word(random)
            case _:
                del lines[place]
                lines = lines or ["x"]
    return "\n".join(lines).encode(errors="surrogatepass")


def word_changed(data: bytes, random: Random) -> bytes:
    """A word of a command line: numbers of other kinds, signs doubled, gone or from elsewhere."""
    if random.random() < 0.3:
        return bytes_changed(data, random)
    text = data.decode()
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(text) + 1)
        match random.randrange(5):
            case 0:
                found = random.choice(re.findall(r"\d+|\w+|\W", text) or [""])
                text = text.replace(found, random.choice(_PIECES), 1)
            case 1:
                text = text[:place] + random.choice(_PIECES) + text[place:]
            case 2:
                text = text[:place] + text[place + random.randrange(1, 4) :]
            case 3:
                text = random.choice((text * 2, text + "," + text, text[::-1]))
            case _:
                text = _word(random)
    return text.encode(errors="surrogatepass")


def _word(random: Random) -> str:
    value = random.choice(_HOSTILE)
    if value == _DEEP:
        return "[" * 2000
    if value == _DIGITS:
        return "9" * 5000
    return value if isinstance(value, str) else json.dumps(value)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key (or index) below a tree."""
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        for key in list(keys):
            yield node, key
            stack.append(node[key])


def _node_changed(tree: Any, random: Random, twins: dict[str, str]) -> Any:
    places = list(_places(tree))
    if not places or random.random() < 0.02:
        return _value(random)
    node, key = random.choice(places)
    match random.randrange(8):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[_key(random)] = node.pop(key)
        case 2 if isinstance(node, dict):
            twin = f"@@twin{len(twins)}@@"
            twins[twin] = key
            node[twin] = _value(random, node[key])
        case 3 if isinstance(node, list):
            node.insert(random.randrange(len(node) + 1), deepcopy(node[key]))
        case 4:
            other = random.choice(places)
            node[key] = deepcopy(other[0][other[1]])
        case 5 if type(node[key]) in (int, float):
            node[key] += random.choice((-1, 1, 0.5, 10**9))
        case _:
            node[key] = _value(random)
    return tree


def _value(random: Random, *more: Any) -> Any:
    # A copy: the next change may be inside.
    return deepcopy(random.choice((*more, *_HOSTILE)))


def _key(random: Random) -> str:
    return random.choice(("", "0", "-1", "00", "\ud800", "layer", "__proto__", "x" * 3000, "1e1"))


def _with_stand_ins(text: str, random: Random, twins: dict[str, str]) -> str:
    depth = random.choice(_DEPTHS)
    text = text.replace(json.dumps(_DEEP), "[" * depth + "]" * depth)
    text = text.replace(json.dumps(_DIGITS), "9" * random.choice((400, 5000)))
    for twin, key in twins.items():
        text = text.replace(json.dumps(twin), json.dumps(key))
    return text


def _stored(table: pa.Table) -> bytes:
    stored = io.BytesIO()
    pq.write_table(table, stored, compression="zstd")
    return stored.getvalue()


def _without_column(table: pa.Table, random: Random) -> pa.Table:
    # By place: a name may be there twice by now.
    return table.remove_column(random.randrange(table.num_columns)) if table.num_columns else table


def _renamed(table: pa.Table, random: Random) -> pa.Table:
    if not table.num_columns:
        return table
    names = list(table.column_names)
    names[random.randrange(len(names))] = random.choice(("", "layer", "expert", "x", "num_tokens"))
    return table.rename_columns(names)


def _retyped(table: pa.Table, random: Random) -> pa.Table:
    if not table.num_columns:
        return table
    place = random.randrange(table.num_columns)
    values: list[Any] = random.choice(
        (
            [str(n) for n in range(table.num_rows)],
            [n % 2 == 0 for n in range(table.num_rows)],
            [[n] for n in range(table.num_rows)],
            [{"a": n} for n in range(table.num_rows)],
            [None] * table.num_rows,
            [n + 0.5 for n in range(table.num_rows)],
            [b"\xff"] * table.num_rows,
        )
    )
    return table.set_column(place, table.column_names[place], pa.array(values))


def _revalued(table: pa.Table, random: Random) -> pa.Table:
    """One cell of a column of numbers is no number, negative or beyond all bounds."""
    numbers = [
        place
        for place, column in enumerate(table.schema)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ]
    if not numbers or not table.num_rows:
        return table
    place = random.choice(numbers)
    column = table.column(place).to_pylist()
    whole = pa.types.is_integer(table.schema[place].type)
    wrong = (None, -1, 2**62) if whole else (None, float("nan"), float("inf"), -1.0, 1e308)
    column[random.randrange(len(column))] = random.choice(wrong)
    return table.set_column(
        place, table.column_names[place], pa.array(column, table.schema[place].type)
    )


def _fewer_rows(table: pa.Table, random: Random) -> pa.Table:
    return table.slice(random.choice((0, 1, table.num_rows // 2)), random.choice((0, 1, 10**6)))


def _more_rows(table: pa.Table, random: Random) -> pa.Table:
    return pa.concat_tables([table] * random.choice((2, 3)))


def _shuffled(table: pa.Table, random: Random) -> pa.Table:
    order = random.sample(range(table.num_rows), table.num_rows)
    return table.take(pa.array(order, pa.int64()))


_TABLE_CHANGES: tuple[Callable[[pa.Table, Random], pa.Table], ...] = (
    _without_column,
    _renamed,
    _retyped,
    _revalued,
    _revalued,
    _fewer_rows,
    _more_rows,
    _shuffled,
)


def bomb(data: bytes) -> bytes:
    """The table's first row so often that a few kilobytes unpack to gigabytes."""
    table = pq.read_table(io.BytesIO(data)).slice(0, 1)
    part = pa.concat_tables([table] * 1000).combine_chunks()
    part = pa.concat_tables([part] * 1000).combine_chunks()
    stored = io.BytesIO()
    with pq.ParquetWriter(stored, part.schema, compression="zstd") as writer:
        for _ in range(_ROWS_OF_A_BOMB // part.num_rows):
            writer.write_table(part)
    return stored.getvalue()


def one_of(*mutations: Mutation) -> Mutation:
    """Each of these as often."""

    def mutate(data: bytes, random: Random) -> bytes:
        return random.choice(mutations)(data, random)

    return mutate
