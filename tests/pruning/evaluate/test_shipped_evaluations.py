"""The demo's shipped evaluations: intervals by another bootstrap, and one of them made again.

That they are all there, `tests/test_demo_records.py` says.
"""

from dataclasses import replace

import numpy as np
import pytest
from shipped import shipped_lines

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.streams import open_corpus
from analysis.corpora.weights import CorpusWeight
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.files.shipped import SHIPPED_STATS
from analysis.ranking.choose import choose_stats
from analysis.ranking.experts import rank_experts
from analysis.stats.store import StatsStore
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.engine.full_side import run_full
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import SampleSettings
from pruning.measures.samples import make_samples
from pruning.plan.plan import model_ref
from pruning.plan.selection import select_experts
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import losses_at, plan_losses
from pruning.records.quality_by_sample import difference
from pruning.schedules import uniform


@pytest.fixture(scope="module")
def shipped(demo):
    """All but the grid, which has the loss alone."""
    records = EvaluationStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)
    own = shipped_lines("evaluations")
    return [record for record in records if record.record_id in own]


def in_documents(loss, documents):
    """The same losses of samples, as if the samples were of these documents."""
    samples = {
        corpus: sample.model_copy(update={"documents": documents[corpus]})
        for corpus, sample in loss.samples.items()
    }
    return replace(loss, samples=samples)


@pytest.mark.parametrize("windows", [1, 8])
def test_the_interval_of_a_difference_is_that_of_an_audit_by_documents(shipped, windows):
    """REAP above EAN at half of the experts, by another bootstrap: weights of documents, drawn.

    Every window that ships is of a document of its own. So it is asked also as if those that
    differ alike were eight of a document: by windows the interval would be the same.
    """
    losses, gaps = plan_losses(shipped), []
    reap, ean = (
        next(
            loss
            for loss in losses_at(losses, 0.5)
            if (loss.facts.criterion, loss.facts.schedule) == (name, "uniform")
            and len(loss.facts.corpora) == 3
            and not loss.is_repaired
        )
        for name in ("reap", "ean")
    )
    assert {len(set(sample.documents)) for sample in reap.samples.values()} == {64}
    documents = {
        corpus: tuple((np.argsort(np.argsort(added)) // windows).tolist())
        for corpus, added in (
            (name, sample.means - ean.samples[name].means) for name, sample in reap.samples.items()
        )
    }
    reap, ean = (in_documents(loss, documents) for loss in (reap, ean))
    rng = np.random.default_rng(1)
    for corpus, losses_of in reap.samples.items():
        added = losses_of.means - ean.samples[corpus].means
        kinds = np.array(losses_of.documents)[:, None] == np.unique(losses_of.documents)
        weights = rng.multinomial(kinds.shape[1], np.ones(kinds.shape[1]) / kinds.shape[1], 20_000)
        gaps.append((weights @ (added @ kinds)) / (weights @ kinds.sum(axis=0)))
    low, high = np.percentile(np.mean(gaps, axis=0), [2.5, 97.5])
    found = difference(reap, ean)
    width = high - low
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * width)
    # Eight that are alike tell as much as one: the square root of 8 times as wide.
    assert width == pytest.approx(0.031 * windows**0.5, abs=0.003)


def test_one_of_them_can_be_made_again(shipped, demo):
    (record,) = (
        evaluation
        for evaluation in shipped
        if evaluation.plan.criterion == "reap"
        and (evaluation.plan.corpora, evaluation.plan.sparsity) == (("demo-math",), "50%")
        and evaluation.corpus["name"] == "demo-math"
    )
    reap, store = get_criterion("reap"), StatsStore(SHIPPED_STATS)
    stats = choose_stats(reap, store, demo, [CorpusWeight("demo-math")]).stats
    ranking = rank_experts(reap, stats, "applied")
    plan = select_experts(ranking, uniform(demo.layers, "50%"), model=model_ref(demo))
    assert plan.digest == record.plan_digest
    source, tokenizer = open_corpus("demo-math"), load_tokenizer(demo)
    drawn = draw("demo-math", source, [], SampleSettings(), lambda: tokenizer)
    assert drawn.sequences.digest == record.corpus["digest"]
    loaded = load_model(demo, CalibrationSettings(seq_len=256, dtype="float32", device="cpu"))
    side = drain(run_full(loaded, make_samples(drawn.sequences)))
    again = drain(run_candidate(loaded, demo.family, plan, side, MeasureSettings(("esap", "nll"))))
    assert again.num_tokens == record.num_tokens
    for name in ("esap", "nll"):
        # Another machine adds in another order; an expert may then be chosen for another.
        assert again.metrics[name].mean == pytest.approx(record.metrics[name].mean, abs=2e-3)
