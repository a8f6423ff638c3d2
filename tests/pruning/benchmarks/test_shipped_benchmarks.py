"""The demo's shipped benchmarks: whole, precise enough, of today's tasks, one made again."""

import pytest

from analysis.calibration.loading import CalibrationSettings
from analysis.criteria import get_criterion
from analysis.demo.tasks import LOCAL_TASKS, write_task
from analysis.drain import drain
from analysis.ranking.experts import rank_experts
from analysis.stats.choose import CorpusWeight, choose_stats
from analysis.stats.store import SHIPPED_STATS, StatsStore
from pruning.evaluate.benchmarks.candidates import candidate_of_plan
from pruning.evaluate.benchmarks.harness import HarnessSettings
from pruning.evaluate.benchmarks.record import (
    FULL,
    BenchmarkStore,
    candidate_label,
)
from pruning.evaluate.benchmarks.run import Benchmarks, run_benchmarks
from pruning.evaluate.benchmarks.table import benchmark_table
from pruning.evaluate.record import plan_facts
from pruning.plan import keep_all, model_ref, select_experts
from pruning.schedules import uniform

EXACT = LOCAL_TASKS["demo-math-exact"]


@pytest.fixture(scope="module")
def shipped(demo):
    records = BenchmarkStore([SHIPPED_STATS]).records(demo.identity, pytest.fail)
    return {record.candidate: record for record in records}


def test_every_candidate_was_given_all_tasks(shipped):
    wanted = {FULL}
    for share in ("25%", "50%"):
        wanted |= {f"{criterion}, {share}" for criterion in ("aimer", "random")}
        for criterion in ("reap", "frequency", "man"):
            wanted |= {f"{criterion}, demo-{text}, {share}" for text in ("code", "prose", "math")}
    assert wanted == set(shipped)
    for record in shipped.values():
        assert {score.task for score in record.scores} == set(LOCAL_TASKS)
        assert record.candidate == candidate_label(record.plan)
        assert record.settings["limit"] is None


def test_they_are_precise_enough_to_compare(shipped):
    table = benchmark_table(shipped.values())
    assert len(table) == 5 * len(shipped)
    assert (table["stderr"] < 0.04).all()
    assert table["value"].between(0, 1).all()
    # Every one has its full model beside it.
    assert table["full"].notna().all()
    whole = table.loc[table["candidate"] == FULL]
    assert (whole["value"] == whole["full"]).all()
    # Four choices are guessed right one time in four, a number never.
    chance = whole["metric"].map(lambda name: 0.25 if name.startswith("acc") else 0.0)
    assert (whole["value"] > chance + 5 * whole["stderr"]).all()


def test_they_are_of_the_task_as_it_is_built_today(shipped, tmp_path):
    # Code and prose are those of the Python that built them; math is the same everywhere.
    version = write_task(EXACT, tmp_path).version
    assert {record.of_task(EXACT.name)[0].version for record in shipped.values()} == {version}


def test_their_plans_are_those_that_the_shipped_statistics_give(shipped, demo):
    reap = get_criterion("reap")
    for text in ("code", "prose", "math"):
        corpus = CorpusWeight(f"demo-{text}")
        stats = choose_stats(reap, StatsStore(SHIPPED_STATS), demo, [corpus]).stats
        ranking = rank_experts(reap, stats, "applied")
        plan = select_experts(ranking, uniform(demo.layers, "50%"), model=model_ref(demo))
        record = shipped[f"reap, demo-{text}, 50%"]
        assert record.plan_digest == plan.digest
        assert record.plan.bytes_after == plan_facts(plan, demo).bytes_after


@pytest.mark.slow
def test_the_full_model_s_can_be_made_again(shipped, demo, tmp_path):
    written = write_task(EXACT, tmp_path)
    asked = HarnessSettings((EXACT.name,), (written.folder,), batch_size=16)
    settings = CalibrationSettings(seq_len=2, dtype="float32", device="cpu")
    candidates = [(candidate_of_plan(demo, keep_all(demo)), None)]
    store = BenchmarkStore([tmp_path])
    (again,) = drain(run_benchmarks(Benchmarks(demo, candidates, asked, settings, store)))
    (score,), (known,) = again.scores, shipped[FULL].of_task(EXACT.name)
    # Another machine adds in another order, which may turn an answer or two of 322.
    assert score.value == pytest.approx(known.value, abs=0.01)
    assert again.record_id == shipped[FULL].record_id
