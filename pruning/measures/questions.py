"""Questions: prompts of held-out documents whose answers a check tells right from wrong. No torch.

The documents are those that an evaluation draws, in their order, from the first one on. Left out
are those whose question calibration read, or that repeat it in long runs throughout.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from analysis.corpora.account import RowAccount
from analysis.corpora.checks import CHECKS
from analysis.corpora.documents import Document
from analysis.corpora.encoding import TextReader, encode
from analysis.corpora.near_copies import TokenRuns
from analysis.corpora.prompts import document_prompt, question_text
from analysis.corpora.sources import Source
from analysis.corpora.spec import bare_name
from analysis.corpora.tokens import ChatFormat, Tokenizer
from analysis.errors import CorpusError
from analysis.files.content import document_digest
from analysis.files.naming import digest_of
from pruning.measures.sample_settings import QuestionSettings


@dataclass(frozen=True, eq=False)
class Questions:
    """Prompts with the answers that are right, a document each."""

    corpus: str  # its name
    prompts: tuple[tuple[int, ...], ...]  # token ids
    answers: tuple[str, ...]
    settings: QuestionSettings
    tokenizer: Tokenizer
    left_out: int = 0  # documents whose question calibration read

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def shortfall(self) -> str:
        """Why there are fewer questions than asked for; empty if there are not."""
        asked = self.settings.questions
        if len(self) >= asked:
            return ""
        repeated = f", without {self.left_out} that calibration read" if self.left_out else ""
        return f"{bare_name(self.corpus)} gives {len(self)} of {asked} questions{repeated}"

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What changes the answers and how they count; plain JSON, for records."""
        settings = self.settings
        content = {
            "check": settings.check.name,
            "answer_tokens": settings.answer_tokens,
            "stops": list(settings.stops),
        }
        asked = [list(map(list, self.prompts)), list(self.answers)]
        return {**content, "digest": digest_of({**content, "asked": asked})}

    def is_complete(self, ids: list[int]) -> bool:
        """Whether an answer has a text at which it ends."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return any(stop in text for stop in self.settings.stops)

    def is_right(self, number: int, ids: list[int]) -> bool:
        """Whether these new tokens are a right answer to a question, up to the first stop."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        ends = [place for stop in self.settings.stops if (place := text.find(stop)) >= 0]
        return self.settings.check.right(text[: min(ends, default=None)], self.answers[number])


@dataclass(frozen=True, slots=True, eq=False)
class KnownText:
    """What calibration read of a corpus."""

    runs: TokenRuns
    questions: Collection[str]  # digests, see `digests_of`

    def has(self, document: Document, reader: TextReader) -> bool:
        """Whether a document's question is known, or all of its tokens lie in known runs."""
        if _digest(document) in self.questions:
            return True
        if not len(self.runs.hashes):
            return False
        chat = ChatFormat(arguments=reader.arguments)
        return bool(self.runs.covers(encode(document, reader.tokenizer, chat, "").ids).all())


def _digest(document: Document) -> str:
    return document_digest(question_text(document))


def digests_of(documents: Iterator[Document]) -> frozenset[str]:
    """Digests of the questions of documents; rows without a document have none."""
    return frozenset(_digest(document) for document in documents if document.problem is None)


def draw_questions(
    source: Source,
    seed: int,
    known: KnownText,
    settings: QuestionSettings,
    reader: TextReader,
) -> Questions:
    """The questions of the first documents in an order that calibration did not read.

    `reader` is named after the corpus. Rows that cannot be asked are bad rows.
    """
    account = RowAccount(source.skips)
    asked: list[tuple[list[int], str]] = []
    left_out = 0
    for document in source.draw(seed):
        at = TextReader(
            reader.tokenizer,
            document.where or f"A document of the corpus {reader.name}",
            arguments=reader.arguments,
            where=document.where,
        )
        try:
            question = _question(document, at, settings)
            is_known = known.has(document, at)
        except CorpusError as problem:
            account.skip(problem)
            continue
        account.use(document)
        if is_known:
            left_out += 1
            continue
        asked.append(question)
        if len(asked) == settings.questions:
            break
    if not asked:
        account.check_used()
        raise CorpusError(
            f"Calibration read the questions of all {left_out} documents of {reader.name}; check "
            "answers of another corpus."
        )
    prompts = tuple(tuple(ids) for ids, _ in asked)
    answers = tuple(answer for _, answer in asked)
    return Questions(reader.name, prompts, answers, settings, reader.tokenizer, left_out)


def _question(
    document: Document, reader: TextReader, settings: QuestionSettings
) -> tuple[list[int], str]:
    """Prompt and answer of a document; a CorpusError if it has none."""
    if document.problem is not None:
        raise document.problem
    check = settings.check
    if document.expected is None:
        raise CorpusError(
            f"{reader.name} has no answer, which the check {check.name!r} compares with; name its "
            "column behind the corpus, as ,answer=NAME, or skip such rows by --skip-bad-rows."
        )
    if not check.fits(document.expected):
        raise CorpusError(
            f"{reader.name} has an answer without {check.needs}, which the check {check.name!r} "
            f"needs; choose another of {', '.join(CHECKS)}, or skip such rows by --skip-bad-rows."
        )
    ids = document_prompt(document, reader)
    length = len(ids) + settings.answer_tokens
    if settings.context is not None and length > settings.context:
        raise CorpusError(
            f"{reader.name} has a prompt of {len(ids)} tokens, with answers of "
            f"{settings.answer_tokens} more than the model's {settings.context} positions; lower "
            "--answer-tokens, or skip such rows by --skip-bad-rows."
        )
    return ids, document.expected


def known_text(source: Source, seed: int, skipped: int, runs: TokenRuns) -> KnownText:
    """What calibration read: the first documents of an order."""
    return KnownText(runs, digests_of(islice(source.draw(seed), skipped)))
