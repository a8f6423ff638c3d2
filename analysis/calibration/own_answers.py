"""Documents whose answers the model writes itself (MoE Pathfinder, section 3.1).

The last answer of a document is replaced by the model's own greedy one; the tokens before it, the
prompt, stay.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from analysis.corpora.account import RowAccount
from analysis.corpora.documents import Document
from analysis.corpora.encoding import NoResponseError, encode, encode_all
from analysis.corpora.sampling import DocumentSelection
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import Source
from analysis.corpora.tokens import ChatFormat, Tokenizer, Tokens
from analysis.errors import CorpusError
from analysis.model.generation import greedy_answers
from analysis.progress import Progress


@dataclass(frozen=True, slots=True)
class Answering:
    """Which documents are answered, and how."""

    corpus: str  # name of the corpus, for messages
    sampling: Sampling  # how much of it is needed
    tokenizer: Tokenizer | None  # of the model; None if the documents are token ids
    selection: DocumentSelection | None = None  # made on the documents with their original answers
    max_new_tokens: int = 256  # longest answer
    batch_size: int = 8  # prompts answered at once

    @property
    def chat(self) -> ChatFormat:
        """How conversations become tokens: the answers are those to replace."""
        return ChatFormat("response", self.sampling.template_args)


def check_answerable(source: Source, first: Document | None, answering: Answering) -> None:
    """Refuse a corpus without answers by its first document, before a model is loaded."""
    if source.join is not None:
        raise CorpusError(
            f"The corpus {answering.corpus} is one text without prompts; use --answers given."
        )
    if first is not None:
        with _needing_answers():
            tokens = encode(first, answering.tokenizer, answering.chat, answering.corpus)
        if answering.selection is None:  # a selection may leave this document out
            _prompt(tokens, answering.corpus)


def own_answers(
    model: PreTrainedModel, source: Source, answering: Answering
) -> Generator[Progress, None, Source]:
    """Documents as token ids with the model's answers, as many as the sampling needs.

    For corpora that `check_answerable` accepts.
    """
    account = RowAccount(source.skips)
    sampling, remaining = answering.sampling, _prompts(source, answering, account)
    documents: list[Document] = []
    tokens = 0
    while tokens < sampling.tokens and (prompts := list(islice(remaining, answering.batch_size))):
        answers = greedy_answers(model, prompts, answering.max_new_tokens)
        for prompt, answer in zip(prompts, answers, strict=True):
            is_answer = (False,) * len(prompt) + (True,) * len(answer)
            documents.append(Document(input_ids=(*prompt, *answer), answer=is_answer))
            length = len(prompt) + len(answer)
            is_dropped = sampling.truncate == "drop" and length > sampling.seq_len
            tokens += 0 if is_dropped else min(length, sampling.seq_len)
        yield Progress("writing answers", min(tokens, sampling.tokens), sampling.tokens, "tokens")
    if not documents:
        account.check_used()
    facts: dict[str, Any] = account.facts | {
        "answers": {"by": "the model, greedy", "max_new_tokens": answering.max_new_tokens}
    }
    if answering.selection is not None:
        facts["select"] = answering.selection.description
    if answering.tokenizer is not None and sampling.template_args:
        facts["template_args"] = dict(sampling.template_args)
    return replace(source, draw=lambda _: iter(documents), facts={**source.facts, **facts})


def answered_sampling(sampling: Sampling, *, was_text: bool) -> Sampling:
    """A sampling that cuts the answered documents, now token ids, as it would have cut the text."""
    if not was_text:
        return sampling
    packing = "concatenate" if sampling.packing == "auto" else sampling.packing
    return replace(sampling, packing=packing, whole=False)


def _prompts(
    source: Source, answering: Answering, account: RowAccount
) -> Iterator[tuple[int, ...]]:
    """The prompt of each document: its tokens before the last answer."""
    documents, corpus = source.draw(answering.sampling.seed), answering.corpus
    encoder = partial(encode, tokenizer=answering.tokenizer, chat=answering.chat, corpus=corpus)
    encoded = encode_all(documents, encoder, account, corpus)
    if answering.selection is not None:
        encoded = answering.selection.choose(encoded, answering.sampling.seed)
    with _needing_answers():
        for document in encoded:
            yield _prompt(document, corpus)


def _prompt(document: Tokens, corpus: str) -> tuple[int, ...]:
    """The tokens before the last answer."""
    counted = document.counted
    answers = np.array([]) if counted is None else np.flatnonzero(counted)
    if not len(answers):
        raise CorpusError(f"A document of the corpus {corpus} has no answer to be replaced.")
    breaks = np.flatnonzero(np.diff(answers) > 1)
    start = int(answers[breaks[-1] + 1] if len(breaks) else answers[0])
    if start == 0:
        raise CorpusError(f"A document of the corpus {corpus} is an answer without a prompt.")
    return tuple(document.ids[:start].tolist())


@contextmanager
def _needing_answers() -> Iterator[None]:
    try:
        yield
    except NoResponseError as error:
        raise CorpusError(
            f"{error.reason}; --answers own needs a corpus of prompts and answers. Use --answers "
            "given otherwise."
        ) from error
