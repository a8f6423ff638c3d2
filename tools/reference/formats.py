"""The reference of files: the columns of every table and the keys of a recipe, from the code."""

import types
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from analysis.errors import UserError
from analysis.files.shipped import SHIPPED_STATS
from analysis.ranking.experts import RANKING_COLUMNS
from analysis.ranking.neurons import NEURON_RANKING_COLUMNS
from analysis.ranking.overlap import OVERLAP_COLUMNS
from analysis.stats.columns import GATES, moment_column
from pruning.records.evaluation import TABLE_COLUMNS
from pruning.records.lens import (
    LENS_COLUMNS,
    TOKEN_COLUMNS,
    LensLayer,
    LensPlan,
    LensQuestion,
    LensRecord,
)
from pruning.requests.recipe import Recipe
from pruning.spec.base import declared
from pruning.spec.spec import PlanSpec
from tools.reference.markdown import cell, table
from tools.reference.meanings import MEANINGS

__all__ = ["recipe", "tables"]

_NUMBERS: Mapping[str, str] = {"double": "float64", "object": "text", "string": "text"}


def tables(_root: Path) -> str:
    """A section for each table on disk: its columns, their types and what they mean."""
    found = {**_shipped(), **_spreadsheets(), **_lens()}
    return "\n\n".join(_section(name, columns) for name, columns in found.items())


def recipe(_root: Path) -> str:
    """A table for the recipe and one for each of its sections: key, type, default."""
    sections = dict.fromkeys((Recipe, *_sections(Recipe)))
    parts = [_keys(section) for section in sections if section is not PlanSpec]
    return "\n\n".join(parts)


def _shipped() -> dict[str, dict[str, str]]:
    """File -> column -> type, of the statistics that ship: they were written by this code."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(Path(SHIPPED_STATS).glob("demo-*/*.parquet")):
        schema = pq.read_schema(file)
        types_ = {name: _named(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        found.setdefault(file.name, {}).update(types_)
    return dict(sorted(found.items()))


def _named(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"list of {_named(kind.value_type)}"
    return _NUMBERS.get(str(kind), str(kind))


def _spreadsheets() -> dict[str, dict[str, str]]:
    """Tables that people open: a CSV has no types."""
    columns = {
        "scores.csv": RANKING_COLUMNS,
        "scores.csv of neurons": NEURON_RANKING_COLUMNS,
        "overlap.csv": OVERLAP_COLUMNS,
        "sweep.csv, sweep.parquet": TABLE_COLUMNS,
        "text-tokens.csv": TOKEN_COLUMNS,
        "text-experts.csv": LENS_COLUMNS,
    }
    return {name: dict.fromkeys(names, "") for name, names in columns.items()}


def _lens() -> dict[str, dict[str, str]]:
    """The keys of the record of a text, and of its parts."""
    kinds = {"": LensRecord, ", asked": LensQuestion, ", layers": LensLayer, ", plans": LensPlan}
    return {
        f"lens.json{part}": {field.alias or name: "" for name, field in kind.model_fields.items()}
        for part, kind in kinds.items()
    }


def _section(name: str, columns: Mapping[str, str]) -> str:
    typed = any(columns.values())
    head = ("column", "type", "meaning") if typed else ("column", "meaning")
    rows = [
        (f"`{column}`", *((kind,) if typed else ()), cell(_meaning(name, column)))
        for column, kind in columns.items()
    ]
    return f"### {name}\n\n{table(head, rows)}"


def _meaning(file: str, column: str) -> str:
    meaning = MEANINGS.get(f"{file}:{column}") or MEANINGS.get(column) or _moments().get(column)
    if meaning is None:
        raise UserError(
            f"Nothing says what the column {column!r} of {file} means: add a line to MEANINGS in "
            "tools/reference/meanings.py."
        )
    return meaning


def _moments() -> dict[str, str]:
    """What the sums of the unified family are, told from their exponents."""
    return {
        moment_column(alpha, beta, gate): f"sum of {_product(alpha, beta)}"
        for gate in GATES
        for alpha in (0, 1, 2)
        for beta in (0, 1, 2)
        if (alpha, beta) != (0, 0)
    }


def _product(alpha: int, beta: int) -> str:
    factors = (("g", alpha), ("||f||", beta))
    return " ".join(
        symbol + (f"^{power}" if power > 1 else "") for symbol, power in factors if power
    )


def _sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models inside a model, depth first."""
    for field in model.model_fields.values():
        for kind in _inside(field.annotation):
            yield kind
            yield from _sections(kind)


def _inside(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _inside(part)


def _keys(model: type[BaseModel]) -> str:
    meaning = " ".join((model.__doc__ or "").split("\n\n")[0].split())
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        # A file has the sections of the plan in place of the plan.
        fields |= PlanSpec.model_fields if field.annotation is PlanSpec else {name: field}
    required_first = sorted(fields.items(), key=lambda item: not item[1].is_required())
    rows = [
        (f"`{name}`", cell(_takes(field.annotation)), _default(field), cell(_bounds(field)))
        for name, field in required_first
    ]
    title = "recipe.yaml" if model is Recipe else _title(model)
    return f"### {title}\n\n{meaning}\n\n{table(('key', 'takes', 'default', 'bounds'), rows)}"


def _title(section: type) -> str:
    name = section.__name__
    return reduce(str.removesuffix, ("Section", "Spec", "Options"), name)


def _takes(kind: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_takes(part) for part in parts if part is not type(None))
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is tuple:
        return f"list of {_takes(parts[0])}"
    if origin is dict:
        return f"{_takes(parts[0])}: {_takes(parts[1])}"
    if parts:
        return _takes(parts[0])
    if kind is JsonValue:
        return "any value"
    words = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}
    return words.get(kind) or _title(kind)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if default in (None, "", (), PydanticUndefined) or isinstance(default, BaseModel):
        return ""
    shown = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"`{shown}`"


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = {
        sign: f"{value:,}"
        for sign in signs
        for rule in declared(field)
        if (value := getattr(rule, sign, None)) is not None
    }
    if limits.keys() == {"ge", "le"}:
        return f"{limits['ge']} to {limits['le']}"
    return ", ".join(f"{signs[sign]} {limit}" for sign, limit in limits.items())
