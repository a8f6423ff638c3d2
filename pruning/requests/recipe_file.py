"""Reads and writes recipe.yaml; all problems are reported at once, with their lines."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from analysis.errors import PlanError, nearest_name, sentence, yaml_problem
from analysis.files.durable import write_durably
from analysis.files.text_file import read_text_file
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe
from pruning.spec.base import Section, flags_of, flat_fields, nested, plain_problem
from pruning.spec.spec import Misfit, PlanSpec

_MOST_BYTES = 1 << 20
_MOST_DEPTH = 16
_Key = tuple[str, ...]


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file; a PlanError has one line per problem."""
    text = read_text_file("recipe", path, most_bytes=_MOST_BYTES)
    return recipe_from_yaml(text, name=str(path))


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write recipe.yaml."""
    try:
        write_durably(path, recipe.to_yaml().encode())
    except OSError as error:
        raise PlanError(f"The recipe cannot be written to {path}: {error.strerror}.") from error


def recipe_from_yaml(text: str, *, name: str = "recipe") -> Recipe:
    """The recipe in YAML text; a PlanError has one line per problem."""
    try:
        root = _tree(text)
        lines: dict[_Key, int] = {}
        problems = list(_walk(root, (), lines)) if root else []
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PlanError(
            sentence(f"The recipe {name} is not valid YAML: {yaml_problem(error, name)}")
        ) from error
    if not isinstance(raw, dict):
        raise PlanError(f"The recipe {name} is no list of keys; it begins with model: MODEL.")
    if "model" not in raw and len(raw.keys() - set(_TOP)) > 2:
        raise PlanError(
            f"{name} is no recipe: it has no key model, and mostly keys that recipes do not have; "
            "`moeprune recipe init MODEL` writes one."
        )
    if isinstance(raw.get("model"), dict):
        raise PlanError(f"{name} is a plan, not a recipe; `moeprune export` takes it as --plan.")
    raw, lines = _renewed(raw, lines)
    problems += _in_both(raw, lines)
    raw = nested(Recipe, raw)
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        problems += [_message(problem, lines) for problem in _errors(error, raw, lines)]
    else:
        if not problems:
            return recipe
    # In the order of the file, without repeats.
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem[0])
    if len(ordered) == 1:
        raise PlanError(sentence(f"The recipe {name}, {ordered[0][1]}"))
    count = f"{len(ordered)} problems"
    raise PlanError(f"The recipe {name} has {count}:", [message for _, message in ordered])


def _renewed(raw: dict[str, Any], lines: dict[_Key, int]) -> tuple[dict[str, Any], dict[_Key, int]]:
    """A recipe whose sections may have their earlier names: `constraints`, a mapping `schedule`."""
    raw, names = dict(raw), dict[_Key, _Key]()
    if "constraints" in raw and "limits" not in raw:
        raw["limits"], names["constraints",] = raw.pop("constraints"), ("limits",)
        if isinstance(limits := raw["limits"], dict) and "lock" in limits and "lock" not in raw:
            raw["limits"] = {key: value for key, value in limits.items() if key != "lock"}
            raw["lock"], names["constraints", "lock"] = limits["lock"], ("lock",)
    if isinstance(schedule := raw.get("schedule"), dict) and "spread" not in raw:
        earlier = {"name": "schedule", "file": "schedule_file"}
        raw["spread"] = {earlier.get(key, key): value for key, value in schedule.items()}
        del raw["schedule"]
        names["schedule",] = ("spread",)
    renamed = {}
    for key, line in lines.items():
        place = next((key[:n] for n in (2, 1) if key[:n] in names), ())
        renamed[names.get(place, ()) + key[len(place) :]] = line
    return raw, renamed


def _in_both(raw: dict[str, Any], lines: dict[_Key, int]) -> Iterator[tuple[int, str]]:
    """Fields of the plan that stand at the top and in their section."""
    for section in PlanSpec.model_fields:
        inside = raw.get(section)
        for name in inside if isinstance(inside, dict) else ():
            if name in raw and name in _known((section, name)):
                line = max(lines[name,], lines[section, name])
                yield line, f"line {line}: {name}: is there twice, at the top and under {section}"


def _errors(error: ValidationError, raw: dict[str, Any], lines: dict[_Key, int]) -> Iterator[Any]:
    """The problems of a recipe; with unknown keys, these and the problems of the mended recipe."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    if not unknown:
        yield from problems
        return
    yield from unknown
    try:
        Recipe.model_validate(_mended(raw, unknown, lines))
    except ValidationError as other:
        yield from other.errors(include_url=False)


