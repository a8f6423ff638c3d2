"""Commands from requests: the options of a command are the fields of what it asks for."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from typer.models import ParameterInfo

from analysis.errors import Checks, CorpusError, UserError
from analysis.machine.devices import check_device
from app.cli.files import REPLACES, check_file, check_new_file, plan_content
from app.cli.help import EMPTY_PATH, HAS_EMPTY_WORD
from pruning.option import HEADINGS, Option
from pruning.spec.base import (
    OPTIONS,
    Request,
    choices_of,
    default_of,
    flags_of,
    flat_fields,
    heading_of,
    is_plan,
    option_of,
    repeated,
    validated,
)

Handler = Callable[..., None]
_PLAIN = (bool, int, float, Path)
_MOST_LETTERS = 44  # of choices that stand behind the option itself
# Options of a command whose help has no headings.
MOST_UNGROUPED = 12


def command(
    kind: type[Request] | None = None, repeatable: str = ""
) -> Callable[[Handler], Handler]:
    """Make a command of a function `(request, **options)`; `options` belong to it alone.

    The fields of the request that have an `Option`, and the keyword parameters of the function,
    which are annotated likewise, become its options. Without a request, there are no others. The
    option of the field `repeatable`, which takes one value, may be repeated: the function gets a
    list, a request for each value. If the request has plans, it gets their files as `plans`.
    """

    def derive(handler: Handler) -> Handler:
        derived = _Command(handler, kind, repeatable, *_own_options(handler))

        def run(ctx: typer.Context, **values: Any) -> None:
            derived.run(ctx, values)

        for name in ("__name__", "__doc__", "__module__"):
            setattr(run, name, getattr(handler, name))
        run.__signature__ = derived.signature  # type: ignore[attr-defined]
        return run

    return derive


@dataclass(frozen=True, eq=False)
class _Command:
    """A handler with its request and its options."""

    handler: Handler
    kind: type[Request] | None
    repeatable: str
    own: type[Request]  # the options that are no fields of the request
    passed: Sequence[inspect.Parameter]  # those in typer's own words
    takes_force: bool  # whether the handler itself looks at what is there

    @cached_property
    def fields(self) -> Mapping[str, FieldInfo]:
        """The fields of the request."""
        return flat_fields(self.kind) if self.kind else {}

    @cached_property
    def plans(self) -> Mapping[str, FieldInfo]:
        """Those with plans, which files name."""
        return {name: field for name, field in self.fields.items() if is_plan(field)}

    @cached_property
    def declared(self) -> Mapping[str, FieldInfo]:
        """What may be an option, in the order of the help."""
        return {**self.plans, **self.own.model_fields, **self.fields}

    @property
    def signature(self) -> inspect.Signature:
        """What typer reads: the context, then options by heading, required ones first."""
        is_grouped = len(self.declared) > MOST_UNGROUPED
        headings = {
            name: heading_of(name, field) if is_grouped else ""
            for name, field in self.declared.items()
        }
        parameters = [
            _parameter(name, field, option, headings[name], repeated=name == self.repeatable)
            for name, field in self.declared.items()
            if (option := option_of(field))
        ]
        order = ("", *HEADINGS)

        def place(parameter: inspect.Parameter) -> tuple[int, bool]:
            is_optional = parameter.default is not inspect.Parameter.empty
            return order.index(headings.get(parameter.name, "")), is_optional

        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        return inspect.Signature([context, *sorted([*parameters, *self.passed], key=place)])

    def run(self, ctx: typer.Context, values: Mapping[str, Any]) -> None:
        """Call the handler with what a command line gave; a UserError names all that is wrong."""
        arguments = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if (source := ctx.get_parameter_source(name)) and source.name == "COMMANDLINE"
        }
        if ctx.meta.get(HAS_EMPTY_WORD):
            _check_named(arguments, self.declared)
        request_values = {name: value for name, value in arguments.items() if name in self.fields}
        checks = Checks()
        for name in {"device", "device_map"} & request_values.keys():
            # A request may be queued for another machine.
            checks.run(partial(check_device, str(request_values[name])))
        options = self._options(arguments, request_values, checks)
        for corpus in _corpora(arguments, self.declared):
            checks.run(partial(_check_corpus, corpus))
        positional = []
        if self.kind:
            request = partial(_requests, self.kind, self.repeatable, request_values)
            positional.append(checks.run(request))
        checks.finish()
        options |= {parameter.name: values[parameter.name] for parameter in self.passed}
        self.handler(*positional, **options)

    def _options(
        self, arguments: Mapping[str, Any], request_values: dict[str, Any], checks: Checks
    ) -> dict[str, Any]:
        """The handler's own options, and the files of the request's plans, which are read."""
        names = self.own.model_fields
        values = {name: arguments[name] for name in names if name in arguments}
        valid = checks.run(partial(validated, self.own, values))
        options = {name: getattr(valid, name, None) for name in names}
        force = options["force"] if self.takes_force else options.pop("force", False)
        if self.plans:
            options["plans"] = _files_of_plans(request_values, self.plans, checks)
        for name, field in names.items():
            spares = force or (self.takes_force and name == "out_file")
            _check_paths(options.get(name), option_of(field), checks, force=spares)
        return options


def _check_paths(value: Any, option: Option | None, checks: Checks, *, force: bool) -> None:
    checks.run(partial(check_new_file, value, option, force=force))
    for path in _several(value) or (value,):
        checks.run(partial(check_file, path, option))


def _files_of_plans(
    values: dict[str, Any], names: Iterable[str], checks: Checks
) -> tuple[Path, ...]:
    """The files of a request's plans, whose contents take their place in its values."""
    for name in values.keys() & set(names):
        is_one = not _several(values[name])
        files = tuple(dict.fromkeys((values[name],) if is_one else values[name]))
        contents = tuple(checks.run(partial(plan_content, path)) or {} for path in files)
        values[name] = contents[0] if is_one else contents
        return files
    return ()


