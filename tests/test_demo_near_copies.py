"""Nothing of the demo's held-out documents was read in training or is read by calibrations."""

import pytest

from analysis.calibration.loading import load_tokenizer
from analysis.corpora.documents import demo_document
from analysis.corpora.encoding import encode
from analysis.corpora.tokens import ChatFormat
from analysis.demo.held_out import held_out_numbers
from analysis.demo.listing import DEMO_CORPORA, TRAINING_DOCUMENTS
from analysis.demo.texts import demo_text
from analysis.model.opening import load_model_index

RUN = 32  # tokens
STEP = 5  # of the training documents, as encoding each of them takes minutes


@pytest.mark.slow  # test_demo_build.py does the same with few documents
@pytest.mark.parametrize("corpus", DEMO_CORPORA)
def test_no_held_out_document_shares_a_long_run_of_tokens_with_training(corpus):
    tokenizer = load_tokenizer(load_model_index("demo"))

    def runs(number):
        document = demo_document(demo_text(corpus, number))
        ids = encode(document, tokenizer, ChatFormat(), corpus).ids
        read, width = ids.tobytes(), ids.itemsize
        return {read[start * width : (start + RUN) * width] for start in range(len(ids) - RUN + 1)}

    held_out = set().union(*map(runs, held_out_numbers()[corpus]))
    assert len(held_out) > 50_000
    numbers = range(0, TRAINING_DOCUMENTS, STEP)
    assert [number for number in numbers if not held_out.isdisjoint(runs(number))] == []
