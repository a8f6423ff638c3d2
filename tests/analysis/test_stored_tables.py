"""What is read from elsewhere: tables, JSON, stored numbers, and the words of errors."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from analysis.errors import PlanError, UserError
from analysis.files.json_text import parse_json, parse_json_once
from analysis.numbers.elements import FLOAT_BYTES, as_float64
from analysis.stats.stored_tables import read_parquet
from pruning.benchmarks.imports import number

NEEDED = {"layer": "int64", "sum": "float64"}


def stored(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.parquet"


def test_numbers_come_back_in_the_types_that_are_needed(path):
    table = read_parquet(stored(path, layer=[1.0, 2.0], sum=[3, 4], more=["a", "b"]), NEEDED)
    wanted = pd.DataFrame({"layer": [1, 2], "sum": [3.0, 4.0], "more": ["a", "b"]})
    pd.testing.assert_frame_equal(table.to_pandas(), wanted)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"layer": [1]}, "lacks the columns sum"),
        ({"layer": [1.5], "sum": [1.0]}, "truncated"),
        ({"layer": [None, 1], "sum": [1.0, 1.0]}, "layer lacks 1 values"),
        ({"layer": [1], "sum": [float("nan")]}, "sum holds values that are not finite"),
        ({"layer": [1], "sum": [1.0], "more": [float("inf")]}, "more holds values"),
        ({"layer": [1], "sum": [{"a": 1}]}, "[Uu]nsupported cast"),
        ({"layer": [1], "sum": [1.0], "more": [[1]]}, "more holds list"),
        ({"layer": [1], "sum": ["one"]}, "[Ff]ailed to parse"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(path, columns, reason):
    with pytest.raises((ValueError, pa.ArrowException), match=reason):
        read_parquet(stored(path, **columns), NEEDED)


def test_a_column_that_is_there_twice_is_refused(path):
    twice = pa.table([[1], [2], [3.0]], names=["layer", "layer", "sum"])
    pq.write_table(twice, path)
    with pytest.raises(ValueError, match="a duplicate column"):
        read_parquet(path, NEEDED)


def test_a_small_file_of_very_many_rows_is_refused(path):
    part = pa.table({"layer": pa.repeat(1, 10**6), "sum": pa.repeat(1.0, 10**6)})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(20):
            writer.write_table(part)
    assert path.stat().st_size < 320_000  # which unpacks to 320 MB
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match="unpack to 320000000, too many for a run"):
        read_parquet(path, NEEDED)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested too deeply"),
        ('{"b": {"a": 1, "a": 2}}', "it holds a twice"),
        ('{"a": ["\\ud800"]}', "half of a surrogate pair"),
        (b'{"\\uDFFF": 1}', "half of a surrogate pair"),
        *((text, "") for text in (b"\xff{}", "{", "", '{"a": 1} x', "9" * 5000)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_that_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason or r".+"):
        (parse_json_once if "twice" in reason else parse_json)(text)


def test_json_that_is_read():
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["\N{GRINNING FACE}", "\\ud800"]


@pytest.mark.parametrize("between", ["\n", "\r\n", "\x1b[2J", "\u2028", "\x85", "\ud800", "\t"])
def test_what_cannot_be_printed_becomes_spaces_and_letters_of_all_languages_stay(between):
    said = str(PlanError(f"The layer a{between}\u6a21\u578b caf\u00e9 \U0001f600 is unknown."))
    assert said.isprintable()
    assert said.startswith("The layer a ")
    assert said.endswith("\u6a21\u578b caf\u00e9 \U0001f600 is unknown.")
    # What is listed has a line each.
    assert str(UserError("Two:", [f"a{between}b", "c"])).splitlines()[2] == "  c"


def test_a_number_too_large_for_a_score_is_none():
    assert number(10**400) is None
    assert number(-(10**400)) is None
    assert number(2**60) == 2.0**60


TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


@pytest.mark.parametrize("dtype", FLOAT_BYTES)
def test_bytes_become_the_numbers_that_torch_has_stored(dtype):
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(1000, generator=generator, dtype=torch.float64) * 100
    # Subnormal, infinite, and both zeros among them.
    extremes = torch.tensor([0.0, -0.0, 1e-40, 6e-8, -torch.inf], dtype=torch.float64)
    stored = torch.cat([numbers, extremes]).to(TYPES[dtype])
    raw = stored.view(torch.uint8).numpy().tobytes()
    assert FLOAT_BYTES[dtype] == stored.itemsize
    assert as_float64(raw, dtype).tobytes() == stored.double().numpy().tobytes()