def _check_named(arguments: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> None:
    """Refuse paths that an empty word became; files and folders are named."""
    for name, value in arguments.items():
        if (option := option_of(fields[name])) and Path() in (value, *_several(value)):
            what = option.place or flags_of(name, fields[name])[0]
            raise UserError(f"{what}: {EMPTY_PATH}.")


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _own_options(handler: Handler) -> tuple[type[Request], list[inspect.Parameter], bool]:
    """The options that are no fields of a request, as a model; those in typer's own words.

    And whether `force` is among the first. Where a new file is, it is an option all the same.
    """
    fields: dict[str, Any] = {}
    passed = []
    for parameter in inspect.signature(handler, eval_str=True).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if any(isinstance(part, ParameterInfo) for part in get_args(parameter.annotation)):
            passed.append(parameter)
        else:
            is_required = parameter.default is inspect.Parameter.empty
            fields[parameter.name] = (
                parameter.annotation,
                ... if is_required else parameter.default,
            )
    model: type[Request] = create_model(handler.__name__, __base__=Request, **fields)
    takes_force = "force" in fields
    options = map(option_of, model.model_fields.values())
    if not takes_force and any(option and option.file == "new" for option in options):
        model = create_model(
            model.__name__, __base__=model, force=(Annotated[bool, REPLACES], False)
        )
    return model, passed, takes_force


def _requests(
    kind: type[Request], repeatable: str, values: dict[str, Any]
) -> Request | list[Request]:
    """The request of these values, or one for each value of the field `repeatable`."""
    if not repeatable:
        return _validated(kind, repeatable, values)
    # Named twice, a value is still asked for once.
    one_by_one = [{**values, repeatable: value} for value in dict.fromkeys(values[repeatable])]
    return [_validated(kind, repeatable, single) for single in one_by_one]


def _validated(kind: type[Request], repeatable: str, values: dict[str, Any]) -> Request:
    try:
        return validated(kind, values)
    except UserError as error:
        fields = flat_fields(kind)
        for name, value in values.items():
            several = isinstance(value, tuple)
            for word in value if several else (value,):
                if parts := _listed(fields[name], word, several=several):
                    flag = flags_of(name, fields[name])[0]
                    words = f"repeat the option: {' '.join(repeated(flag, parts))}"
                    if not several and name != repeatable:
                        words = f"give one, such as {flag} {parts[0]}"
                    raise UserError(f"{flag}: {word!r} is several values; {words}.") from error
        raise


def _listed(field: FieldInfo, word: Any, *, several: bool) -> list[str]:
    """The values in a word that is none itself, as commas part them; empty if they are not."""

    def is_read(text: str) -> bool:
        kind: Any = Annotated[field.annotation, field]
        try:
            TypeAdapter(kind).validate_python((text,) if several else text, context=OPTIONS)
        except (ValidationError, UserError):
            return False
        return True

    parts = word.split(",") if isinstance(word, str) and "," in word else []
    return parts if parts and all(map(is_read, parts)) and not is_read(word) else []


def _corpora(values: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    """The corpora that options name, as they are written."""
    for name, field in fields.items():
        if name in values and (option := option_of(field)) and option.file == "corpus":
            yield from _several(values[name]) or (values[name],)


def _check_corpus(corpus: str) -> None:
    """Refuse a corpus whose file is absent, before libraries are imported."""
    from analysis.corpora.spec import parse_corpus  # numpy, which most commands start without

    try:
        spec = parse_corpus(corpus)
    except CorpusError:
        return  # the request says it, with its option
    spec.check_present()


def _parameter(
    name: str, field: FieldInfo, option: Option, heading: str, *, repeated: bool
) -> inspect.Parameter:
    """A field with its option as a parameter that typer reads."""
    kind, is_required = _option_type(field), field.is_required()
    if repeated:
        kind = types.GenericAlias(list, kind)
    if option.place:
        info: ParameterInfo = typer.Argument(metavar=option.place, help=option.help)
    else:
        flags = flags_of(name, field)
        info = typer.Option(
            *(["/".join(flags)] if kind is bool else flags),
            help=option.help,
            metavar=None if kind is bool else takes(field, flags),
            rich_help_panel=heading or None,
            dir_okay=option.file in ("", "folder", "plan"),
            file_okay=option.file != "folder",
        )
    default = default_of(field) if not is_required else None
    default = None if default in ((), "", {}) else default
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind if is_required or default is not None else kind | None, info],
        default=inspect.Parameter.empty if is_required else default,
    )


