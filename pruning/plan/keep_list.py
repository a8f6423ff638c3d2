"""Lists of the experts that stay, or go, as this and other programs write them.

JSON or JSON lines. A layer is a number, or the name of a module with one (`model.layers.3.mlp`);
its experts are a list of ids, an object with lists under words such as `kept` and `pruned`, or
objects and pairs of a layer and an expert. Lists in a list are of the layers in their order, the
sparse ones or all. Facts besides, such as counts and scores, are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError
from analysis.files.json_text import parse_json_once
from analysis.files.text_file import read_text_file
from pruning.plan.kept import check_kept
from pruning.plan.layer_words import MOST_DIGITS, ranges
from pruning.plan.plan import EXPERT_GRANULARITY, KEEP_LIST_NAME
from pruning.plan.plan_file import plan_from_json

if TYPE_CHECKING:
    from analysis.families.base import MoELayer


class _Says(StrEnum):
    """What a list says of its experts."""

    KEPT = "kept"
    REMOVED = "removed"
    NOTHING = "listed"  # by no word: they stay, unless the file's name speaks of removal


_WORDS = {
    _Says.KEPT: frozenset(
        ("kept", "keep", "keeps", "retained", "retain", "remaining", "survivors", "preserved")
    ),
    _Says.REMOVED: frozenset(
        ("pruned", "prune", "removed", "remove", "dropped", "drop", "discarded", "deleted")
    ),
}
_LAYER_KEYS = ("layer", "layer_idx", "layer_index", "layer_id", "layer_name", "module", "name")
_EXPERT_KEYS = ("expert", "expert_id", "expert_idx", "expert_index", "id", "index")
# Keys around lists of ids that say nothing of them.
_NEUTRAL = frozenset(
    ("layers", "experts", "expert_ids", "expert_indices", "ids", "indices", "moe_layers", "plan")
)
_LAYER = re.compile(r"(?:.*[._ /])?(?:layers?|blocks?|h)[._ ]?(\d+)(?:[._ /].*)?")
_MOST_EXPERTS = 1 << 20  # in a file


class _Form(Enum):
    """How a statement names its layer, and how many there are on one."""

    LIST = auto()  # the only statement on its layer
    SINGLE = auto()  # one of several
    PAIR = auto()  # likewise, or a row of two experts
    ROW = auto()  # the layer is a place in a list of lists


@dataclass(frozen=True, slots=True)
class _Statement:
    """Experts of a layer, and what is said of them."""

    layer: int
    says: _Says
    experts: tuple[int, ...]
    form: _Form = _Form.LIST


def read_keep_list(path: Path, layers: Sequence[MoELayer]) -> dict[int, tuple[int, ...]]:
    """Layer -> ids of the experts that stay, ascending; layers that are not named stay whole.

    A folder is an export's.

    Raises:
        PlanError: the file cannot be read, does not say what stays, contradicts itself, or names
            layers or experts that the model does not have, or too few.
    """
    file = path / KEEP_LIST_NAME if path.is_dir() else path
    text = read_text_file("keep list", file)
    try:
        return _kept(_of_plan(text) or _joined(_placed(_read(text), layers)), layers, file)
    except (PlanError, ValueError, RecursionError) as error:
        raise PlanError(f"The keep list {file} cannot be used: {error}") from error


def _of_plan(text: str) -> dict[int, dict[_Says, tuple[int, ...]]]:
    """What a plan.json or an export's manifest keeps, of whatever model; empty if it is none."""
    try:
        raw = parse_json_once(text)
    except ValueError:
        return {}
    if not isinstance(raw, dict) or not {"plan_digest", "granularity"} & raw.keys():
        return {}
    plan = plan_from_json(text)
    if plan.granularity != EXPERT_GRANULARITY:
        raise PlanError("it is a plan of neurons; give it as --kept-neurons.")
    return {layer: {_Says.KEPT: ids} for layer, ids in plan.kept.items()}


def _read(text: str) -> Iterator[_Statement]:
    """What JSON, or else each line of it, says."""
    try:
        raw = parse_json_once(text)
    except ValueError as whole:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2:
            raise PlanError(f"it is not valid JSON: {whole}.") from whole
        for number, line in lines:
            try:
                raw = parse_json_once(line)
            except ValueError as error:
                raise PlanError(f"line {number} is not valid JSON: {error}.") from error
            yield from _statements(raw, _Says.NOTHING, None)
        return
    yield from _statements(raw, _Says.NOTHING, None)


