"""The demo's benchmarks: apart from what evaluations draw, with true answers, always the same."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
import yaml

from analysis.corpora.sources import in_memory
from analysis.demo.held_out import benchmark_texts, fitness_source
from analysis.demo.tasks import LOCAL_TASKS, answer_questions, choice_questions, write_task
from analysis.demo.texts import DemoText, demo_texts
from analysis.errors import CorpusError

WORDS = [f"word{number}" for number in range(4000)]


def prompts_of(source, seed):
    return [document.messages[0]["content"] for document in source.draw(seed)]


@pytest.mark.parametrize("seed", [42, 7])
def test_no_benchmark_has_a_text_that_an_evaluation_may_draw(seed):
    theirs = set(prompts_of(fitness_source("demo-math"), seed))
    ours = {text.prompt for text in benchmark_texts("demo-math")}
    trained_on = {text.prompt for text in demo_texts("demo-math")}
    assert len(ours) > 300
    assert len(theirs) > 300
    assert not ours & theirs
    assert not (ours | theirs) & trained_on


def test_evaluations_draw_first_what_they_drew_from_the_whole():
    # The order before there were halves; what was evaluated then stays comparable.
    whole = [text.prompt for text in demo_texts("demo-math", held_out=True)]
    before = list(in_memory(whole).draw(42))
    now = prompts_of(fitness_source("demo-math"), 42)
    assert now == before[: len(now)]
    assert len(now) == (len(whole) + 1) // 2


def texts(count=6, words=400, seed=0):
    rng = np.random.default_rng(seed)
    return [
        DemoText(f"document {number}", " ".join(rng.choice(WORDS, words)))
        for number in range(count)
    ]


def test_only_the_true_choice_is_of_the_document():
    by_name = {text.name: text.prompt for text in texts()}
    rows = choice_questions(texts())
    assert len(rows) == len({row["prompt"] for row in rows}) > 50
    for row in rows:
        whole = by_name[row["document"]]
        true = row["choices"][row["label"]]
        assert row["prompt"] + true in whole
        assert true.startswith(" ")
        others = [choice for place, choice in enumerate(row["choices"]) if place != row["label"]]
        sources = [{name for name, text in by_name.items() if other in text} for other in others]
        assert len(others) == 3
        assert row["document"] not in set.union(*sources)
        assert len(set.union(*sources)) == 3


def test_passages_do_not_overlap_and_labels_vary():
    for text in texts(seed=3):
        rows = [row for row in choice_questions(texts(seed=3)) if row["document"] == text.name]
        spans = []
        for row in rows:
            start = text.prompt.index(row["prompt"])
            spans.append((start, start + len(row["prompt"] + row["choices"][row["label"]])))
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    labels = [row["label"] for row in choice_questions(texts())]
    # Uniform over four: of 80 and more, each is between a tenth and a half.
    shares = np.bincount(labels, minlength=4) / len(labels)
    assert ((shares > 0.1) & (shares < 0.5)).all()


def test_too_few_documents_make_no_questions():
    with pytest.raises(CorpusError, match="passages of as many documents"):
        choice_questions(texts(count=3))


def test_answers_are_those_that_the_problem_works_out():
    for row, text in zip(
        answer_questions(benchmark_texts("demo-math")), benchmark_texts("demo-math"), strict=True
    ):
        assert text.response.endswith(f"The answer is {row['answer']}.")
        assert row["prompt"] == f"<|user|>{text.prompt}<|assistant|>"
        if text.prompt.startswith("Solve for x"):
            factor, shift, right = map(int, re.findall(r"\d+", text.prompt))
            assert factor * int(row["answer"]) + shift == right


def test_a_task_is_written_once_and_says_its_version(tmp_path):
    first = write_task(LOCAL_TASKS["demo-math-exact"], tmp_path)
    lines = (first.folder / "demo-math-exact.jsonl").read_text().splitlines()
    written = yaml.safe_load((first.folder / "demo-math-exact.yaml").read_text())
    assert written["metadata"]["version"] == first.version
    assert first.folder.name == f"demo-math-exact-{first.version}"
    wanted = answer_questions(benchmark_texts("demo-math"))
    assert [json.loads(line) for line in lines] == wanted
    before = (first.folder / "demo-math-exact.jsonl").stat().st_mtime_ns
    assert write_task(LOCAL_TASKS["demo-math-exact"], tmp_path) == first
    assert (first.folder / "demo-math-exact.jsonl").stat().st_mtime_ns == before
    # The same everywhere: the digest of these questions is part of shipped results.
    assert first.version == "fe4b16f4d034"


def test_no_more_questions_than_wanted_and_from_all_documents():
    rows = choice_questions(texts(count=12, words=3000))
    assert len(rows) == 240
    assert len({row["document"] for row in rows}) == 12


def test_a_damaged_file_is_written_again(tmp_path):
    first = write_task(LOCAL_TASKS["demo-math-exact"], tmp_path)
    (first.folder / "demo-math-exact.jsonl").write_text("{")
    write_task(LOCAL_TASKS["demo-math-exact"], tmp_path)
    assert len((first.folder / "demo-math-exact.jsonl").read_text().splitlines()) == 322
