"""The demo's shipped evaluations: whole, sane, and one of them made again."""

import pytest

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.streams import open_corpus
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.ranking.experts import rank_experts
from analysis.stats.choose import CorpusWeight, choose_stats
from analysis.stats.store import SHIPPED_STATS, StatsStore
from pruning.evaluate.candidate import MeasureSettings, run_candidate
from pruning.evaluate.drawing import HELD_OUT, SampleSettings, draw
from pruning.evaluate.full_side import run_full
from pruning.evaluate.record import EvaluationStore, evaluation_table
from pruning.evaluate.samples import make_samples
from pruning.plan import model_ref, select_experts
from pruning.schedules import uniform

CORPORA = {"demo-code", "demo-prose", "demo-math"}


@pytest.fixture(scope="module")
def shipped(demo):
    return EvaluationStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)


@pytest.fixture(scope="module")
def swept(shipped):
    """Those of the sweep; the others are of plans of one size."""
    return [each for each in shipped if each.plan.sparsity or not each.plan.criterion]


def test_every_criterion_was_evaluated_on_every_text(shipped, swept):
    table = evaluation_table(swept)
    found = set(
        table[["criterion", "calibrated_on", "sparsity", "corpus"]].itertuples(
            index=False, name=None
        )
    )
    wanted = {
        (criterion, calibrated, sparsity, corpus)
        for corpus in CORPORA
        for sparsity in ("25%", "50%", "75%")
        for criterion, texts in (
            *((name, CORPORA) for name in ("reap", "frequency", "man")),
            *((name, {""}) for name in ("aimer", "random")),
        )
        for calibrated in texts
    }
    assert found == wanted | {("", "", "", corpus) for corpus in CORPORA}
    assert {record.corpus["drawn"] for record in shipped} == {HELD_OUT}


def test_more_removed_is_worse_on_every_corpus(swept):
    table = evaluation_table(swept)
    esap = table[(table["measure"] == "esap") & (table["criterion"] != "")]
    keys = ["criterion", "calibrated_on", "corpus"]
    by_size = esap.pivot_table(index=keys, columns="sparsity", values="mean")
    assert (by_size["25%"] > by_size["50%"]).all()
    assert (by_size["50%"] > by_size["75%"]).all()
    reap = esap[(esap["criterion"] == "reap") & (esap["sparsity"] == "50%")]
    best = reap.loc[reap.groupby("corpus")["mean"].idxmax()]
    assert (best["corpus"] == best["calibrated_on"]).all()


def test_one_of_them_can_be_made_again(shipped, demo):
    # Only demo-math is the same text on every Python.
    (record,) = (
        each
        for each in shipped
        if each.plan.criterion == "reap"
        and (each.plan.corpora, each.plan.sparsity) == (("demo-math",), "50%")
        and each.corpus["name"] == "demo-math"
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
