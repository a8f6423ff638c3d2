"""Sources: where documents come from, in a seeded order, a few at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from analysis.corpora.documents import Document, demo_document
from analysis.corpora.files import DocumentFile, open_documents
from analysis.corpora.spec import CorpusSpec
from analysis.demo.texts import demo_texts

# A permutation of more documents than this would itself be large; numbers are drawn instead.
_MOST_PERMUTED = 1 << 24
_LARGEST_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Documents in a seeded order."""

    drawn: Callable[[int], Iterator[Document]]  # seed -> documents; reads no more than is asked for
    # What stands between documents where all of them are one text; None otherwise. They then come
    # in their own order, whatever the seed.
    join: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # what manifests say of it; plain JSON


def peek(source: Source, seed: int) -> tuple[Document | None, Source]:
    """The first document, if any, and a source that gives it again and can be drawn from once."""
    documents = source.drawn(seed)
    seen = list(islice(documents, 1))
    return next(iter(seen), None), replace(source, drawn=lambda _: chain(seen, documents))


def in_memory(documents: Sequence[Document]) -> Source:
    """Documents that are at hand."""

    def drawn(seed: int) -> Iterator[Document]:
        for number in seeded_order(len(documents), seed):
            yield documents[number]

    return Source(drawn)


def from_file(documents: DocumentFile) -> Source:
    """Documents of a local file, in blocks that grow, so that little is read where little is used.

    The order is the one that the same documents would have in memory.
    """

    def drawn(seed: int) -> Iterator[Document]:
        order, size = seeded_order(len(documents), seed), 16
        while block := list(islice(order, size)):
            yield from documents.read(block)
            size = min(2 * size, _LARGEST_BLOCK)

    return Source(drawn)


def seeded_order(count: int, seed: int) -> Iterator[int]:
    """The numbers below `count` in the order that this seed draws them."""
    rng = np.random.default_rng(seed)
    if count <= _MOST_PERMUTED:
        yield from map(int, rng.permutation(count))
        return
    seen: set[int] = set()
    while len(seen) < count:
        number = int(rng.integers(count))
        if number not in seen:
            seen.add(number)
            yield number


def local_source(spec: CorpusSpec) -> Source:
    """A built-in corpus or a local file."""
    if spec.path is not None:
        return from_file(open_documents(spec.path, spec.fields))
    return in_memory([demo_document(text.prompt, text.response) for text in demo_texts(spec.name)])
