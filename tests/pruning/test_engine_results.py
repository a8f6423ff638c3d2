"""The rows that came out of the engines, and what is said of them."""

import json

from engines.asking import question_of
from engines.checkpoints import ENGINE_CASES, engine_case

from pruning.engine_results import CUTS, ENGINES, RESULTS, causes, read_results, seal
from pruning.engines import Contents, Reads, summary, verdicts


def test_the_rows_are_those_that_were_written_for_the_questions_as_they_are():
    raw = json.loads(RESULTS.read_text())
    assert seal(raw["rows"]) == raw["seal"]
    rows = read_results()
    assert len({row.id for row in rows}) == len(rows)
    assert {row.engine for row in rows} <= set(ENGINES)
    assert {row.case for row in rows} <= set(ENGINE_CASES)
    assert {row.cut for row in rows} <= set(CUTS)
    asked = {name: question_of(engine_case(name)) for name in {row.case for row in rows}}
    old = sorted({row.case for row in rows if row.question != asked[row.case]})
    assert old == [], "run them again: python -m pytest -m engines --write-engine-results"


def test_each_row_works_or_says_why_not():
    for row in read_results():
        assert row.works == (not row.reason), row
        assert (row.equal == row.tokens) or not row.works, row
        assert row.versions, row
        assert row.date, row


def said(engine, **contents):
    found = verdicts(Contents(**{"counts": (3, 3), "removes": "experts", **contents}))
    return {each.engine: each for each in found}[engine]


def test_verdicts_on_engines_are_what_was_measured():
    rows = {row.id: row for row in read_results()}
    row = rows["mlx-olmoe-experts"]
    assert row.works
    found = said("MLX", model_type="olmoe")
    assert found.reads is Reads.TRIED
    assert row.versions in found.reason
    assert row.date in found.reason
    row = rows["mlx-olmoe-experts-per-layer"]
    found = said("MLX", model_type="olmoe", counts=(3, 6))
    assert found.reads is Reads.FAILS
    assert found.reason.startswith(row.reason)
    assert said("MLX", model_type="unheard_of").reads is Reads.NOT_TRIED
    assert said("MLX", model_type="olmoe", quantisation="fp8").reads is Reads.NOT_TRIED
    assert said("SGLang", model_type="olmoe").reads is Reads.NOT_TRIED


def test_a_failure_of_the_engine_on_the_original_is_called_so():
    # MLX has no module for it at all.
    found = said("MLX", model_type="aria_text")
    assert found.reads is Reads.FAILS
    assert "so does the original" in found.reason


def test_a_silent_difference_is_called_so_and_no_number_is_not_printed_as_zero():
    rows = {row.id: row for row in read_results()}
    wrong = rows["vllm-olmoe-tied-neurons-per-layer"]
    assert (wrong.works, wrong.equal, wrong.difference) == (False, 0, None)
    assert wrong.differs
    assert wrong.why.endswith("0 of 64 greedy tokens equal, log-probabilities differ by NaN")
    broken = rows["mlx-olmoe-experts-per-layer"]
    assert not broken.differs
    assert broken.why == broken.reason


def test_a_known_cause_is_of_rows_that_differ_and_is_said():
    caused = {(row.engine, row.case): row for row in read_results() if row.cause}
    assert set(causes()) == set(caused)
    for pair, row in caused.items():
        assert row.why.endswith(causes()[pair])


def test_what_only_an_engine_without_a_gpu_lacks_is_no_failure_of_the_export():
    rows = {row.id: row for row in read_results()}
    assert not rows["vllm-minimax_m2-experts"].works
    found = said("vLLM", model_type="minimax_m2")
    assert found.reads is Reads.NOT_TRIED
    assert found.reason.startswith("it cannot be tried on a CPU: its router there takes sigmoid")
    assert said("llama.cpp", model_type="minimax_m2").reads is Reads.TRIED


def test_the_summary_says_which_way_of_transformers_fails():
    found = verdicts(Contents(counts=(3, 6), model_type="olmoe"))
    loads, fails, *_ = summary(found).split("; ")
    assert loads == "loads in: transformers (trust_remote_code=True), moeprune (load_pruned)"
    assert fails.startswith("fails in: transformers (without trust_remote_code), ")
