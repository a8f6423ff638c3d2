"""Errors for the user: one line that says what is wrong and what would work."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from analysis.foreign_text import in_terminal

Value = TypeVar("Value")


class UserError(Exception):
    """A problem that the user can fix; shown as one line, without a traceback.

    Messages may contain names from files, so unprintable characters become spaces. Each of `listed`
    follows on its own line.
    """

    def __init__(self, message: object = "", listed: Iterable[str] = ()) -> None:
        lines = [in_terminal(message), *(f"  {in_terminal(line)}" for line in listed)]
        super().__init__("\n".join(lines))


class CheckpointError(UserError):
    """A checkpoint directory that cannot be read as it stands."""


class UnsupportedModelError(UserError):
    """A model whose architecture, layout or routing the program does not handle."""


class CorpusError(UserError):
    """A calibration corpus that is unknown, empty, too short or malformed."""


class StatsError(UserError):
    """Cached statistics that are missing, damaged, of another model or of another schema."""


class LostProcessError(UserError):
    """Another process of the run ended or does not answer."""


class CriterionError(UserError):
    """An unknown criterion, or one that cannot rank."""


class PlanError(UserError):
    """A budget or plan that the model cannot satisfy."""


class ExportError(UserError):
    """An export that cannot be started, or an exported checkpoint that fails verification."""


class JobError(UserError):
    """A job that is unknown, or whose state does not allow the action."""


_SEVERAL = "{count} things are wrong"


class SeveralErrors(UserError):
    """Problems that are said together, each on its own line below how many there are."""

    def __init__(self, problems: Sequence[str], said: str = _SEVERAL) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{said.format(count=len(problems))}:", problems)


class Checks:
    """Runs checks to the end of all, and says what they refuse at once."""

    def __init__(self) -> None:
        self._errors: list[UserError] = []

    def run(self, check: Callable[[], Value]) -> Value | None:
        """The result of a check; None if it refuses."""
        try:
            return check()
        except UserError as error:
            self._errors.append(error)
            return None

    def finish(self, said: str = _SEVERAL) -> None:
        """Raise what was refused, if anything was: one error as it is, several below `said`."""
        problems = [
            problem
            for error in self._errors
            for problem in (error.problems if isinstance(error, SeveralErrors) else (str(error),))
        ]
        if len(self._errors) == 1:
            raise self._errors[0]
        if problems:
            raise SeveralErrors(list(dict.fromkeys(problems)), said)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class.

    A line that ends in a colon only announces the next one, which follows it.
    """
    first, *more = map(str.strip, (str(error).strip() or type(error).__name__).splitlines())
    return f"{first} {more[0]}" if more and first.endswith(":") else first


def yaml_problem(error: Exception, name: object) -> str:
    """Why a text is no YAML, on one line; the parser does not know the file's name."""
    words = str(error).replace('"<unicode string>"', str(name))
    return " ".join(words.split()).rstrip(".")


def wrong_schema(name: str, version: object, reads: int, again: str) -> str:
    """Message for a file of another schema, or of none; `again` says how to make the right one."""
    if version is None:
        return f"{name} states no schema_version, so it is no such file; {again}."
    return f"{name} has schema_version {version!r}, but this version reads {reads}; {again}."


def not_finite(source: str, dtype: object) -> StatsError:
    """The error for infinities and NaN: where they came from, and what to do.

    `source` is subject and verb, such as "Layer 3 gave"; `dtype` is torch's.
    """
    name = str(dtype).removeprefix("torch.")
    remedy = (
        "calibrate with --dtype bfloat16 or float32, which have a larger range."
        if name == "float16"
        else "look for such values in the checkpoint, or for weights that make it overflow."
    )
    return StatsError(f"{source} values that are not finite in {name}; {remedy}")


_MOST_LISTED = 24


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Message for a name that is not in `known`: the nearest match, and all known names.

    If there is a match, long lists are left out.
    """
    names = sorted(known)
    hint = did_you_mean(name, names)
    listed = "" if hint and len(names) > _MOST_LISTED else f" Known: {', '.join(names)}."
    return f"Unknown {kind} {name!r}.{hint}{listed}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest of `known`; empty if none is near."""
    nearest = nearest_name(name, known)
    return f" Did you mean {nearest!r}?" if nearest else ""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The nearest of `known`, ignoring case, else the only one that contains it; or empty."""
    by_case = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold()
    matches = difflib.get_close_matches(folded, by_case, n=1)
    if not matches and len(folded) > 2:
        containing = [candidate for candidate in by_case if folded in candidate]
        matches = containing if len(containing) == 1 else []
    return by_case[matches[0]] if matches else ""


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends in one or in a question mark."""
    return text if text.endswith(("?", ".")) else f"{text}."
