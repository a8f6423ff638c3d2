"""How much of what the demo predicts its training texts hold, as its page states it."""

import re
from pathlib import Path

import numpy as np
import pytest

from analysis.corpora import ChatFormat, demo_document
from analysis.corpora.encoding import encode
from analysis.corpora.near_copies import TokenRuns
from analysis.corpora.streams import open_corpus
from analysis.demo.texts import TEXTS, demo_texts
from analysis.model import load_model_index
from pruning.evaluate.drawing import SampleSettings, draw
from pruning.tasks.loading import tokenizer_loader

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "demo-model.md"
SAID = re.search(
    r"(?P<code>[\d.]+)% of the predicted tokens of code, (?P<prose>[\d.]+)% of prose and "
    r"(?P<math>[\d.]+)% of math",
    PAGE.read_text(),
)


@pytest.mark.slow
@pytest.mark.parametrize("corpus", TEXTS)
def test_the_page_says_how_much_of_the_samples_training_has(corpus):
    tokenizer = tokenizer_loader(load_model_index("demo"), trusted=False)
    documents = (demo_document(text.prompt, text.response) for text in demo_texts(corpus))
    training = TokenRuns.of(
        encode(document, tokenizer(), ChatFormat(), corpus).ids for document in documents
    )
    samples = draw(corpus, open_corpus(corpus), [], SampleSettings(), tokenizer).sequences
    counted = samples.counted or [np.ones(len(row), dtype=bool) for row in samples.rows]
    pairs = list(zip(samples.rows, counted, strict=True))
    shared = sum(int((training.covers(row) & counts).sum()) for row, counts in pairs)
    share = shared / sum(int(counts.sum()) for _, counts in pairs)
    assert f"{share:.1%}" == f"{SAID[corpus.removeprefix('demo-')]}%"