def takes(field: FieldInfo, flags: Sequence[str]) -> str:
    """What stands for the value of an option: its choices, what it is, or the option's name."""
    names, option = choices_of(field), option_of(field)
    if option and option.takes:
        return option.takes
    if names and len("|".join(names)) <= _MOST_LETTERS:
        return "|".join(names)
    if _option_type(field) is Path:
        return "FOLDER" if option and option.file == "folder" else "FILE"
    return max(flags, key=len).strip("-").upper()


def _option_type(field: FieldInfo) -> Any:
    """What the command line takes for a field: a word, unless it is a number, path or switch."""
    if (option := option_of(field)) and option.words:
        return list[str]
    (kind,) = set(_members(field.annotation)) - {type(None)}
    if get_origin(kind) is not tuple:
        return _word_type(kind)
    (item,) = _members(get_args(kind)[0])
    item = _word_type(item)
    is_one = any(getattr(rule, "max_length", None) == 1 for rule in field.metadata)
    return item if is_one else types.GenericAlias(list, item)


def _word_type(kind: Any) -> type:
    """What one word of a command line becomes; a plan is named by its file."""
    if kind in _PLAIN:
        plain: type = kind
        return plain
    return Path if get_origin(kind) is dict else str


def _members(kind: Any) -> Iterator[Any]:
    """The types of a union, without what is said of them."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif type(None) in get_args(kind):
        for part in get_args(kind):
            yield from _members(part)
    else:
        yield kind
