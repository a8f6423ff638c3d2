"""The demo's shipped evaluations: whole, sane, and one of them made again."""

from dataclasses import replace

import numpy as np
import pytest
from shipped import shipped_lines

from analysis.calibration.loading import CalibrationSettings, load_model, load_tokenizer
from analysis.corpora.spec import CorpusWeight
from analysis.corpora.streams import open_corpus
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.files.shipped import SHIPPED_STATS
from analysis.ranking.choose import choose_stats
from analysis.ranking.experts import rank_experts
from analysis.stats.store import StatsStore
from pruning.engine.candidate import MeasureSettings, run_candidate
from pruning.engine.full_side import run_full
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import HELD_OUT, SampleSettings
from pruning.measures.samples import make_samples
from pruning.plan.plan import model_ref
from pruning.plan.selection import select_experts
from pruning.records.evaluation import EvaluationStore, evaluation_table
from pruning.records.quality import losses_at, plan_losses
from pruning.records.quality_by_sample import difference
from pruning.schedules import uniform

CORPORA = {"demo-code", "demo-stories", "demo-math"}
EVALUATED = {*CORPORA, "demo-recipes"}  # nothing was calibrated on recipes
BLEND = "demo-code+demo-math+demo-stories"
SEARCHED = ("frequency", "seer", "ean", "reap")


@pytest.fixture(scope="module")
def shipped(demo):
    """All but the grid, which has the loss alone."""
    records = EvaluationStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)
    own = shipped_lines("evaluations")
    return [record for record in records if record.record_id in own]


@pytest.fixture(scope="module")
def swept(shipped):
    """Those of the sweep; the others are of plans of one size."""
    return [record for record in shipped if record.plan.sparsity or not record.plan.criterion]


def test_every_candidate_was_evaluated_on_every_corpus(shipped, swept):
    table = evaluation_table(swept)
    keys = ["criterion", "calibrated_on", "schedule", "sparsity", "corpus"]
    candidates = {
        *((name, corpus, "uniform") for name in ("reap", "frequency", "man") for corpus in CORPORA),
        *((name, BLEND, "uniform") for name in ("reap", "frequency", "man", "ean", "damage")),
        *((name, "", "uniform") for name in ("aimer", "random")),
        *((f"random:{seed}", "", "uniform") for seed in range(1, 20)),
        *(("ean", BLEND, name) for name in ("global", "global-rescaled")),
    }
    wanted = {(*candidate, share) for candidate in candidates for share in ("25%", "50%", "75%")}
    # The best plan of each search that ships.
    wanted |= {(name, "demo-code", "search", "50%") for name in SEARCHED}
    wanted |= {("", "", "", "")}
    found = table[keys].drop_duplicates().itertuples(index=False, name=None)
    assert set(found) == {(*row, corpus) for row in wanted for corpus in EVALUATED}
    assert {record.corpus["drawn"] for record in shipped} == {HELD_OUT}
    assert {(record.num_samples, record.settings["dtype"]) for record in shipped} == {
        (64, "float32")
    }


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


def test_more_removed_is_worse_on_every_corpus(swept):
    table = evaluation_table(swept)
    esap = table[(table["measure"] == "esap") & (table["criterion"] != "")]
    esap = esap[(esap["schedule"] != "search") & (esap["repaired_on"] == "")]
    keys = ["criterion", "calibrated_on", "schedule", "corpus"]
    by_size = esap.pivot_table(index=keys, columns="sparsity", values="mean")
    assert (by_size["25%"] > by_size["50%"]).all()
    assert (by_size["50%"] > by_size["75%"]).all()
    reap = esap[(esap["criterion"] == "reap") & (esap["sparsity"] == "50%")]
    reap = reap[reap["corpus"].isin(CORPORA)]
    best = reap.loc[reap.groupby("corpus")["mean"].idxmax()]
    assert (best["corpus"] == best["calibrated_on"]).all()


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


def test_the_numbers_are_possible(shipped):
    table = evaluation_table(shipped)
    means = table[table["bits"] == ""].pivot_table(
        index=["evaluation", "criterion"], columns="measure", values="mean"
    )
    whole = means.xs("", level="criterion")
    assert (whole[["esap", "sap", "kl"]] == [1, 1, 0]).all(axis=None)
    pruned = means.drop("", level="criterion")
    assert ((pruned[["esap", "sap"]] > 0) & (pruned[["esap", "sap"]] < 1)).all(axis=None)
    assert (pruned["kl"] > 0).all()
    # SAP is a draw whose expectation is ESAP.
    assert (pruned["sap"] - pruned["esap"]).abs().max() < 0.03


def test_neurons_and_experts_were_evaluated_on_every_corpus(shipped, swept):
    table = evaluation_table([record for record in shipped if record not in swept])
    table = table[table["measure"] == "nll"]
    # 77 of 192 experts, or as many neurons: 77 * 64 of 12,288.
    assert table["removed"].tolist() == pytest.approx([77 / 192] * len(table), abs=1e-12)
    wanted = {
        *(("heapr", f"neurons by {scope}") for scope in ("global", "layer")),
        ("camera-p", "neurons by layer"),
        *((name, "neurons by global") for name in ("neuron-norms", "random")),
        *((name, "uniform") for name in ("heapr", "reap", "random")),
        *((f"random:{seed}", "uniform") for seed in (1, 2, 3, 4)),
        ("heapr", "global"),
    }
    assert set(table["corpus"]) == EVALUATED
    for corpus, rows in table.groupby("corpus"):
        assert set(zip(rows["criterion"], rows["schedule"], strict=True)) == wanted
        assert set(rows["calibrated_on"]) == {"", *CORPORA}
        if corpus not in CORPORA:
            continue
        rows = rows[rows["calibrated_on"].isin(["", corpus])]
        loss = rows.set_index(["criterion", "schedule"])["mean"]
        whole = loss[~loss.index.get_level_values("schedule").str.startswith("neurons")]
        claimed = loss["heapr", "neurons by global"]
        assert claimed < loss["random", "neurons by global"]
        assert claimed < whole.min()