def _tree(text: str) -> yaml.Node | None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        # Nested aliases can expand to more than fits into memory.
        if type(event) is yaml.AliasEvent:
            raise ValueError("aliases (*name) are not used in recipes")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        # The parser takes time quadratic in the depth.
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested in more than {_MOST_DEPTH} levels; recipes have 4")
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _walk(node: yaml.Node, path: _Key, lines: dict[_Key, int]) -> Iterator[tuple[int, str]]:
    """Record the line of every key; yield keys that a mapping has twice."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*path, str(index)), lines)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        place, line = (*path, str(key.value)), key.start_mark.line + 1
        if place in lines:
            yield line, f"line {line}: {'.'.join(place)}: is there twice"
            list(_walk(value, place, lines))  # for its lines; keys in both are no news
        else:
            yield from _walk(value, place, lines)
        lines[place] = line


def _mended(raw: dict[str, Any], problems: list[Any], lines: dict[_Key, int]) -> dict[str, Any]:
    """The recipe with unknown keys renamed to the nearest known ones, or else dropped.

    So a misspelt key does not count as missing while the rest is checked.
    """
    raw = copy.deepcopy(raw)
    for problem in problems:
        place = _place(problem, lines)
        name = place[-1]
        section = raw
        for part in problem["loc"][:-1]:
            section = section[part]
        value = section.pop(name)
        if _is_of_top(place):
            raw.setdefault(name, value)
            continue
        if len(place) == 1 and _elsewhere(name):
            continue
        nearest = nearest_name(name, _known(place))
        if nearest and nearest not in section:
            # A list in place of one value comes with the wrong key, which is said.
            section[nearest] = value[0] if nearest == "corpus" and value == [*value][:1] else value
            moved = {key: line for key, line in lines.items() if key[: len(place)] == place}
            lines |= {(*place[:-1], nearest, *key[len(place) :]): n for key, n in moved.items()}
    return nested(Recipe, raw)


# What may stand at the top: the sections of the plan, the other keys, the fields of the sections.
_SECTIONS = [*PlanSpec.model_fields, *(name for name in Recipe.model_fields if name != "plan")]
_TOP = [*_SECTIONS, *flat_fields(PlanSpec)]


def _place(problem: Mapping[str, Any], lines: Mapping[_Key, int]) -> _Key:
    """Where a problem is in the file, in which keys may stand outside of their sections."""
    # pydantic marks a mapping's key that is no number so.
    parts = tuple(str(part) for part in problem["loc"] if part != "[key]")
    error = problem.get("ctx", {}).get("error")
    if isinstance(error, Misfit):
        return next((key for key in lines if key and key[-1] == error.field), ())
    if parts[0] == "plan":
        parts = parts[1:]
    outside = parts[1:] if parts and parts[0] in PlanSpec.model_fields else parts
    return outside if outside[:1] in lines and parts[:2] not in lines else parts


def _known(place: _Key) -> list[str]:
    """The known keys of the section that a key is in."""
    if len(place) == 1:
        return _TOP
    kind: type[BaseModel] = Recipe
    for part in place[:-1]:
        kind = PlanSpec if kind is Recipe and part in PlanSpec.model_fields else kind
        if part in kind.model_fields:
            kind = next(_sections(kind.model_fields[part].annotation))
    return list(flat_fields(kind) if issubclass(kind, Section) else kind.model_fields)


def _is_of_top(place: _Key) -> bool:
    """Whether an unknown key of a section belongs above it; `corpora` may stand for `corpus`."""
    *above, name = place
    is_corpus = name == "corpora" and "corpus" in _known(place)
    return bool(above) and name in _TOP and not is_corpus


def _right_key(place: _Key) -> str:
    """What an unknown key should have been: the same in its own place, or the nearest here."""
    name, known = place[-1], _known(place)
    if _is_of_top(place):
        section = next(part for part in reversed(place[:-1]) if not part.isdigit())
        return f"{name} stands at the top of a recipe, not under {section}"
    if known is _TOP and (elsewhere := _elsewhere(name)):
        return elsewhere
    nearest = nearest_name(name, known)
    listed = _SECTIONS if known is _TOP else known
    return f"did you mean {nearest!r}?" if nearest else f"known: {', '.join(listed)}"


def _elsewhere(name: str) -> str:
    """Where a key that is unknown at the top belongs; empty if nothing else has it."""
    if name == "corpus":  # for `corpora`, more likely than for that of a section
        return ""
    sections = {
        key: list(_sections(model_field.annotation))
        for key, model_field in Recipe.model_fields.items()
    }
    below = [key for key, kinds in sections.items() for kind in kinds if name in kind.model_fields]
    keys = f"it stands under {' or '.join(below)}" if below else ""
    field = Machine.model_fields.get(name)
    option = f"is the option {flags_of(name, field)[0]} of the command" if field else ""
    return ", or ".join(filter(None, (keys, option if keys else option and f"it {option}")))


def _message(problem: Mapping[str, Any], lines: Mapping[_Key, int]) -> tuple[int, str]:
    """The line of a problem, and what to say of it."""
    place = _place(problem, lines)
    line = next((lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines), 1)
    if problem["type"] == "extra_forbidden":
        message = f"unknown key; {_right_key(place)}"
    elif problem["type"] == "missing":
        message = "is missing"
    else:
        message = plain_problem(problem)
    return line, ": ".join(filter(None, (f"line {line}", ".".join(place), message)))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Sections inside an annotation such as `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inside in getattr(annotation, "__args__", ()):
        yield from _sections(inside)
