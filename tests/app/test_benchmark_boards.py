"""Own benchmark results as boards: what may be compared, ranks, averages and their errors."""

import math

import numpy as np
import pytest
from result_charts import drawn

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.moe_model import ModelRef
from analysis.model.opening import load_model_index
from app.charts.benchmarks import (
    benchmark_scores,
    board_of,
    own_leaderboard,
    sparsities_of,
    ways_of,
)
from app.charts.hidden_states import variance_results
from app.charts.names import FULL
from pruning.benchmarks.record import (
    BenchmarkCandidate,
    BenchmarkScore,
    benchmark_settings,
    candidate_label,
    new_benchmark,
)
from pruning.plan.plan import keep_all
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.records.variances import VarianceStore

MODEL = ModelRef("m", "11" * 32)
WHOLE = 1000


def facts(criterion="", share=0.0, corpora=()):
    return PlanFacts(
        criterion=criterion,
        corpora=corpora,
        schedule="uniform",
        sparsity=f"{share:.0%}",
        granularity="expert",
        removed=share,
        bytes_before=WHOLE,
        bytes_after=round(WHOLE * (1 - 0.8 * share)),
    )


def record_of(plan, scores, **settings):
    label = candidate_label(plan)
    candidate = BenchmarkCandidate(MODEL, MODEL, label, label, plan)
    made = [BenchmarkScore(task, metric, *numbers) for task, metric, *numbers in scores]
    return new_benchmark(candidate, benchmark_settings(**settings)).with_scores(made, "0", {})


@pytest.fixture
def records():
    """Two tasks; at half removed `reap` is best on both, at a quarter each wins one."""
    return [
        record_of(facts(), [("mc", "acc", 0.7, 0.03), ("mc", "acc_norm", 0.8, 0.04),
                            ("math", "exact_match,strict", 0.9, 0.03)]),
        record_of(facts("reap", 0.5, ["code"]), [("mc", "acc", 0.1, 0.03),
                  ("mc", "acc_norm", 0.6, 0.04), ("math", "exact_match,strict", 0.4, 0.03)]),
        record_of(facts("random", 0.5), [("mc", "acc_norm", 0.3, 0.04),
                                         ("math", "exact_match,strict", 0.0, 0.0)]),
        record_of(facts("reap", 0.25, ["code"]), [("mc", "acc_norm", 0.7, 0.04),
                                                  ("math", "exact_match,strict", 0.5, 0.03)]),
        record_of(facts("random", 0.25), [("mc", "acc_norm", 0.5, 0.04),
                                          ("math", "exact_match,strict", 0.6, 0.03)]),
    ]  # fmt: skip


@pytest.fixture
def board(records):
    return board_of(benchmark_scores(records), "lm-eval", 0.5, "m")


def test_one_metric_of_each_task_and_the_full_model_first(board):
    scores = board.scores()
    assert set(scores.index) == {FULL, "REAP, on code, 50%", "Random, 50%"}
    assert scores.index[0] == FULL
    assert scores.loc["REAP, on code, 50%"].to_dict() == {"mc": 0.6, "math": 0.4}


def test_the_leaderboard_by_hand(board):
    table = own_leaderboard(board, {}).set_index("candidate")
    # REAP is first on both tasks, Random second; the original model has no rank and stands last.
    assert table.index.tolist() == ["REAP, on code, 50%", "Random, 50%", FULL]
    assert table["average_rank"].tolist()[:2] == [1, 2]
    assert math.isnan(table.loc[FULL, "average_rank"])
    assert table.loc["REAP, on code, 50%", "average"] == pytest.approx(0.5)
    # sqrt(0.04^2 + 0.03^2) / 2
    assert table.loc["REAP, on code, 50%", "stderr"] == pytest.approx(0.025)
    assert table.loc["REAP, on code, 50%", "memory_saved"] == pytest.approx(0.4)
    weighed = own_leaderboard(board, {"mc": 3.0}).set_index("candidate")
    assert weighed.loc["REAP, on code, 50%", "average"] == pytest.approx((3 * 0.6 + 0.4) / 4)
    # sqrt((3 * 0.04)^2 + 0.03^2) / 4
    error = math.hypot(0.12, 0.03) / 4
    assert weighed.loc["REAP, on code, 50%", "stderr"] == pytest.approx(error)
    alone = own_leaderboard(board, {"mc": 0.0}).set_index("candidate")
    assert alone.loc["Random, 50%", "average"] == 0


def test_all_or_no_right_answers_are_not_taken_as_certain():
    scores = [("all", "acc", 1.0, 0.0), ("none", "acc", 0.0, 0.0), ("some", "acc", 0.5, 0.1)]
    counted = [BenchmarkScore(*score, num_samples=8) for score in scores]
    whole = record_of(facts(), []).with_scores(counted, "0", {})
    unknown = record_of(facts("reap", 0.5), [("all", "acc", 1.0, 0.0), ("some", "acc", 0.5, 0.1)])
    board = board_of(benchmark_scores([whole, unknown]), "lm-eval", None, "m")
    # Wilson's 95% limits of 8 of 8 and 0 of 8 (Newcombe 1998 has the formula): the centre is
    # (p + z^2/2n) / (1 + z^2/n), half the width z sqrt(p (1 - p) / n + z^2/4n^2) / (1 + z^2/n).
    z, n = 1.96, 8
    half = (z * z / (2 * n)) / (1 + z * z / n)
    lower = (1 + z * z / (2 * n)) / (1 + z * z / n) - half
    errors = board.errors().loc[FULL]
    assert errors["some"] == 0.1
    assert 1 - z * errors["all"] == pytest.approx(lower)
    assert lower == pytest.approx(0.6756, abs=1e-4)  # as tables have it
    assert errors["none"] == errors["all"]
    mean = own_leaderboard(board, {}).set_index("candidate")["stderr"]
    assert mean[FULL] == pytest.approx(math.sqrt(2 * errors["all"] ** 2 + 0.01) / 3)
    # Of how many questions is not said: then neither score nor average has an error.
    assert math.isnan(board.errors().loc["REAP, 50%", "all"])
    assert math.isnan(mean["REAP, 50%"])


