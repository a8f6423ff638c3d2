"""Requests: validated values of a person, and the equivalent command line."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from itertools import repeat as endlessly
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from analysis.errors import SeveralErrors, UserError, nearest_name, sentence, unknown_name
from pruning.option import Option

Kind = TypeVar("Kind", bound="Request")
_MOST_DIGITS = 12  # of a number in a URL


# Field of many requests -> its heading; those of a plan have it in their declaration.
_HEADED = {
    field: heading
    for heading, fields in {
        "Ranking": "criterion criteria gate granularity calibrated_on with_criterion with_gate",
        "Corpora": "corpus corpora runs tokens seq_len seed packing truncate count answers "
        "answer_tokens select clusters samples windows_per_document questions stops template_args "
        "skip_bad_rows allow_test_set allow_small_ids "
        "with_corpora",
        "Machine": "dtype device batch_size attention device_map max_memory offload_folder "
        "stream_layers experts_at_once hidden_states_dir checkpoint_activations trust_remote_code "
        "stats_dir revision",
    }.items()
    for field in fields.split()
}


@cache
def option_of(field: FieldInfo) -> Option | None:
    """The option of a field; None if it has none."""
    merged = None
    for annotation in declared(field):
        if isinstance(annotation, Option):
            merged = replace(merged, **annotation.values()) if merged else annotation
    return merged


@cache
def heading_of(name: str, field: FieldInfo) -> str:
    """The heading of a field in the help of commands with many options; or empty."""
    option = option_of(field)
    return (option and option.heading) or _HEADED.get(name, "")


@cache
def is_plan(field: FieldInfo) -> bool:
    """Whether a field holds the content of a plan, or of several."""
    option = option_of(field)
    return option is not None and option.file == "plan"


@cache
def default_of(field: FieldInfo) -> Any:
    """The value of a field that is not given; do not change it."""
    return field.get_default(call_default_factory=True)


@cache
def flags_of(name: str, field: FieldInfo) -> tuple[str, ...]:
    """The flags of a field's option; a switch that is on by default also has an off flag."""
    option, word = option_of(field), name.replace("_", "-")
    if option and option.flags:
        return option.flags
    return (f"--{word}", f"--no-{word}") if field.default is True else (f"--{word}",)


def bounds(kind: type[BaseModel], name: str) -> tuple[int | None, int | None]:
    """The least and the largest value that a field takes; None without a bound."""
    rules = list(declared(kind.model_fields[name]))
    least, largest = (
        next((getattr(rule, sign) for rule in reversed(rules) if hasattr(rule, sign)), None)
        for sign in ("ge", "le")
    )
    return least, largest


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The names that a field takes; empty if it takes others."""
    annotations = [field.annotation]
    for annotation in annotations:
        if get_origin(annotation) is Literal:
            return get_args(annotation)
        annotations.extend(get_args(annotation))
    return ()


def declared(field: FieldInfo) -> Iterator[Any]:
    """The annotations of a field's type, inner before outer."""
    yield from _declared_in(field.annotation)
    yield from field.metadata


