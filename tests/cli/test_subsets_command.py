"""subsets: plans by parts of the calibration tokens, against plans by hand of the same sums."""

import pandas as pd
import pytest

from analysis.model.opening import load_model_index
from analysis.stats.shards import stats_of
from analysis.stats.store import stats_store
from app.charts.loss_by_tokens import describe, spread_table
from pruning.plan.plan import PruningPlan, model_ref
from pruning.records.subsets import SUBSET_COLUMNS, SubsetStore


@pytest.fixture
def measure(works, tiny, corpora, stats):
    where = ("--corpus", corpora[1], "--samples", "3", "--stats-dir", stats)
    return lambda *words: works("subsets", tiny, "--sparsity", "50%", *where, *words)


def test_every_part_of_a_run_ranks_a_plan(measure, works, tiny, stats, here):
    measure("--criterion", "ean")
    table = pd.read_csv(here / "subsets.csv")
    model = load_model_index(str(tiny))
    runs = {
        run.manifest.run_id: run for run in stats_store(stats).of_model(model.identity, "routed")
    }
    assert table["calibrated_on"].nunique() == len(runs)
    for _, rows in table.groupby("calibrated_on"):
        # Eight eighths, four quarters, two halves, all of 48 tokens.
        assert rows["tokens"].value_counts().to_dict() == {6: 8, 12: 4, 24: 2, 48: 1}
    quarters = [
        record for record in SubsetStore([stats]).records(model.identity) if record.tokens == 12
    ]
    assert len(quarters) == 4 * len(runs)
    for record in quarters:
        name, _, part = record.plan.runs[0].partition("@")
        first = int(part.partition("from")[2] or 0)
        sums = stats_of(runs[name], range(first, first + 2)).table
        # EAN is the sum of the norms of outputs; ties go to the smaller id.
        ranked = sums.sort_values(["g0_f1", "expert"], ascending=[False, True], kind="stable")
        kept = {
            int(layer): tuple(sorted(rows["expert"][:3].tolist()))
            for layer, rows in ranked.groupby("layer")
        }
        assert record.plan_digest == PruningPlan(model_ref(model), kept).digest
    said = works("plot", "loss-by-tokens", tiny, "--stats-dir", stats, "-o", "curve.html")
    assert "EAN on " in said


def test_a_repair_has_a_curve_of_its_own(measure, moeprune, tiny, corpora, stats):
    blend = [word for corpus in corpora for word in ("--calibrated-on", corpus)]
    measure("--criterion", "ean", "--repair", *blend)
    repaired = [record for record in SubsetStore([stats]).records() if record.plan.repair]
    assert repaired
    assert all(len(record.plan.repaired_on) == 2 and record.tokens for record in repaired)
    # Files are known by their content: where they are, a plan does not say.
    words = ("--criterion", "ean", "--sparsity", "50%", "--corpus", corpora[1], "--repair")
    outcome = moeprune("subsets", tiny, *words, "--stats-dir", stats, "--force")
    assert "name what to repair it on" in outcome.err


def test_a_criterion_without_text_has_no_parts(moeprune, tiny, corpora, stats):
    words = ("--criterion", "random", "--sparsity", "50%", "--corpus", corpora[1])
    outcome = moeprune("subsets", tiny, *words, "--stats-dir", stats)
    assert "random reads no calibration tokens" in outcome.err


def test_the_chart_shows_means_and_ends_of_the_parts():
    rows = [
        ("text", "ean", "a", "", 10, 1.0),
        ("text", "ean", "a", "", 10, 3.0),
        ("text", "ean", "a", "", 20, 1.5),
        ("text", "ean", "a", "a+b", 20, 0.5),
    ]
    table = spread_table(pd.DataFrame(rows, columns=list(SUBSET_COLUMNS)))
    assert table.to_numpy().tolist() == [
        ["text", "EAN on a", 10, 2.0, 1.0, 3.0, 2],
        ["text", "EAN on a", 20, 1.5, 1.5, 1.5, 1],
        ["text", "EAN on a + repair on a+b", 20, 0.5, 0.5, 0.5, 1],
    ]
    assert "EAN on a +2.000 by 10, +1.500 by 20 tokens" in describe(table)
