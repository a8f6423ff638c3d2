"""Encodes documents as token ids and finds which of them belong to an answer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from analysis.arrays import BoolArray
from analysis.corpora.documents import Document
from analysis.corpora.sequences import TokenIds
from analysis.errors import CorpusError, first_line

if TYPE_CHECKING:
    from analysis.model import MoEModel

Count = Literal["all", "response"]
_GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")


class NoResponseError(CorpusError):
    """No answer can be identified in a document; `reason` says why, without advice."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; use --count all.")
        self.reason = reason


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that corpora use."""

    eos_token_id: int | None

    def encode(self, text: str) -> list[int]:
        """Token ids, with the special tokens that the model expects."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Token ids of a conversation in the model's own format."""

    def get_chat_template(self) -> str:
        """The chat template; a ValueError if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Token ids of a document."""

    ids: TokenIds  # (tokens,) int32
    counted: BoolArray | None = None  # (tokens,) bool: whether each enters the sums; None: all do

    def part(self, start: int, end: int) -> "Tokens":
        """The tokens from `start` to before `end`."""
        counted = None if self.counted is None else self.counted[start:end]
        return Tokens(self.ids[start:end], counted)


@contextmanager
def reading_by_tokenizer(what: str, instead: str) -> Iterator[None]:
    """Turn any error of a tokenizer into one line; `instead` says what would work.

    tokenizers raises bare exceptions, and a chat template is a program that may fail in any way.
    """
    try:
        yield
    except Exception as error:
        reason = first_line(error)
        raise CorpusError(f"The model's tokenizer cannot {what} ({reason}); {instead}.") from error


def encode(document: Document, tokenizer: Tokenizer | None, count: Count, corpus: str) -> Tokens:
    """Token ids of a document; with count "response" only its answers enter the sums."""
    if document.input_ids is not None:
        answer = document.answer if count == "response" else None
        if count == "response" and answer is None:
            raise NoResponseError(
                f"The corpus {corpus} has token ids without labels, so its responses are unknown"
            )
        ids = np.asarray(document.input_ids, dtype=np.int32)
        return Tokens(ids, None if answer is None else np.asarray(answer, dtype=np.bool_))
    if tokenizer is None:
        raise CorpusError(f"The corpus {corpus} is text, which needs a tokenizer.")
    if document.messages is not None:
        return _conversation(document.messages, tokenizer, count)
    if count == "response":
        raise NoResponseError(f"The corpus {corpus} is plain text, which has no responses")
    with reading_by_tokenizer("read a text", "give a corpus of input_ids"):
        tokens = list(tokenizer.encode(document.text or ""))
    if tokenizer.eos_token_id is not None and tokens and tokens[-1] != tokenizer.eos_token_id:
        tokens.append(tokenizer.eos_token_id)
    return Tokens(np.asarray(tokens, dtype=np.int32))


def _templated(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, **options: Any
) -> Mapping[str, Any]:
    with reading_by_tokenizer("format a conversation", "give a corpus of text or of input_ids"):
        encoding: Mapping[str, Any] = tokenizer.apply_chat_template(
            list(messages), tokenize=True, return_dict=True, **options
        )
    return encoding


def _conversation(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, count: Count
) -> Tokens:
    if count == "all":
        encoding = _templated(messages, tokenizer)
        return Tokens(np.asarray(encoding["input_ids"], dtype=np.int32))
    if all(message.get("role") != "assistant" for message in messages):
        raise NoResponseError("A conversation has no turn of the assistant to count")
    try:
        template = tokenizer.get_chat_template()
    except ValueError:
        template = ""  # formatting reports what is wrong
    if isinstance(template, str) and _GENERATION.search(template):  # it may be a number in JSON
        encoding = _templated(messages, tokenizer, return_assistant_tokens_mask=True)
        counted = np.asarray(encoding["assistant_masks"], dtype=np.bool_)
        return Tokens(np.asarray(encoding["input_ids"], dtype=np.int32), counted)
    return _by_prefixes(messages, tokenizer)


def _by_prefixes(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> Tokens:
    """Answers as the tokens that each assistant turn adds to those before it.

    Exact, because both must be prefixes of the whole, token by token. That fails if the template
    rewrites earlier turns or a token spans two turns.
    """
    ids = np.asarray(_templated(messages, tokenizer)["input_ids"], dtype=np.int32)
    counted = np.zeros(len(ids), dtype=np.bool_)
    for turn, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before = _templated(messages[:turn], tokenizer, add_generation_prompt=True)["input_ids"]
        after = _templated(messages[: turn + 1], tokenizer)["input_ids"]
        for prefix in (before, after):
            if not np.array_equal(prefix, ids[: len(prefix)]):
                raise NoResponseError(
                    "The model's chat template has no {% generation %} and formats a turn by what "
                    "follows it, so the tokens of an answer cannot be identified exactly"
                )
        counted[len(before) : len(after)] = True
    return Tokens(ids, counted)


def check_token_ids(corpus: str, largest: int, model: "MoEModel") -> None:
    """Refuse a corpus whose largest token id is beyond the model's vocabulary."""
    vocabulary = model.config.get("vocab_size")
    if isinstance(vocabulary, int) and largest >= vocabulary:
        raise CorpusError(
            f"The corpus {corpus} has the token id {largest}, but {model.name} has "
            f"{vocabulary} tokens; was it tokenised for another model?"
        )


def largest_token_id(documents: Iterable[Document], most: int) -> int:
    """The largest id in the first documents, up to `most` tokens; 0 if they are text."""
    read, largest = 0, 0
    for document in takewhile(lambda each: each.input_ids is not None, documents):
        ids = document.input_ids
        if ids is not None and len(ids):
            read, largest = read + len(ids), max(largest, int(max(ids)))
        if read >= most:
            break
    return largest
