"""Variance of hidden states against plain forwards; its records, also the shipped ones."""

import numpy as np
import pytest
import torch
from nonuniform_cases import keeps_of, plan_of

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.streams import open_corpus
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.families.listing import FAMILIES
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.moe_model import ModelRef
from analysis.model.opening import load_model_index
from builders import tiny_checkpoint
from builders.tokens import answers
from families.configs import CASES
from families.physical import physically_pruned
from families.tiny_models import tiny_model
from pruning.engine.hidden_states import run_variance, sample_tokens
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import SampleSettings
from pruning.measures.samples import make_samples
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, model_ref
from pruning.records.variances import (
    VarianceRecord,
    VarianceStore,
    variance_overview,
    variance_table,
)

MEASURED = [case for case in CASES if case.name in ("olmoe", "jamba")]


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_variance_is_the_mean_over_tokens(case):
    model = tiny_model(case)
    samples = make_samples(answers(), batch_size=3)
    chosen = sample_tokens(samples)
    plan = plan_of(ModelRef("tiny", "00" * 32), case, keeps_of(case))
    pruned = physically_pruned(model, case, plan.kept)
    for candidate, plain in ((None, model), (plan, pruned)):
        found = drain(run_variance(model, FAMILIES[case.model_type], candidate, samples, chosen))
        wanted = []
        for ids in samples.sequences.rows:
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            with torch.no_grad():
                states = plain(input_ids=tokens, output_hidden_states=True).hidden_states
            # The first is the embedding; the last is behind the final norm, so it is left out.
            wanted.append([state[0].double().numpy().var(axis=1) for state in states[1:-1]])
        means = [np.concatenate(layer).mean() for layer in zip(*wanted, strict=True)]
        np.testing.assert_allclose(found[:-1], means, rtol=1e-5)
        assert len(found) == model.config.num_hidden_layers
    assert "forward" not in model.model.layers[0].__dict__


def test_tokens_are_drawn_without_replacement():
    samples = make_samples(answers((9, 5, 12, 7)), batch_size=2)
    masks = [batch.tokens.mask for batch in samples.batches()]
    for count, wanted in ((10, 10), (33, 33), (1000, 33)):
        chosen = sample_tokens(samples, count)
        assert sum(int(choice.sum()) for choice in chosen) == wanted
        assert all((choice <= mask).all() for choice, mask in zip(chosen, masks, strict=True))
    again, other = sample_tokens(samples, 10), sample_tokens(samples, 10, seed=1)
    assert all((a == b).all() for a, b in zip(again, sample_tokens(samples, 10), strict=True))
    assert any((a != b).any() for a, b in zip(again, other, strict=True))


CORPUS = {"name": "text.jsonl", "digest": "d" * 64, "num_documents": None}
SETTINGS = {"dtype": "float32", "seed": 42, "tokens": 4096}


@pytest.fixture
def records(tmp_path):
    """Of a model of two decoder layers, one of them dense: unpruned, and half of its experts."""
    tiny_checkpoint(tmp_path / "model", "qwen3_moe")
    model = load_model_index(str(tmp_path / "model"))
    half = {layer.index: (0, 1, 2) for layer in model.layers}
    plans = (keep_all(model), fit_plan(PruningPlan(model_ref(model), half), model))
    numbers = ([1.0, 4.0, 2.0, 8.0], [0.5, 4.0, 1.0, 16.0])
    return [
        VarianceRecord.new(model, plan, CORPUS, SETTINGS).with_results(found, 33, {"device": "cpu"})
        for plan, found in zip(plans, numbers, strict=True)
    ]


def test_the_tables_have_a_row_for_each_layer(records):
    table = variance_table(dict(zip(("full", "half"), records, strict=True)))
    assert table[["model", "layer", "variance"]].values.tolist()[3:6] == [
        ["full", 3, 8.0],
        ["half", 0, 0.5],
        ["half", 1, 4.0],
    ]
    overview = variance_overview(records)
    half = overview[overview["removed"] > 0]
    assert half["full"].tolist() == [1, 4, 2, 8]
    assert set(half["removed"]) == {0.5}
    # What was computed otherwise is not held against this original model.
    other = records[1].model_copy(update={"settings": {**SETTINGS, "dtype": "bfloat16"}})
    assert variance_overview([records[0], other]).tail(4)["full"].isna().all()


def test_a_variance_that_is_no_number_is_refused(records):
    with pytest.raises(StatsError, match="try --dtype bfloat16 or float32"):
        records[0].with_results([1.0, float("inf")], 33, {})


@pytest.fixture(scope="module")
def shipped(demo):
    return VarianceStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)


@pytest.mark.slow
def test_the_full_model_on_maths_by_plain_forwards(demo, shipped):
    corpus = "demo-math"
    (record,) = (r for r in shipped if not r.plan.removed and r.corpus["name"] == corpus)
    tokenizer = load_tokenizer(demo)
    drawn = draw(corpus, open_corpus(corpus), [], SampleSettings(64, 256), lambda: tokenizer)
    assert drawn.sequences.digest == record.corpus["digest"]
    model = load_model(demo, CalibrationSettings(seq_len=256, dtype="float32", device="cpu"))
    layers = [[] for _ in record.variances]
    (chosen,) = sample_tokens(make_samples(drawn.sequences, 64), record.num_tokens)
    for ids, mask in zip(drawn.sequences.rows, chosen, strict=True):
        with torch.no_grad():
            tokens = torch.from_numpy(np.asarray(ids, dtype=np.int64))[None]
            states = model(input_ids=tokens, output_hidden_states=True).hidden_states
        # The first is the embedding; the last is behind the final norm.
        for place, state in enumerate(states[1:-1]):
            layers[place].append(state[0].double().numpy().var(axis=1)[mask[: len(ids)]])
    means = [np.concatenate(values).mean() for values in layers[:-1]]
    assert sum(map(len, layers[0])) == record.num_tokens
    np.testing.assert_allclose(record.variances[:-1], means, rtol=1e-4)