def _statements(raw: Any, says: _Says, layer: int | None) -> Iterator[_Statement]:
    if isinstance(raw, Mapping):
        yield from _of_object(raw, says, layer)
    elif isinstance(raw, list):
        yield from _of_list(raw, says, layer)
    else:
        raise PlanError(f"it holds {str(raw)[:40]!r} where experts should be listed.")


def _of_object(raw: Mapping[str, Any], says: _Says, layer: int | None) -> Iterator[_Statement]:
    layers = (_layer_of(str(raw[key])) for key in _LAYER_KEYS if key in raw)
    layer = next((number for number in layers if number is not None), layer)
    expert = next((raw[key] for key in _EXPERT_KEYS if key in raw), None)
    if layer is not None and type(expert) is int:
        flags = [(_says(key), value) for key, value in raw.items() if isinstance(value, bool)]
        for word, is_true in flags:
            if word is not _Says.NOTHING:
                says = word if is_true else _opposite(word)
        yield _Statement(layer, says, (expert,), _Form.SINGLE)
        return
    for key, value in raw.items():
        word, number = _says(key), _layer_of(key)
        if not isinstance(value, Mapping | list):
            continue
        if number is not None and layer is not None:
            raise PlanError(f"layer {layer} holds {key!r}, which is no list of its experts.")
        if number is not None:
            yield from _statements(value, says, number)
        elif word is not _Says.NOTHING:
            yield from _statements(value, word, layer)
        elif key in _NEUTRAL:
            yield from _statements(value, says, layer)


def _of_list(raw: list[Any], says: _Says, layer: int | None) -> Iterator[_Statement]:
    if all(isinstance(entry, Mapping) for entry in raw) and raw:
        for entry in raw:
            yield from _of_object(entry, says, layer)
    elif layer is not None:
        if any(type(entry) is not int for entry in raw):
            raise PlanError(
                f"layer {layer} has {str(next(e for e in raw if type(e) is not int))[:40]!r} among "
                "its experts; list their ids, which are whole numbers."
            )
        yield _Statement(layer, says, tuple(raw))
    elif raw and all(isinstance(entry, list) for entry in raw):
        yield from _of_lists(raw, says)
    elif any(type(entry) is int for entry in raw):
        raise PlanError("it lists experts without their layer; write {layer: [ids]}.")


def _of_lists(raw: list[list[Any]], says: _Says) -> Iterator[_Statement]:
    """Pairs of a layer and an expert, or a row of experts for each layer; see `_placed`."""
    are_pairs = all(map(_is_pair, raw))
    for place, row in enumerate(raw):
        if are_pairs:
            yield _Statement(row[0], says, (row[1],), _Form.PAIR)
        else:
            for statement in _of_list(row, says, place):
                yield replace(statement, form=_Form.ROW)


def _is_pair(raw: Any) -> bool:
    return isinstance(raw, list) and [type(part) for part in raw] == [int, int]


def _opposite(word: _Says) -> _Says:
    return _Says.REMOVED if word is _Says.KEPT else _Says.KEPT


def _says(key: str) -> _Says:
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", key).lower()))
    matches = [word for word, vocabulary in _WORDS.items() if words & vocabulary]
    return matches[0] if len(matches) == 1 else _Says.NOTHING


def _layer_of(name: str) -> int | None:
    number = name if name.isascii() and name.isdigit() else ""
    if not number and (match := _LAYER.fullmatch(name)):
        number = match[1]
    return int(number) if number and len(number) <= MOST_DIGITS else None


def _placed(statements: Iterable[_Statement], layers: Sequence[MoELayer]) -> Iterator[_Statement]:
    """The statements with rows given to the layers that they are of."""
    indices = [layer.index for layer in layers]
    rows: defaultdict[_Says, list[_Statement]] = defaultdict(list)
    for statement in statements:
        if statement.form in (_Form.ROW, _Form.PAIR):
            rows[statement.says].append(statement)
        else:
            yield statement
    for group in rows.values():
        if group[0].form is _Form.ROW:
            yield from _of_rows([row.experts for row in group], group[0].says, indices)
            continue
        named = [pair.layer for pair in group]
        # With two experts in each layer, rows look like pairs.
        if len(group) != len(layers) or named == indices:
            yield from group
        elif not set(named) <= set(indices):
            pairs = [(pair.layer, *pair.experts) for pair in group]
            yield from _of_rows(pairs, group[0].says, indices)
        else:
            raise PlanError(
                f"its {len(group)} pairs may be a layer and an expert each, or two experts of each "
                "layer; write {layer: [ids]}."
            )


