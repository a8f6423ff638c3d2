"""The demo's shipped records of hidden states: whole, and one of them made again."""

import numpy as np
import pytest
import torch

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.streams import open_corpus
from analysis.stats.store import SHIPPED_STATS
from pruning.evaluate.drawing import SampleSettings, draw
from pruning.evaluate.variance_record import VarianceStore, variance_overview


@pytest.fixture(scope="module")
def shipped(demo):
    return VarianceStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)


def test_four_criteria_and_the_full_model_on_every_text(shipped):
    table = variance_overview(shipped)
    assert table["full"].notna().all()
    texts = ("demo-code", "demo-math", "demo-prose")
    found = {(row.corpus, row.criterion, row.calibrated_on) for row in table.itertuples()}
    assert found == {
        (text, criterion, text if criterion in ("frequency", "reap") else "")
        for text in texts
        for criterion in ("", "frequency", "reap", "aimer", "random")
    }
    assert set(table.loc[table["criterion"] != "", "removed"]) == {0.5}


def test_the_full_model_on_maths_by_plain_forwards(demo, shipped):
    # Only maths is the same text on every machine; all of its 3360 tokens were drawn.
    corpus = "demo-math"
    (record,) = (r for r in shipped if not r.plan.removed and r.corpus["name"] == corpus)
    tokenizer = load_tokenizer(demo)
    drawn = draw(corpus, open_corpus(corpus), [], SampleSettings(64, 256), lambda: tokenizer)
    assert drawn.sequences.digest == record.corpus["digest"]
    model = load_model(demo, CalibrationSettings(seq_len=256, dtype="float32", device="cpu"))
    layers = [[] for _ in record.variances]
    for ids in drawn.sequences.rows:
        with torch.no_grad():
            tokens = torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]
            states = model(input_ids=tokens, output_hidden_states=True).hidden_states
        # The first is the embedding; the last is behind the final norm.
        for place, state in enumerate(states[1:-1]):
            layers[place].append(state[0].double().numpy().var(axis=1))
    means = [np.concatenate(values).mean() for values in layers[:-1]]
    assert sum(map(len, layers[0])) == record.num_tokens
    np.testing.assert_allclose(record.variances[:-1], means, rtol=1e-4)
