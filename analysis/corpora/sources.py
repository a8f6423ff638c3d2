"""Sources of documents in a seeded order, read a few at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from analysis.corpora.account import RowAccount
from analysis.corpora.documents import Document, demo_document
from analysis.corpora.files import DocumentFile, open_documents
from analysis.corpora.spec import CorpusSpec
from analysis.demo.held_out import EVALUATED, held_out_numbers
from analysis.demo.listing import TRAINING_DOCUMENTS
from analysis.demo.texts import demo_text

# Above this a permutation would itself be large, so numbers are drawn instead.
_MOST_PERMUTED = 1 << 24
_LARGEST_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Documents in a seeded order."""

    # Seed -> documents, those of rows without one with a problem; reads no more than needed.
    draw: Callable[[int], Iterator[Document]]
    # Separator if all documents form one text, drawn in their own order; None otherwise.
    join: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # for manifests; plain JSON
    skips: int = 0  # bad rows that may be left out


def peek(source: Source, seed: int) -> tuple[Document | None, Source]:
    """The first document, if any, and a source that still has it and can be drawn from once.

    Bad rows before it are passed over as far as they may be left out.
    """
    documents, account = source.draw(seed), RowAccount(source.skips)
    prefix: list[Document] = []
    for document in documents:
        prefix.append(document)
        if document.problem is None:
            break
        account.skip(document.problem)
    else:
        account.check_used()
    return prefix[-1] if prefix else None, replace(source, draw=lambda _: chain(prefix, documents))


def in_memory(documents: Sequence[Document]) -> Source:
    """Documents in memory."""

    def draw(seed: int) -> Iterator[Document]:
        for number in seeded_order(len(documents), seed):
            yield documents[number]

    return Source(draw)


def from_file(documents: DocumentFile) -> Source:
    """Documents of a local file, in the order that they would have in memory.

    Read in growing blocks, so that little is read if little is used.
    """

    def draw(seed: int) -> Iterator[Document]:
        order, size = seeded_order(len(documents), seed), 16
        while block := list(islice(order, size)):
            yield from (row.document() for row in documents.rows(block))
            size = min(2 * size, _LARGEST_BLOCK)

    return Source(draw)


def seeded_order(count: int, seed: int) -> Iterator[int]:
    """The numbers below `count` in random order."""
    rng = np.random.default_rng(seed)
    if count <= _MOST_PERMUTED:
        yield from map(int, rng.permutation(count))
        return
    numbers: set[int] = set()
    while len(numbers) < count:
        number = int(rng.integers(count))
        if number not in numbers:
            numbers.add(number)
            yield number


def local_source(spec: CorpusSpec) -> Source:
    """A built-in corpus or a local file."""
    spec.check_content()
    if spec.path is not None:
        return from_file(open_documents(spec.path, spec.fields))
    return demo_source(spec.name)


def demo_source(corpus: str) -> Source:
    """The documents of a demo corpus for training and calibration, each written when read."""

    return _demo_texts(corpus, range(TRAINING_DOCUMENTS))


def fitness_source(corpus: str) -> Source:
    """The held-out documents of a demo corpus that evaluations and searches draw from."""
    return _demo_texts(corpus, held_out_numbers()[corpus][:EVALUATED])


def _demo_texts(corpus: str, numbers: Sequence[int]) -> Source:
    def draw(seed: int) -> Iterator[Document]:
        for place in seeded_order(len(numbers), seed):
            yield demo_document(demo_text(corpus, numbers[place]))

    return Source(draw)