def _declared_in(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is not Annotated:
        for part in get_args(kind):
            yield from _declared_in(part)
        return
    inner, *metadata = get_args(kind)
    yield from _declared_in(inner)
    for annotation in metadata:
        yield from annotation.metadata if isinstance(annotation, FieldInfo) else (annotation,)


class Request(BaseModel):
    """Validated values of a person; unknown fields are refused.

    Fields of sections may be given without these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _fields_in_sections(cls, values: Any) -> Any:
        return in_sections(cls, values) if isinstance(values, Mapping) else values

    @property
    def cache_key(self) -> str:
        """All of it."""
        return self.model_dump_json()

    def into(self, kind: type[Kind], **more: Any) -> Kind:
        """Another kind of request with the given values that it shares, and `more`."""
        fields = flat_fields(kind)
        shared = {name: value for name, value in flat_values(self).items() if name in fields}
        return validated(kind, shared | more)


class Section(Request):
    """Fields that belong together; commands, recipes and Python name them without their section."""


@cache
def _sections_of(kind: type[Request]) -> Mapping[str, type[Section]]:
    """The fields of a request that are sections."""
    kinds = {name: field.annotation for name, field in kind.model_fields.items()}
    return {
        name: section
        for name, section in kinds.items()
        if isinstance(section, type) and issubclass(section, Section)
    }


@cache
def flat_fields(kind: type[Request]) -> Mapping[str, FieldInfo]:
    """The fields of a request by name, those of its sections in their place."""
    fields: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        section = _sections_of(kind).get(name)
        fields |= flat_fields(section) if section else {name: field}
    return fields


@cache
def _in_order(kind: type[Request]) -> tuple[str, ...]:
    """The fields of a request as its command line has them: required first, constraints last."""
    fields = flat_fields(kind)
    return tuple(
        sorted(
            fields,
            key=lambda name: (
                not fields[name].is_required(),
                heading_of(name, fields[name]) == "Constraints",
            ),
        )
    )


def flat_values(request: Request) -> dict[str, Any]:
    """Field -> value of those that were given, without their sections."""
    values: dict[str, Any] = {}
    for name in type(request).model_fields:
        if name in request.model_fields_set:
            value = getattr(request, name)
            values |= flat_values(value) if isinstance(value, Section) else {name: value}
    return values


def in_sections(kind: type[Request], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those fields put into sections that stand outside of theirs.

    A section does the same with what it gets, when it is validated.
    """
    filled = {name: value for name, value in values.items() if name in kind.model_fields}
    outside = {name: value for name, value in values.items() if name not in filled}
    for name, section in _sections_of(kind).items():
        section_values = filled.get(name, {})
        if not isinstance(section_values, Mapping):
            continue
        held = outside.keys() & _names_in(section)
        moved = {key: outside.pop(key) for key in list(outside) if key in held}
        if moved or section_values or kind.model_fields[name].is_required():
            filled[name] = {**section_values, **moved}
    return filled | outside


def nested(kind: type[Request], values: Mapping[str, Any]) -> dict[str, Any]:
    """As `in_sections`, also within the sections."""
    filled = in_sections(kind, values)
    for name, section in _sections_of(kind).items():
        if isinstance(value := filled.get(name), Mapping):
            filled[name] = nested(section, value)
    return filled


@cache
def _names_in(section: type[Section]) -> frozenset[str]:
    """The names of a section's fields, and of those of sections in it."""
    inner = (_names_in(subsection) for subsection in _sections_of(section).values())
    return frozenset(section.model_fields).union(*inner)


def option_words(
    request: Request, leave_out: Iterable[str] = (), only: Iterable[str] = ()
) -> Iterator[str]:
    """The equivalent options of a command line, without defaults.

    Of the fields `only`, in this order, or of all but `leave_out`, required ones first and
    constraints last.
    """
    fields, values = flat_fields(type(request)), flat_values(request)
    names: Iterable[str] = _in_order(type(request))
    if only:
        names = sorted(only, key=lambda name: not fields[name].is_required())
    for name in [name for name in names if name in values and name not in leave_out]:
        value = values[name]
        if value is not None and value != default_of(fields[name]):
            yield from words_of(name, fields[name], value)


def words_of(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    """The words of a command line that give a field this value.

    None without an option; nor for a plan, whose file has a name that the request does not know.
    """
    option = option_of(field)
    if option is None or option.place or is_plan(field):
        return
    flag, *off = flags_of(name, field)
    if isinstance(value, bool):
        yield flag if value else off[0]
        return
    yield from repeated(flag, value_words(field, value))


def value_words(field: FieldInfo, value: Any) -> list[str]:
    """The words from which a field reads this value."""
    option = option_of(field)
    if option and option.words:
        return list(option.words(value))
    items = value if isinstance(value, tuple) else (value,)
    return [f"{item:g}" if isinstance(item, float) else str(item) for item in items]


def value_of(field: FieldInfo, words: Sequence[str]) -> Any:
    """The value of these words, for the field to check; of one value, the last word."""
    if isinstance(default_of(field), tuple | dict):
        return words
    word = words[-1]
    if default_of(field) is False:
        return word == str(True) or word
    is_number = _takes_int(field.annotation) and word.isascii() and word.isdecimal()
    return int(word) if is_number and len(word) <= _MOST_DIGITS else word


def _takes_int(kind: Any) -> bool:
    return kind is int or any(map(_takes_int, get_args(kind)))


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """The words of an option repeated for each value."""
    return list(chain.from_iterable(zip(endlessly(option), values, strict=False)))


def command_line(*words: str) -> str:
    """A command of this program, quoted for a shell."""
    return shlex.join(("moeprune", *words))


def written(context: Any, kind: type[Request]) -> Callable[..., str]:
    """How who gave the values names a field, or a field with a value: options or keys.

    `context` is that of their validation.
    """

    def as_option(name: str, value: object = "") -> str:
        return f"{flags_of(name, flat_fields(kind)[name])[0]} {value}".rstrip()

    def as_key(name: str, value: object = "") -> str:
        return f"{name}: {value}" if value else name

    return as_option if context == OPTIONS else as_key


OPTIONS = {"fields are": "options"}  # the context in which a request from a command is validated


def validated(
    kind: type[Kind], values: dict[str, Any], context: dict[str, str] | None = OPTIONS
) -> Kind:
    """A request from untrusted values; a UserError names each bad field in one line.

    Without a context fields are named as they are, and not as options.
    """
    try:
        return kind.model_validate(values, context=context)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
        # Of a union each member says what is wrong with one value.
        first: dict[tuple[str, str], Any] = {}
        for problem in unknown or problems:
            name = _field_named(kind, problem)
            # A list lacks items that are wrong.
            if problem["type"] != "too_short" or name not in {field for field, _ in first}:
                first.setdefault((name, str(problem["input"])), problem)
        found = [
            raised_by(problem) or UserError(_in_one_line(kind, problem, context))
            for problem in first.values()
        ]
        if len(found) == 1:
            raise found[0] from error
        raise SeveralErrors([str(exception) for exception in found]) from error


def _field_named(kind: type[Request], problem: Any) -> str:
    """The field that a problem is of, by its own name if it has one; or empty."""
    path = [str(part) for part in problem["loc"]]
    named = (part for part in path if part in flat_fields(kind))
    return next(named, path[0] if path else "")


def _in_one_line(kind: type[Request], problem: Any, context: dict[str, str] | None) -> str:
    message = plain_problem(problem)
    if not problem["loc"]:
        return sentence(message)  # of several fields, which the message names
    fields, name = flat_fields(kind), _field_named(kind, problem)
    if problem["type"] == "extra_forbidden":
        return unknown_name("option", str(problem["loc"][-1]), fields)
    if name not in fields and name in kind.model_fields:
        return sentence(message)  # of a section, likewise
    field = fields.get(name)
    option = option_of(field) if field else None
    flag = f"--{name.replace('_', '-')}"
    place = option.place if option and option.place else flags_of(name, field)[0] if field else flag
    return sentence(f"{place if context else name}: {message}")


# Kinds of pydantic's problems -> what would work, with pydantic's bounds.
_WOULD_WORK = {
    "literal_error": "choose {expected}",
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give less than {lt}",
    "less_than_equal": "give {le} or less",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "give a number"),
    "string_type": "give a text",
    "string_too_short": "it is empty; give at least {min_length} character",
    "string_too_long": "give at most {max_length} characters",
    "bool_type": "give true or false",
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "give keys with values"),
    "tuple_type": "give a list",
}
# What people call a choice -> its name here.
_ALSO_CALLED = {"loss": "nll", "perplexity": "ppl", "fp16": "float16", "fp32": "float32"}
# Kinds of values that YAML and JSON have, in words.
_KINDS = {dict: "keys with values", list: "a list", bool: "true or false"}


