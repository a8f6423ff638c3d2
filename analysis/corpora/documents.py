"""Documents: how a row of a corpus is read, and from which fields."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.errors import CorpusError

_TOO_LARGE = 1 << 31
_IGNORED = -100  # transformers' label of a token that is not in the loss
_FORMS = "input_ids; messages; text; prompt and response"


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: exactly one of text, messages and input_ids is present."""

    text: str | None = None  # plain text
    messages: tuple[Mapping[str, Any], ...] | None = None  # with `role` and `content`
    input_ids: tuple[int, ...] | None = None  # token ids, used as they are
    answer: tuple[bool, ...] | None = None  # whether each of `input_ids` belongs to the answer


@dataclass(frozen=True, slots=True)
class Fields:
    """Names of the fields that hold a document; a row's first form is used."""

    input_ids: str = "input_ids"
    messages: str = "messages"
    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"

    @classmethod
    def only(cls, **names: str) -> "Fields":
        """These fields and no other form."""
        return cls(**{form: names.get(form, "") for form in cls.__dataclass_fields__})

    @property
    def by_form(self) -> dict[str, str]:
        """Form -> field, for the forms to look for."""
        forms = {form: str(getattr(self, form)) for form in type(self).__dataclass_fields__}
        return {form: name for form, name in forms.items() if name}

    @property
    def columns(self) -> tuple[str, ...]:
        """All fields that may be read."""
        return ("attention_mask", "labels", *self.by_form.values())


DEFAULT_FIELDS = Fields()


def demo_document(prompt: str, response: str) -> Document:
    """A pair as a document: a conversation if there is a response, else plain text."""
    if not response:
        return Document(text=prompt)
    user = {"role": "user", "content": prompt}
    return Document(messages=(user, {"role": "assistant", "content": response}))


def _whole_numbers(value: Any, where: str, name: str, *, least: int) -> list[int]:
    if not isinstance(value, list) or not all(
        type(number) is int and least <= number < _TOO_LARGE for number in value
    ):
        what = "token ids, whole numbers from 0" if least == 0 else "whole numbers"
        raise CorpusError(f"{where}: {name} must be a list of {what}.")
    return value


def _token_document(row: Mapping[str, Any], fields: Fields, where: str) -> Document:
    ids = _whole_numbers(row[fields.input_ids], where, fields.input_ids, least=0)
    columns = {
        name: _whole_numbers(row[name], where, name, least=_IGNORED)
        for name in ("attention_mask", "labels")
        if row.get(name) is not None
    }
    for name, values in columns.items():
        if len(values) != len(ids):
            raise CorpusError(f"{where}: {name} has {len(values)} values for {len(ids)} tokens.")
    # Padding inside a dataset is left out and not counted.
    mask = columns.get("attention_mask", [1] * len(ids))
    places = [place for place, is_real in enumerate(mask) if is_real]
    answer = columns.get("labels")
    return Document(
        input_ids=tuple(ids[place] for place in places),
        answer=None if answer is None else tuple(answer[place] != _IGNORED for place in places),
    )


def row_document(
    row: Mapping[str, Any],
    where: str,
    fields: Fields = DEFAULT_FIELDS,
    *,
    columns: Iterable[str] | None = None,
) -> Document:
    """The document in a row; `where` names it, `columns` are all fields of the corpus."""
    if row.get(fields.input_ids) is not None:
        return _token_document(row, fields, where)
    if row.get(fields.messages) is not None:
        messages = row[fields.messages]
        is_list = isinstance(messages, list) and messages
        if not is_list or not all(isinstance(each, dict) for each in messages):
            raise CorpusError(
                f"{where}: {fields.messages} must be a list of objects with role and content."
            )
        return Document(messages=tuple(messages))
    if row.get(fields.text) is not None:
        return Document(text=str(row[fields.text]))
    if row.get(fields.prompt) is not None and row.get(fields.response) is not None:
        return demo_document(str(row[fields.prompt]), str(row[fields.response]))
    empty = {name for name, value in row.items() if value is None}
    fields_here = sorted(row if columns is None else columns)
    names = ", ".join(f"{each} (null)" if each in empty else each for each in fields_here) or "none"
    if fields != DEFAULT_FIELDS:
        forms = ", ".join(f"{form}={name}" for form, name in fields.by_form.items())
        raise CorpusError(f"{where} has the fields {names}, not {forms}.")
    raise CorpusError(
        f"{where} has the fields {names}; a corpus needs one of: {_FORMS}. "
        "Name other fields after the corpus, such as ,text=content."
    )
