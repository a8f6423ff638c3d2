"""The demo's held-out texts in two parts: for evaluations and searches, and for benchmarks.

So benchmarks never use texts that a search has optimised on. Which documents are held out is
written beside the model, as it depends on its tokenizer: none of them shares a run of 32 tokens
with a document for training and calibration.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from analysis.demo.generate.draw import GeneratedText
from analysis.demo.texts import demo_text
from analysis.files.shipped import DEMO_CHECKPOINT

HELD_OUT_FILE: Final = "demo_held_out.json"  # corpus -> numbers of documents
EVALUATED: Final = 2_000  # documents of a corpus for evaluations; those that follow: benchmarks
BENCHMARKED: Final = 500


@cache
def held_out_numbers(checkpoint: Path = DEMO_CHECKPOINT) -> dict[str, tuple[int, ...]]:
    """Corpus -> the numbers of its held-out documents, those for evaluations first."""
    numbers = json.loads((checkpoint / HELD_OUT_FILE).read_bytes())
    return {corpus: tuple(number) for corpus, number in numbers.items()}


def benchmark_texts(corpus: str) -> Sequence[GeneratedText]:
    """The part that benchmarks use, without texts that ask what one before them asks.

    Small problems are few enough to be drawn twice.
    """
    texts = [demo_text(corpus, number) for number in held_out_numbers()[corpus]]
    asked = {prompt for text in texts[:EVALUATED] for prompt in _prompts(text)}
    distinct = []
    for text in texts[EVALUATED:]:
        if asked.isdisjoint(_prompts(text)):
            distinct.append(text)
            asked.update(_prompts(text))
    return distinct


def _prompts(text: GeneratedText) -> tuple[str, ...]:
    """All that a text asks, in earlier turns too."""
    return (*(prompt for prompt, _ in text.earlier or ()), text.prompt)