_MOST_WHOLE: Final = 10**15  # larger numbers stay 1e+300


def _whole(value: Any) -> Any:
    """0 for 0.0: a number as people type it."""
    is_short = isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE
    return int(value) if is_short else value


def plain_problem(problem: Any) -> str:
    """A problem from pydantic in words: what would work, what was given, the nearest choice."""
    context = {name: _whole(bound) for name, bound in problem.get("ctx", {}).items()}
    value = _whole(problem["input"])
    reason = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    if problem["type"] in _WOULD_WORK:
        reason = _WOULD_WORK[problem["type"]].format_map(context)
    elif isinstance(value, dict | list | tuple | BaseModel) or raised_by(problem):
        return reason
    if value is None:
        return f"{reason}; it is empty"
    nearest = _nearest_choice(str(value), str(context.get("expected", "")))
    plain = str(value) if isinstance(value, Path) else value
    is_said = isinstance(plain, str | int | float)
    text = repr(plain) if is_said else _KINDS.get(type(value), f"a {type(value).__name__}")
    if problem["type"] == "string_type" and not isinstance(value, dict | list | tuple):
        reason += ", in quotes if need be"
    return f"{reason} (got {text}){f'.{nearest}' if nearest else ''}"


def _nearest_choice(value: str, expected: str) -> str:
    """A question that names the nearest of the expected choices, which pydantic quotes."""
    choices = re.findall("'([^']+)'", expected)
    others = {word: name for word, name in _ALSO_CALLED.items() if name in choices}
    nearest = nearest_name(value, choices) or others.get(nearest_name(value, others))
    return f" Did you mean {nearest!r}?" if nearest else ""


def raised_by(problem: Any) -> UserError | None:
    """Our own error behind a problem from pydantic."""
    raised = problem.get("ctx", {}).get("error")
    cause = raised.__cause__ if isinstance(raised, ValueError) else None
    return cause if isinstance(cause, UserError) else None
