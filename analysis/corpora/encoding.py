"""Encodes documents as token ids and finds which of them belong to an answer."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.corpora.account import RowAccount
from analysis.corpora.completeness import missing_text
from analysis.corpora.conversations import Turn
from analysis.corpora.cutting import WHOLE, Extent, TokenizedPart, check_length, tokenize_part
from analysis.corpora.documents import Document
from analysis.corpora.template_needs import fitted, takes_tools
from analysis.corpora.templates import RenderedConversation, render
from analysis.corpora.tokens import ChatFormat, Count, Tokenizer, Tokens
from analysis.errors import CorpusError, first_line

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel

Tools = Sequence[Mapping[str, Any]]  # what may be called, for the chat template
_GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")


class NoResponseError(CorpusError):
    """No answer can be identified in a document; `reason` says why, without advice."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; use --count all.")
        self.reason = reason


@contextmanager
def reading_by_tokenizer(what: str, instead: str, where: str = "") -> Iterator[None]:
    """Turn any error of a tokenizer into one line; `instead` says what would work.

    tokenizers raises bare exceptions, and a chat template is a program that may fail in any way.
    `where` is the file and row.
    """
    try:
        yield
    except Exception as error:
        who = f"{where}: the" if where else "The"
        reason = first_line(error).rstrip(".")
        raise CorpusError(
            f"{who} model's tokenizer cannot {what} ({reason}); {instead}."
        ) from error


def encode(
    document: Document,
    tokenizer: Tokenizer | None,
    chat: ChatFormat,
    corpus: str,
    extent: Extent | None = WHOLE,
) -> Tokens:
    """Token ids of a document, and which of them enter the sums.

    Of a long text these are at least the tokens of `extent`, exactly those of the whole text. A
    CorpusError names the file and row, if they are known.
    """
    if document.problem is not None:
        raise document.problem
    count = chat.count
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
    name = document.where or f"A document of the corpus {corpus}"
    reader = TextReader(tokenizer, name, arguments=chat.arguments, where=document.where)
    if document.messages is not None:
        return _conversation(_Talk(document.messages, document.tools), reader, count, extent)
    if count == "response":
        raise NoResponseError(f"The corpus {corpus} is plain text, which has no responses")
    part = reader.tokenize(document.text or "", extent, add_special_tokens=True)
    tokens, end = list(part.ids), tokenizer.eos_token_id
    has_end = part.is_whole or (extent is not None and extent.from_end)
    if end is not None and has_end and tokens and tokens[-1] != end:
        tokens.append(end)
    return Tokens(np.asarray(tokens, dtype=np.int32))


def encode_all(
    documents: Iterator[Document],
    encoder: Callable[..., Tokens],
    account: RowAccount,
    corpus: str,
    extent: Callable[[int], Extent | None] = lambda _: WHOLE,
) -> Iterator[Tokens]:
    """The tokens of each document; `extent` tells from those used before it how many can be.

    Rows without a document, or that cannot be encoded, are left out as far as the account allows.
    """
    ready, num_used = None, 0
    for document in documents:
        is_ready = document.input_ids is not None
        if document.problem is None and ready is not None and ready != is_ready:
            raise CorpusError(f"The corpus {corpus} mixes token ids with text; use one of them.")
        usable = extent(num_used)
        try:
            tokens = encoder(document, extent=usable)
        except CorpusError as problem:
            account.skip(problem)
            continue
        ready = is_ready
        account.use(document)
        num_used += min(len(tokens.ids), usable.most) if usable else len(tokens.ids)
        yield tokens


