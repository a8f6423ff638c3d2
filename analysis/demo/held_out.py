"""The demo's held-out texts in two halves: one for evaluations and searches, one for benchmarks.

So benchmarks never use texts that a search has optimised on. The split is fixed.
"""

from collections.abc import Iterator
from functools import cache

from analysis.corpora.documents import Document, demo_document
from analysis.corpora.sources import Source, seeded_order
from analysis.demo.texts import DemoText, demo_texts

_SEED = 42  # the first half of this order is for evaluations


@cache
def _halves(corpus: str) -> tuple[tuple[DemoText, ...], frozenset[int]]:
    """The held-out texts of a corpus, and the numbers of those for evaluations."""
    texts = tuple(demo_texts(corpus, held_out=True))
    order = list(seeded_order(len(texts), _SEED))
    return texts, frozenset(order[: (len(order) + 1) // 2])


def fitness_source(corpus: str) -> Source:
    """The half that evaluations and searches draw from, in seeded order."""

    def documents(seed: int) -> Iterator[Document]:
        texts, numbers = _halves(corpus)
        for number in seeded_order(len(texts), seed):
            if number in numbers:
                yield demo_document(texts[number].prompt, texts[number].response)

    # The half has 16 documents: two sequences of each would not make 64 samples.
    return Source(documents, windows_per_document=None)


def benchmark_texts(corpus: str) -> list[DemoText]:
    """The half that benchmarks use, without duplicates and texts that the other half has too."""
    texts, numbers = _halves(corpus)
    prompts = {texts[number].prompt for number in numbers}
    distinct = []
    for number, text in enumerate(texts):
        if number not in numbers and text.prompt not in prompts:
            prompts.add(text.prompt)
            distinct.append(text)
    return distinct
