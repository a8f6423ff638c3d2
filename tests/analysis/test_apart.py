"""Test data of benchmarks is told from data for training, and documents from others."""

import json
from hashlib import sha256

import pytest

from analysis.corpora.apart import (
    TEST_SETS,
    benchmark_of,
    is_of_benchmark,
    open_apart,
    task_documents,
)
from analysis.corpora.documents import Document, demo_document
from analysis.corpora.sources import Source, fitness_source, in_memory
from analysis.corpora.spec import parse_corpus
from analysis.demo.held_out import benchmark_texts
from analysis.demo.tasks import LOCAL_TASKS, answer_questions, write_task
from analysis.errors import CorpusError
from analysis.files.content import document_digest

TASK = LOCAL_TASKS["demo-math-exact"]


@pytest.mark.parametrize(
    ("corpus", "benchmark"),
    [
        ("hub:openai/gsm8k,config=main,split=test", "gsm8k"),
        ("hub:openai/gsm8k,config=main,split=train", None),
        ("hub:openai/gsm8k,config=main", None),  # train is the split unless another is named
        ("hub:someone/GSM8K,split=test[:100]", "gsm8k"),
        ("hub:cais/mmlu,config=all,split=auxiliary_train", None),
        ("hub:cais/mmlu,config=all,split=validation", "mmlu"),
        ("hub:allenai/ai2_arc,config=ARC-Easy,split=test", "arc"),
        ("hub:HuggingFaceH4/MATH-500,split=test", "hendrycks_math"),
        ("hub:openai/openai_humaneval,split=test", "humaneval"),
        ("hub:nyu-mll/glue,config=rte,split=validation", "rte"),
        ("hub:nyu-mll/glue,config=mnli,split=validation", None),
        ("hub:allenai/tulu-3-sft-mixture,split=test", None),
    ],
)
def test_data_sets_of_the_hub_are_known_by_name_and_split(corpus, benchmark):
    assert benchmark_of(parse_corpus(corpus).dataset) == benchmark


def test_tasks_are_of_a_benchmark_by_how_they_begin():
    assert is_of_benchmark("arc_challenge", "arc")
    assert is_of_benchmark("arc", "arc")
    assert not is_of_benchmark("archaeology", "arc")


def test_a_test_set_is_refused_before_it_is_fetched_or_named_in_the_facts():
    corpus = "hub:ybisk/piqa,split=validation"
    with pytest.raises(CorpusError, match=r"test data of the benchmark piqa.*--allow-test-set"):
        open_apart(corpus, lambda _: pytest.fail("it was opened"), {})
    source = Source(lambda seed: iter(()), facts={"source": {}})
    facts = open_apart(corpus, lambda _: source, {}, allowed=True).facts
    assert facts == {"source": {}, TEST_SETS: ["piqa"]}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_task(TASK, folder)
    return task_documents([folder, folder / "missing"])


def test_questions_and_their_documents_are_known(known):
    texts = benchmark_texts("demo-math")[:240]
    assert {known[document_digest(text.prompt)] for text in texts} == {TASK.name}
    for row in answer_questions(texts):
        assert known[document_digest(row["prompt"])] == TASK.name


@pytest.mark.parametrize("task", LOCAL_TASKS.values(), ids=LOCAL_TASKS)
def test_only_what_a_benchmark_asks_is_refused_of_the_demo_s_documents(task, tmp_path):
    write_task(task, tmp_path)
    known = task_documents([tmp_path])

    def drawn(source):
        return list(open_apart(task.corpus, lambda _: source, known).draw(1))

    drawn(fitness_source(task.corpus))
    for text in benchmark_texts(task.corpus)[:240]:
        with pytest.raises(CorpusError, match=f"holds a document of the benchmark {task.name}"):
            drawn(in_memory([demo_document(text)]))


@pytest.mark.parametrize("spacing", ["{}", "  {}\n", "{}\n\n"])
def test_a_document_of_a_benchmark_is_refused_where_it_is_drawn(known, spacing):
    text = spacing.format(benchmark_texts("demo-math")[3].prompt).replace(" ", "  ")
    documents = [Document(text="another"), Document(text=text)]
    source = open_apart("mine.txt", lambda _: Source(lambda seed: iter(documents)), known)
    drawn = source.draw(0)
    assert next(drawn).text == "another"
    with pytest.raises(CorpusError, match=r"mine\.txt holds a document of .* demo-math-exact"):
        next(drawn)


@pytest.mark.parametrize("in_parts", [False, True])
def test_turns_of_a_conversation_are_looked_at(known, in_parts):
    content = benchmark_texts("demo-math")[0].prompt
    if in_parts:  # between words, so that a space joins them
        content = [{"type": "text", "text": part} for part in content.split(" ", 1)]
    turns = ({"role": "user", "content": content},)
    source = in_memory([Document(input_ids=(1, 2)), Document(messages=turns)])
    allowed = open_apart("mine.jsonl", lambda _: source, known, allowed=True)
    assert allowed.facts == {TEST_SETS: []}
    assert len(list(allowed.draw(0))) == 2
    assert json.loads(json.dumps(allowed.facts)) == {TEST_SETS: [TASK.name]}


def test_a_digest_is_that_of_the_words_whatever_separates_them():
    spaces = [" ", "\n", "\t\r\n", "\x1c", "\x85", "\u3000"]
    text = "".join(f"{spaces[n % 6]}{n % 7}a{spaces[n % 5]}" for n in range(70_000))
    assert document_digest(text) == sha256(" ".join(text.split()).encode()).hexdigest()
    assert document_digest(" ") == sha256(b"").hexdigest()