def _of_rows(
    rows: Sequence[tuple[int, ...]], says: _Says, indices: Sequence[int]
) -> Iterator[_Statement]:
    """Rows of experts as statements: rows of the sparse layers, or of all, empty for dense ones."""
    if len(rows) == len(indices):
        of_layers = dict(zip(indices, rows, strict=True))
    elif len(rows) > max(indices) and {i for i, row in enumerate(rows) if row} <= {*indices}:
        of_layers = {index: rows[index] for index in indices}
    else:
        raise PlanError(
            f"it is a list of {len(rows)} lists, and the model has {len(indices)} sparse layers "
            f"({ranges(indices)}); write {{layer: [ids]}}."
        )
    for index, row in of_layers.items():
        yield _Statement(index, says, row)


def _joined(statements: Iterable[_Statement]) -> dict[int, dict[_Says, tuple[int, ...]]]:
    """Layer -> what is said -> of which experts."""
    lists: defaultdict[int, dict[_Says, tuple[int, ...]]] = defaultdict(dict)
    count = 0
    of_layers = sorted(statements, key=lambda statement: (statement.layer, statement.says))
    for (layer, says), group in groupby(
        of_layers, key=lambda statement: (statement.layer, statement.says)
    ):
        members = list(group)
        if len(members) > 1 and any(one.form is _Form.LIST for one in members):
            raise PlanError(f"it names layer {layer} twice; keep one of its lists.")
        experts = [expert for one in members for expert in one.experts]
        if len(set(experts)) < len(experts):
            twice = next(expert for expert in experts if experts.count(expert) > 1)
            hint = " (a list of 0 and 1 is a mask: list ids)" if set(experts) <= {0, 1} else ""
            raise PlanError(f"layer {layer} lists expert {twice} twice{hint}.")
        lists[layer][says] = tuple(experts)
        count += len(experts)
        if count > _MOST_EXPERTS:
            raise PlanError(f"it lists more than {_MOST_EXPERTS:,} experts.")
    if not lists:
        raise PlanError(
            'it lists no experts; write {"3": [0, 2]}, or lines such as '
            '{"layer": 3, "experts": [0, 2]}.'
        )
    return dict(lists)


def _kept(
    found: Mapping[int, Mapping[_Says, tuple[int, ...]]], layers: Sequence[MoELayer], file: Path
) -> dict[int, tuple[int, ...]]:
    by_index = {layer.index: layer for layer in layers}
    kept = {}
    for index, lists in found.items():
        if index not in by_index:
            if not any(lists.values()):  # a dense layer, of which nothing is listed
                continue
            raise PlanError(
                f"it names layer {index}, which has no routed experts; the sparse layers are "
                f"{ranges(by_index)}."
            )
        layer = by_index[index]
        for expert in (expert for experts in lists.values() for expert in experts):
            if not 0 <= expert < layer.num_experts:
                raise PlanError(
                    f"it names expert {expert} of layer {index}, which has {layer.num_experts} "
                    f"experts (0..{layer.num_experts - 1})."
                )
        stay = _kept_of_layer(layer, lists, file)
        kept[index] = tuple(sorted(stay))
        is_said = lists.keys() != {_Says.NOTHING}
        if len(stay) == layer.num_experts and stay != kept[index] and not is_said:
            raise PlanError(
                f"it lists all {len(stay)} experts of layer {index} in an order of their own, "
                "which is a ranking; cut each list to the experts that stay."
            )
        check_kept(layer, kept[index])
    return kept


def _kept_of_layer(
    layer: MoELayer, lists: Mapping[_Says, tuple[int, ...]], file: Path
) -> tuple[int, ...]:
    stay, go = lists.get(_Says.KEPT), lists.get(_Says.REMOVED)
    if stay is None and go is None:
        if _says(file.stem) is _Says.REMOVED:
            raise PlanError(
                f"its name speaks of experts that go, and nothing in it says whether those of "
                f'layer {layer.index} are kept or removed; write {{"removed": {{...}}}} or '
                '{"kept": {...}} around them.'
            )
        return lists[_Says.NOTHING]
    if stay is None:
        return tuple(index for index in range(layer.num_experts) if index not in (go or ()))
    if go is None:
        return stay
    if both := sorted(set(stay) & set(go)):
        raise PlanError(f"expert {both[0]} of layer {layer.index} is both kept and removed.")
    if neither := sorted(set(range(layer.num_experts)) - {*stay, *go}):
        raise PlanError(
            f"it does not say whether expert {neither[0]} of layer {layer.index} is kept or "
            "removed; leave one of the two lists out, or complete it."
        )
    return stay