@dataclass(frozen=True, slots=True)
class TextReader:
    """A tokenizer, and how its problems are worded."""

    tokenizer: Tokenizer
    name: str  # of what is read
    instead_of_text: str = "give a corpus of input_ids"  # what works if it cannot read texts
    instead_of_chat: str = "give a corpus of text or of input_ids"
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)  # see `ChatFormat`
    where: str = ""  # file and row of what is read

    def tokenize(
        self, text: str, extent: Extent | None = WHOLE, *, add_special_tokens: bool
    ) -> TokenizedPart:
        """The tokens of a text that can be used; all conversations and texts are read so."""

        def ids_of(part: str) -> list[int]:
            with reading_by_tokenizer("read a text", self.instead_of_text, self.where):
                return self.tokenizer.encode(part, add_special_tokens=add_special_tokens)

        return tokenize_part(text, ids_of, extent, self.name)

    def format(
        self, messages: Sequence[Turn], tools: Tools = (), **options: Any
    ) -> RenderedConversation:
        """A conversation in the model's own format, to be read without special tokens.

        Turns take the form that the template takes. A rendering that lacks the text of a turn, or a
        tool, is refused.
        """
        turns, rendered = self._formatted(messages, tools, **options)
        self.check_complete(turns, tools, rendered.text)
        template = chat_template(self.tokenizer, tools)
        # A name that is in a call too says nothing of the tools.
        if tools and isinstance(template, str) and not takes_tools(template, self._variables):
            raise self._incomplete("the tools, as it may know none")
        return rendered

    def format_part(
        self, messages: Sequence[Turn], tools: Tools = (), **options: Any
    ) -> RenderedConversation:
        """The first turns of a conversation; what they lack may come with later ones."""
        return self._formatted(messages, tools, **options)[1]

    def _formatted(
        self, messages: Sequence[Turn], tools: Tools, **options: Any
    ) -> tuple[Sequence[Turn], RenderedConversation]:
        what, instead = "format a conversation", self.instead_of_chat
        with reading_by_tokenizer(what, instead, self.where):
            template = chat_template(self.tokenizer, tools)
        self._check_arguments(template)
        if tools:
            options["tools"] = list(tools)
        with reading_by_tokenizer(what, f"{instead}{self._skipping}", self.where):
            variables = self._variables
            turns = fitted(messages, template, variables) if isinstance(template, str) else messages
            return turns, render(template, turns, variables, keep_nulls=True, **options)

    def check_complete(self, turns: Sequence[Turn], tools: Tools, text: str) -> None:
        """Refuse a rendering without the text of every turn and tool."""
        try:
            missing = missing_text(turns, tools, text)
        except RecursionError as error:
            raise CorpusError(f"{self.name} is nested too deeply.") from error
        if missing:
            raise self._incomplete(missing)

    def _incomplete(self, missing: str) -> CorpusError:
        who = f"{self.where}: the" if self.where else "The"
        return CorpusError(
            f"{who} model's chat template leaves out {missing}; leave it out of the row, "
            f"{self.instead_of_chat}{self._skipping}."
        )

    @property
    def _variables(self) -> Mapping[str, Any]:
        return {**self.tokenizer.special_tokens_map, **self.arguments}

    @property
    def _skipping(self) -> str:
        return ", or skip such rows by --skip-bad-rows" if self.where else ""

    def _check_arguments(self, template: object) -> None:
        """Refuse an argument that the template never names: it would change nothing."""
        for name in self.arguments:
            if not re.search(rf"\b{re.escape(name)}\b", str(template)):
                raise CorpusError(
                    f"The model's chat template has no argument {name!r}; leave it out, or look "
                    "for its name in the template."
                )


class _Talk(NamedTuple):
    """A conversation to be encoded."""

    turns: Sequence[Turn]
    tools: Tools

    def until(self, turn: int) -> "_Talk":
        """The turns before this one."""
        return _Talk(self.turns[:turn], self.tools)


def chat_template(tokenizer: Tokenizer, tools: Tools = ()) -> str:
    """The chat template of conversations with these tools."""
    if tools:
        return tokenizer.get_chat_template(tools=list(tools))
    return tokenizer.get_chat_template()


def _conversation(talk: _Talk, reader: TextReader, count: Count, extent: Extent | None) -> Tokens:
    try:
        template = chat_template(reader.tokenizer, talk.tools)
    except ValueError:
        template = ""  # formatting reports what is wrong
    except NotImplementedError:
        return _by_own_code(talk, reader, count)
    if count == "all":
        part = reader.tokenize(reader.format(*talk).text, extent, add_special_tokens=False)
        return Tokens(np.asarray(part.ids, dtype=np.int32))
    if all(turn.get("role") != "assistant" for turn in talk.turns):
        raise NoResponseError(
            f"{_place(reader)}A conversation has no turn of the assistant to count"
        )
    if extent is not None and extent.from_end:  # where answers begin is known by all before them
        extent = WHOLE
    if isinstance(template, str) and _GENERATION.search(template):  # it may be a number in JSON
        return _by_mask(talk, reader, extent)
    return _by_prefixes(talk, reader, extent)


