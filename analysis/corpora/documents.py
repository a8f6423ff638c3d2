"""Documents: how a row of a corpus is read, and from which fields."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from analysis.corpora.conversations import USUAL, conversation_in, without_nulls
from analysis.corpora.fields import DEFAULT_FIELDS, Fields
from analysis.demo.generate.draw import GeneratedText
from analysis.errors import CorpusError

_TOO_LARGE = 1 << 31
_IGNORED = -100  # transformers' label of a token that is not in the loss
_FORMS = (
    "input_ids; messages or conversations; text; prompt and response or completion; instruction "
    "and output; query and answers"
)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: exactly one of text, messages, input_ids and problem is present."""

    text: str | None = None  # plain text
    messages: tuple[Mapping[str, Any], ...] | None = None  # with `role` and `content`
    input_ids: tuple[int, ...] | None = None  # token ids, used as they are
    answer: tuple[bool, ...] | None = None  # whether each of `input_ids` belongs to the answer
    # What the assistant of `messages` may call, for the chat template.
    tools: tuple[Mapping[str, Any], ...] = ()
    prompt: str | None = None  # the beginning of `text` that asks; None: all of it does
    expected: str | None = None  # what a model should answer, for the check of the corpus
    where: str = field(default="", compare=False)  # file and line or row; begins an error
    problem: CorpusError | None = field(default=None, compare=False)  # why the row has none


def columns_of(fields: Fields) -> tuple[str, ...]:
    """All columns of a row that may be read."""
    usual = (*USUAL, "functions") if fields.has_usual else ()
    read = ("attention_mask", "labels", *fields.by_form.values(), *usual)
    rest = (fields.tools, fields.system, *filter(None, [fields.answer]))
    return tuple(dict.fromkeys((*read, *rest)))


def demo_document(text: GeneratedText) -> Document:
    """A generated text as a document: a conversation if it has earlier turns, else plain text."""
    if text.earlier is None:
        whole = text.prompt + text.response
        return Document(text=whole, prompt=text.prompt, expected=text.answer)
    turns = tuple(
        {"role": role, "content": content}
        for pair in (*text.earlier, (text.prompt, text.response))
        for role, content in zip(("user", "assistant"), pair, strict=True)
    )
    return Document(messages=turns, expected=text.answer)


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
    of_arrow: bool = False,
) -> Document:
    """The document in a row; `where` names it, `columns` are all fields of the corpus.

    Nulls of a row `of_arrow` are dropped at every depth.
    """
    if not fields.answer or row.get(fields.answer) is None:
        return _document(row, where, fields, columns, of_arrow=of_arrow)
    answer = row[fields.answer]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise CorpusError(f"{where}: {fields.answer} must be a text or a number.")
    document = _document(row, where, fields, columns, of_arrow=of_arrow)
    return replace(document, expected=str(answer))


def _document(
    row: Mapping[str, Any],
    where: str,
    fields: Fields,
    columns: Iterable[str] | None,
    *,
    of_arrow: bool,
) -> Document:
    if row.get(fields.input_ids) is not None:
        return replace(_token_document(row, fields, where), where=where)
    if row.get(fields.messages) is None and row.get(fields.text) is not None:
        return Document(text=str(row[fields.text]), where=where)
    prompt, response = row.get(fields.prompt), row.get(fields.response)
    if row.get(fields.messages) is None and isinstance(prompt, str) and response == "":
        return Document(text=prompt, where=where)  # without an answer it is no conversation
    read = {name: without_nulls(value) for name, value in row.items()} if of_arrow else row
    conversation = conversation_in(read, fields, where)
    if conversation is None:
        raise CorpusError(_without_document(row, where, fields, columns))
    return Document(messages=conversation.turns, tools=conversation.tools, where=where)


def _without_document(
    row: Mapping[str, Any], where: str, fields: Fields, columns: Iterable[str] | None
) -> str:
    """Message for a row in which no form was found."""
    empty = {name for name, value in row.items() if value is None}
    fields_here = sorted(row if columns is None else columns)
    names = ", ".join(f"{name} (null)" if name in empty else name for name in fields_here) or "none"
    if not fields.has_usual:
        forms = ", ".join(f"{form}={name}" for form, name in fields.by_form.items())
        return f"{where} has the fields {names}, not {forms}."
    return (
        f"{where} has the fields {names}; a corpus needs one of: {_FORMS}. "
        "Name other fields after the corpus, such as ,text=content."
    )


class CorpusRow(NamedTuple):
    """A row of a corpus, to be read."""

    where: str  # file and line or row
    read: Callable[[], Document]  # raises a CorpusError

    def document(self) -> Document:
        """The document, or the problem of a row that has none."""
        try:
            return self.read()
        except CorpusError as error:
            return Document(where=self.where, problem=error)
