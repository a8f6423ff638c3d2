"""recipe.yaml: read with every problem named at once, by its place in the file, and written."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from analysis.durable import write_durably
from analysis.errors import PlanError
from pruning.recipe import Recipe

_MOST_BYTES = 1 << 20
_MOST_DEPTH = 16
_Key = tuple[str, ...]


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        PlanError: unreadable, or every problem of it, one line each.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise PlanError(f"{path} is larger than a recipe can be.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise PlanError(f"The recipe {path} cannot be read: {reason}.") from error
    return recipe_from_yaml(text, name=str(path))


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write recipe.yaml."""
    try:
        write_durably(path, recipe.to_yaml().encode())
    except OSError as error:
        raise PlanError(f"The recipe cannot be written to {path}: {error.strerror}.") from error


def recipe_from_yaml(text: str, *, name: str = "recipe") -> Recipe:
    """The recipe in YAML text.

    Raises:
        PlanError: every problem of it, one line each.
    """
    try:
        root = _tree(text)
        lines: dict[_Key, int] = {}
        problems = list(_walk(root, (), lines)) if root else []
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PlanError(f"The recipe {name} is not valid YAML: {reason}.") from error
    if not isinstance(raw, dict):
        raise PlanError(f"The recipe {name} is no list of keys; it begins with model: MODEL.")
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        problems += [_said(each, lines) for each in error.errors(include_url=False)]
    else:
        if not problems:
            return recipe
    # In the order of the file, and the same twice only once.
    ordered = sorted(dict.fromkeys(problems), key=lambda found: found[0])
    count = f"{len(ordered)} problem{'s' if len(ordered) > 1 else ''}"
    raise PlanError(f"The recipe {name} has {count}:", [message for _, message in ordered])


def _tree(text: str) -> yaml.Node | None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        # Aliases of aliases can stand for more than fits into memory.
        if type(event) is yaml.AliasEvent:
            raise ValueError("aliases (*name) are not used in recipes")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        # The time that the parser takes grows with the square of the depth.
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested in more than {_MOST_DEPTH} levels; recipes have 4")
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _walk(node: yaml.Node, path: _Key, lines: dict[_Key, int]) -> Iterator[tuple[int, str]]:
    """Notes the line of every key; yields the keys that a mapping has twice."""
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
        yield from _walk(value, place, lines)
        lines[place] = line


def _said(error: Mapping[str, Any], lines: Mapping[_Key, int]) -> tuple[int, str]:
    # A key of a mapping that is no number is marked so by pydantic.
    place = tuple(str(part) for part in error["loc"] if part != "[key]")
    line = next((lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines), 1)
    message = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    if error["type"] == "extra_forbidden":
        kind: type[BaseModel] = Recipe
        for part in place[:-1]:
            if part in kind.model_fields:
                kind = next(_sections(kind.model_fields[part].annotation))
        known = list(kind.model_fields)
        nearest = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        message = f"unknown key; {hint}known here: {', '.join(known)}"
    elif error["type"] == "missing":
        message = "is missing"
    elif not isinstance(error["input"], dict | list | BaseModel) and error["type"] != "value_error":
        message += f" (got {error['input']!r})"
    return line, f"line {line}: {'.'.join(place)}: {message}"


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Sections inside an annotation such as `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inside in getattr(annotation, "__args__", ()):
        yield from _sections(inside)