def _place(reader: TextReader) -> str:
    return f"{reader.where}: " if reader.where else ""


def _by_own_code(talk: _Talk, reader: TextReader, count: Count) -> Tokens:
    """Tokens of mistral-common's tokenizers, which format in code of their own."""
    if count == "response":
        raise NoResponseError("The model's tokenizer formats conversations without a template")
    if reader.arguments:
        raise CorpusError(
            "The model's tokenizer formats conversations without a template, so it takes no "
            "--template-arg; leave it out."
        )
    check_length(sum(len(str(turn.get("content"))) for turn in talk.turns), reader.name)
    with reading_by_tokenizer("format a conversation", reader.instead_of_chat, reader.where):
        options = {"tools": list(talk.tools)} if talk.tools else {}
        encoding = reader.tokenizer.apply_chat_template(
            list(talk.turns), tokenize=True, return_dict=True, **options
        )
        text = reader.tokenizer.decode(encoding["input_ids"])
    reader.check_complete(talk.turns, talk.tools, text)
    return Tokens(np.asarray(encoding["input_ids"], dtype=np.int32))


def _by_mask(talk: _Talk, reader: TextReader, extent: Extent | None) -> Tokens:
    """Answers as the tokens of what the template marks, as `apply_chat_template` finds them."""
    rendered = reader.format(*talk, return_assistant_tokens_mask=True)
    if list(rendered.answers) != sorted(rendered.answers):
        extent = WHOLE
    part = reader.tokenize(rendered.text, extent, add_special_tokens=False)
    counted = np.zeros(len(part.ids), dtype=np.bool_)
    with reading_by_tokenizer(
        "find the answers of a conversation", reader.instead_of_chat, reader.where
    ):
        encoding = reader.tokenizer(part.text, add_special_tokens=False)
        for start, end in rendered.answers:
            # None for a character that is in no token, or beyond the part.
            first = encoding.char_to_token(start)
            if first is None:
                break
            last = encoding.char_to_token(end - 1)
            counted[first : last + 1 if last else None] = True
    return Tokens(np.asarray(part.ids, dtype=np.int32), counted)


def _by_prefixes(talk: _Talk, reader: TextReader, extent: Extent | None) -> Tokens:
    """Answers as the tokens that each assistant turn adds to those before it.

    Exact, because both must be prefixes of the whole, token by token. That fails if the template
    rewrites earlier turns or a token spans two turns.
    """

    def part_of(turns: _Talk, **options: Any) -> TokenizedPart:
        text = reader.format_part(*turns, **options).text
        return reader.tokenize(text, extent, add_special_tokens=False)

    text = reader.format(*talk).text
    conversation = reader.tokenize(text, extent, add_special_tokens=False)
    counted = np.zeros(len(conversation.ids), dtype=np.bool_)
    for turn, message in enumerate(talk.turns):
        if message.get("role") != "assistant":
            continue
        before = part_of(talk.until(turn), add_generation_prompt=True)
        after = part_of(talk.until(turn + 1))
        for prefix in (before, after):
            length = len(prefix.ids)
            if not conversation.is_whole:
                length = min(length, len(conversation.ids))
            if list(prefix.ids[:length]) != list(conversation.ids[:length]):
                raise NoResponseError(
                    f"{_place(reader)}The model's chat template has no {{% generation %}} and "
                    "formats a turn by what follows it, so the tokens of an answer cannot be "
                    "identified exactly"
                )
        if not before.is_whole:  # this answer and all later ones are beyond the usable tokens
            break
        counted[len(before.ids) : len(after.ids) if after.is_whole else None] = True
    return Tokens(np.asarray(conversation.ids, dtype=np.int32), counted)


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
    readable = (document for document in documents if document.problem is None)
    for document in takewhile(lambda candidate: candidate.input_ids is not None, readable):
        ids = document.input_ids
        if ids is not None and len(ids):
            read, largest = read + len(ids), max(largest, int(max(ids)))
        if read >= most:
            break
    return largest
