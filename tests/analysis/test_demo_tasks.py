"""The demo's benchmarks: apart from what evaluations draw, with true answers, always the same."""

import json
import re

import numpy as np
import pytest
import yaml

from analysis.demo.generate.draw import GeneratedText
from analysis.demo.held_out import benchmark_texts
from analysis.demo.tasks import LOCAL_TASKS, answer_questions, choice_questions, write_task
from analysis.files.content import document_digest

EXACT = LOCAL_TASKS["demo-math-exact"]


def texts(count=300):
    """Each response is that of three texts, which follow one another."""
    return [
        GeneratedText(f"document {number}", f"Ask {number}:", f" reply {number // 3}", "")
        for number in range(count)
    ]


def test_only_the_true_choice_is_that_of_the_document():
    by_name = {text.name: text for text in texts()}
    rows = choice_questions(texts())
    assert [row["document"] for row in rows] == list(by_name)[:240]
    for row in rows:
        text = by_name[row["document"]]
        assert row["prompt"] == text.prompt
        assert row["choices"][row["label"]] == text.response
        assert len(set(row["choices"])) == 4
        assert {text.response for text in texts()}.issuperset(row["choices"])
    labels = [row["label"] for row in rows]
    # Uniform over four: of 240, each is between a seventh and two fifths.
    shares = np.bincount(labels, minlength=4) / len(labels)
    assert ((shares > 1 / 7) & (shares < 2 / 5)).all()


def test_questions_are_always_the_same():
    assert choice_questions(texts()) == choice_questions(texts())


def test_answers_are_asked_in_the_format_of_the_demo():
    talk = GeneratedText("two", "3 + 4?", "3 + 4 = 7.", "7", earlier=(("1 + 1?", "2."),))
    story = GeneratedText("one", "Where is it?", " There.\n", "There.")
    asked, plain = answer_questions([talk, story])
    assert asked["prompt"] == "<|user|>1 + 1?<|assistant|>2.<|end|><|user|>3 + 4?<|assistant|>"
    assert (plain["prompt"], plain["answer"], asked["answer"]) == ("Where is it?", "There.", "7")
    # Documents are known by what a corpus of them would hold.
    assert asked["document_digest"] == document_digest("3 + 4?")
    assert plain["document_digest"] == document_digest("Where is it? There.")


@pytest.mark.parametrize("task", [task for task in LOCAL_TASKS.values() if "answer" in task.about])
def test_the_true_response_is_matched(task):
    """The pattern finds the answer in what a model should write, as the harness applies it."""
    (step, *_) = task.form["filter_list"][0]["filter"]
    for text in benchmark_texts(task.corpus):
        found = re.findall(step["regex_pattern"], text.response)
        assert found[step.get("group_select", 0)] == text.answer


def test_a_task_is_written_once_unless_it_is_damaged_and_says_its_version(tmp_path):
    first = write_task(EXACT, tmp_path)
    rows, wanted = (
        first.folder / "demo-math-exact.jsonl",
        answer_questions(benchmark_texts("demo-math")),
    )
    written = yaml.safe_load((first.folder / "demo-math-exact.yaml").read_text())
    assert written["metadata"]["version"] == first.version
    assert first.folder.name == f"demo-math-exact-{first.version}"
    assert [json.loads(line) for line in rows.read_text().splitlines()] == wanted
    assert len(wanted) == 240
    before = rows.stat().st_mtime_ns
    assert write_task(EXACT, tmp_path) == first
    assert rows.stat().st_mtime_ns == before
    rows.write_text("{")
    write_task(EXACT, tmp_path)
    assert len(rows.read_text().splitlines()) == 240
