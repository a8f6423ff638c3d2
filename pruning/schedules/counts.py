"""Reads files of counts: how many experts each layer keeps or loses."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from analysis.errors import PlanError, yaml_problem
from analysis.files.json_text import parse_json_once
from analysis.files.text_file import read_text_file
from pruning.plan.layer_words import ranges
from pruning.schedules.spreads import Evidence

if TYPE_CHECKING:
    from analysis.families.base import MoELayer

_KINDS = ("kept", "removed")
_MOST_BYTES = 1 << 24


def read_counts(path: Path, layers: Sequence[MoELayer]) -> dict[int, int]:
    """Experts kept by each layer, from a file; layers that it does not name stay whole.

    CSV with columns layer and kept or removed; or JSON or YAML with `kept` or `removed`: layer ->
    number (or list of experts, as in plan.json), also below `allocation` or `best`.
    """
    text = read_text_file("schedule", path, most_bytes=_MOST_BYTES)
    return counts_from_text(text, path, layers)


def file_evidence(path: Path | None, layers: Sequence[MoELayer]) -> Evidence:
    """What a schedule may look at without a ranking: the counts of its file, if it has one."""
    return Evidence(counts=read_counts(path, layers) if path else None)


def counts_from_text(text: str, path: Path, layers: Sequence[MoELayer]) -> dict[int, int]:
    """Experts kept by each layer, see `read_counts`; `path` names the text and its format."""
    kind, numbers = _from_csv(text, path) if path.suffix == ".csv" else _from_tree(text, path)
    sizes = {str(layer.index): layer.num_experts for layer in layers}
    kept = {layer.index: layer.num_experts for layer in layers}
    for name, value in numbers.items():
        if name not in sizes:
            raise PlanError(
                f"The schedule {path} names layer {name}, which has no routed experts; the sparse "
                f"layers are {ranges(kept)}."
            )
        number = _number(value)
        if number is None or not 0 <= number <= sizes[name]:
            raise PlanError(
                f"The schedule {path} gives layer {name} the number {value!r}; its experts are "
                f"{sizes[name]}."
            )
        kept[int(name)] = number if kind == "kept" else sizes[name] - number
    return kept


def _from_csv(text: str, path: Path) -> tuple[str, dict[str, Any]]:
    try:
        rows = list(csv.DictReader(text.splitlines()))
    except csv.Error as error:
        raise PlanError(f"The schedule {path} cannot be read: {error}.") from error
    columns = set(rows[0]) if rows else set()
    kind = next((name for name in _KINDS if name in columns), None)
    if kind is None or "layer" not in columns:
        raise PlanError(f"The schedule {path} lacks the columns layer and kept (or removed).")
    names = [str(row["layer"]).strip() for row in rows]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(f"The schedule {path} names layer {repeated[0]} twice.")
    return kind, {name: row[kind] for name, row in zip(names, rows, strict=True)}


def _from_tree(text: str, path: Path) -> tuple[str, dict[str, Any]]:
    try:
        # YAML nearly includes JSON, but the JSON reader is stricter and faster.
        raw = parse_json_once(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise PlanError(
            f"The schedule {path} cannot be read: {yaml_problem(error, path)}."
        ) from error
    for key in ("allocation", "best"):
        if isinstance(raw, dict) and isinstance(raw.get(key), dict):
            raw = raw[key]
    kinds = [name for name in _KINDS if isinstance(raw, dict) and isinstance(raw.get(name), dict)]
    if len(kinds) != 1:
        raise PlanError(
            f"The schedule {path} needs either 'kept' or 'removed': layer -> number of experts."
        )
    return kinds[0], {str(layer): number for layer, number in raw[kinds[0]].items()}


def _number(value: Any) -> int | None:
    if isinstance(value, list):
        return len(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