def test_what_was_run_in_another_way_stands_apart(records):
    few = record_of(facts("reap", 0.5, ["code"]), [("mc", "acc_norm", 1.0, 0.1)], limit=5)
    results = benchmark_scores([*records, few])
    assert ways_of(results) == ["lm-eval", "lm-eval, 5 questions"]
    assert sparsities_of(results, "lm-eval") == [0.25, 0.5]
    usual = board_of(results, "lm-eval", None, "m").scores()
    assert usual.loc["REAP, on code, 50%", "mc"] == 0.6
    assert len(usual) == 5


def test_measures_of_which_less_is_better_do_not_enter_an_average(records):
    perplexity = BenchmarkScore("wiki", "word_perplexity", 12.5, higher_is_better=False)
    part = BenchmarkScore("mmlu_law", "acc", 0.25, 0.01, group="mmlu")
    whole = records[0].with_scores([perplexity, part], "0", {})
    assert set(benchmark_scores([whole, *records[1:]])["benchmark"]) == {"mc", "math"}


def test_a_metric_that_is_not_usual_is_named(records):
    odd = records[0].with_scores([BenchmarkScore("sum", "rouge1", 0.3)], "0", {})
    assert "sum (rouge1)" in set(benchmark_scores([odd])["benchmark"])


def test_results_without_a_plan_are_called_what_they_were_called(records):
    words = BenchmarkCandidate(MODEL, MODEL, "their pruned model", "", PlanFacts())
    taken = new_benchmark(words, benchmark_settings()).with_scores(
        [BenchmarkScore("mc", "acc_norm", 0.65), BenchmarkScore("math", "exact_match", 0.5)],
        "0",
        {},
    )
    board = board_of(benchmark_scores([*records, taken]), "lm-eval", None, "m")
    table = own_leaderboard(board, {}).set_index("candidate")
    assert math.isnan(table.loc["their pruned model", "memory_saved"])
    assert math.isnan(table.loc["their pruned model", "stderr"])


def test_the_chart_is_of_the_same_numbers(records):
    results = benchmark_scores(records)
    dots = drawn("own-capability", results).table
    assert dots["candidate"].tolist() == [FULL, "REAP, on code, 50%", "Random, 50%"]
    # Commands draw what is nearest to half removed.
    assert drawn("own-capability", results, removed=0.5).options == ()
    assert drawn("own-capability", results, removed=0.25).options == ("--at", "0.25")


def test_without_records_there_is_nothing_to_show():
    results = benchmark_scores([])
    assert results.empty
    assert ways_of(results) == []


def test_draws_of_random_are_one_candidate_with_the_means_of_their_scores(records):
    """Of mc 0.3 and 0.5, of math 0 and 0.2 answers are right."""
    other = record_of(
        facts("random:1", 0.5),
        [("mc", "acc_norm", 0.5, 0.06), ("math", "exact_match,strict", 0.2, 0.02)],
    )
    board = board_of(benchmark_scores([*records, other]), "lm-eval", 0.5, "m")
    assert list(board.scores().index) == ["Original model", "REAP, on code, 50%", "Random, 50%"]
    drawn = board.scores().loc["Random, 50%"]
    assert (drawn["mc"], drawn["math"]) == pytest.approx((0.4, 0.1))
    assert board.errors().loc["Random, 50%", "mc"] == pytest.approx(0.05)


def test_hidden_states_of_the_draws_of_random_are_one_candidate():
    records = VarianceStore([SHIPPED_STATS]).records()
    draws = [record for record in records if record.plan.criterion.startswith("random")]
    draws = [draw for draw in draws if draw.corpus["name"] == "demo-code"]
    assert len(draws) == 5
    table = variance_results(records)
    rows = table[(table["corpus"] == "demo-code") & (table["candidate"] == "Random, 50%")]
    wanted = np.mean([draw.variances for draw in draws], axis=0)
    assert rows["variance"].to_list() == pytest.approx(wanted.tolist())


def test_memory_is_saved_of_the_original_and_not_of_its_export(records):
    """The record of the tied demo as it is has the checkpoint's bytes, without a copied head."""
    model = load_model_index("demo")
    nbytes = model.checkpoint.nbytes
    original = plan_facts(keep_all(model), model)
    assert (original.bytes_before, original.bytes_after) == (nbytes, nbytes)
    board = board_of(benchmark_scores(records), "lm-eval", 0.5, "m")
    saved = own_leaderboard(board, {}).set_index("candidate")["memory_saved"]
    assert saved["Random, 50%"] == pytest.approx(0.4)
