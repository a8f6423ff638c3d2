"""Results of lm-eval are read as they stand; whatever else is one clear line."""

import json

import pytest

from analysis.errors import StatsError
from pruning.benchmarks import imports
from pruning.benchmarks.imports import parse_results, read_results
from pruning.benchmarks.record import benchmark_settings

# As 0.4.13 writes them, cut to what is read: a group with two tasks, and one with two ways to
# read an answer.
HARNESS = {
    "results": {
        "mmlu": {"name": "mmlu", "alias": "mmlu", "sample_len": 14042, "acc,none": 0.5,
                 "acc_stderr,none": 0.004, "sample_count": {"acc,none": 14042}},
        "mmlu_anatomy": {"alias": " - anatomy", "sample_len": 135, "acc,none": 0.4,
                         "acc_stderr,none": 0.042},
        "gsm8k": {"alias": "gsm8k", "sample_len": 1319,
                  "exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": "N/A",
                  "exact_match,flexible-extract": 0.3,
                  "exact_match_stderr,flexible-extract": 0.0126},
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 12.5,
                     "word_perplexity_stderr,none": "N/A", "byte_perplexity,none": float("nan")},
    },
    "groups": {"mmlu": {"alias": "mmlu", "acc,none": 0.5, "acc_stderr,none": 0.004}},
    "group_subtasks": {"mmlu": ["mmlu_anatomy"], "gsm8k": []},
    "versions": {"mmlu": 2, "mmlu_anatomy": 1.0, "gsm8k": 3.0, "wikitext": 2.0},
    "n-shot": {"mmlu_anatomy": 0, "gsm8k": 5, "wikitext": 0},
    "higher_is_better": {"mmlu": {"acc": True}, "mmlu_anatomy": {"acc": True},
                         "gsm8k": {"exact_match": True}, "wikitext": {"word_perplexity": False}},
    "n-samples": {"mmlu_anatomy": {"original": 135, "effective": 135},
                  "gsm8k": {"original": 1319, "effective": 100}},
    "config": {"model": "hf", "model_args": "pretrained=x", "limit": 100.0,
               "model_dtype": "torch.bfloat16", "batch_size": "8"},
    "lm_eval_version": "0.4.13",
    "chat_template": None,
    "date": 1700000000.5,
}  # fmt: skip


def by_name(found):
    return {(score.task, score.metric): score for score in found.scores}


def test_a_results_file_of_the_harness_is_read_as_it_is():
    found = parse_results(HARNESS, "results.json")
    scores = by_name(found)
    assert set(scores) == {
        ("gsm8k", "exact_match,flexible-extract"),
        ("gsm8k", "exact_match,strict-match"),
        ("mmlu", "acc"),
        ("mmlu_anatomy", "acc"),
        ("wikitext", "word_perplexity"),
    }
    flexible = scores["gsm8k", "exact_match,flexible-extract"]
    assert (flexible.value, flexible.stderr) == (0.3, 0.0126)
    assert (flexible.num_samples, flexible.num_fewshot, flexible.version) == (100, 5, "3.0")
    assert scores["gsm8k", "exact_match,strict-match"].stderr is None
    assert not scores["wikitext", "word_perplexity"].higher_is_better
    assert (scores["mmlu_anatomy", "acc"].group, scores["mmlu", "acc"].group) == ("mmlu", "")
    assert found.settings == benchmark_settings(limit=100.0, dtype="bfloat16")
    assert found.tool_version == "0.4.13"
    # 1,700,000,000 s is 2023-11-14 22:13:20 in UTC.
    assert found.run_facts == {"created_at": "2023-11-14T22:13:20.500+00:00"}


def test_older_files_say_less():
    raw = {"results": {"wikitext": {"alias": "w", "word_perplexity,none": 9.0}}, "config": None}
    found = parse_results(raw, "old.json")
    (score,) = found.scores
    assert not score.higher_is_better
    assert (score.num_samples, score.num_fewshot, score.version) == (None, None, "")
    assert (found.tool_version, found.settings["dtype"], found.run_facts) == ("", "", {})


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"model_args": {"pretrained": "x", "dtype": "float32"}}, "float32"),
        ({"model_args": "pretrained=x, dtype=torch.float16,revision=a=b"}, "float16"),
        # What the model had counts, not what was asked for.
        ({"model_dtype": "torch.bfloat16", "model_args": {"dtype": "auto"}}, "bfloat16"),
        ({"model_args": {"dtype": "auto"}}, ""),
        ({"model_args": "pretrained=x"}, ""),
        ({"model_args": ["dtype"], "model_dtype": 3}, ""),
    ],
)
def test_the_element_type_is_read_wherever_a_file_says_it(config, dtype):
    raw = {"results": {"piqa": {"acc,none": 0.5}}, "config": config}
    assert parse_results(raw, "x.json").settings["dtype"] == dtype


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "its format is unknown"),
        ({}, "its format is unknown"),
        ({"results": 3}, "its 'results' is no object"),
        ({"results": {"arc": 3}}, "the result of 'arc' is no object"),
        ({"results": {"arc": {"acc": 0.5}}}, "no number for any task"),
        ({"results": {"arc": {"acc,none": "much"}}}, "no number for any task"),
        ({"results": {"arc": {"acc,none": 1}}, "versions": []}, "its 'versions' is no object"),
    ],
)
def test_what_is_not_known_is_one_line(raw, message):
    with pytest.raises(StatsError, match=message) as caught:
        parse_results(raw, "x.json")
    assert str(caught.value).startswith("x.json ")
    assert "\n" not in str(caught.value)


def test_files_are_bounded_and_json(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(HARNESS))
    assert read_results(path).scores
    monkeypatch.setattr(imports, "MOST_BYTES", 10)
    with pytest.raises(StatsError, match="larger than"):
        read_results(path)
    monkeypatch.undo()
    for content in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(StatsError, match="is no JSON file"):
            read_results(path)
    with pytest.raises(StatsError, match="No such file"):
        read_results(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("metric", "value", "error", "message"),
    [
        ("acc,none", 7.5, 0.01, "the acc of arc_easy is 7.5, but a share of questions is from 0"),
        ("acc_norm,none", -0.5, 0.01, "the acc_norm of arc_easy is -0.5"),
        ("exact_match,strict-match", 25, 0.01, "the exact_match,strict-match of arc_easy is 25"),
        ("prompt_level_strict_acc,none", 1.5, "N/A", "the prompt_level_strict_acc of arc_easy"),
        ("pass@1,create_test", 60, "N/A", "the pass@1,create_test of arc_easy is 60"),
        ("acc,none", 0.5, -1, "the standard error of acc of arc_easy is negative"),
    ],
)
def test_a_number_that_cannot_be_is_refused(metric, value, error, message):
    name, _, way = metric.partition(",")
    task = {metric: value, f"{name}_stderr,{way}": error}
    with pytest.raises(StatsError) as caught:
        parse_results({"results": {"arc_easy": task}}, "r.json")
    assert str(caught.value).startswith("r.json has an impossible value: The ")
    assert message in str(caught.value).replace("The ", "the ")


def test_percentages_that_the_harness_itself_gives_are_taken_in():
    # SQuAD's own script gives exact and f1 from 0 to 100.
    task = {"f1,none": 81.2, "exact,none": 75.0, "word_perplexity,none": 12.5, "acc,none": 1}
    found = parse_results({"results": {"squadv2": task}}, "r.json")
    assert by_name(found)["squadv2", "f1"].value == 81.2
