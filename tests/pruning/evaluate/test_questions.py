"""Which documents are asked: those that calibration did not read, each with an answer to check."""

import json
from dataclasses import replace
from itertools import islice

import pytest
from letters import LetterTokenizer

from analysis.calibration.loading import load_tokenizer
from analysis.corpora.checks import CHECKS
from analysis.corpora.encoding import TextReader
from analysis.corpora.prompts import document_prompt
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import fitness_source, seeded_order
from analysis.corpora.spec import corpus_name
from analysis.corpora.streams import open_corpus
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import CorpusError
from analysis.model.opening import load_model_index
from builders.statistics import run_on
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import BEYOND, QuestionSettings, SampleSettings

ASKED = QuestionSettings(CHECKS["contains"], questions=5, answer_tokens=4)


def word(number):
    """A word of letters that no other number has."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return f"{path},answer=sum,check=contains"


def row_of(number, **more):
    return {"prompt": f"q{word(number)}", "response": f"r{word(number)}", "sum": number} | more


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "rows.jsonl", map(row_of, range(40)))


def calibrated(corpus, tokens=60):
    """The manifest of a calibration on a corpus, by another name of the same file."""
    name = corpus.partition(",")[0]
    documents, sampling = open_corpus(name), Sampling(tokens, 10)
    return run_on(tokenize(documents, LetterTokenizer(), sampling, corpus=corpus_name(name)))


def drawn_from(corpus, runs=(), skips=0, **changes):
    source = replace(open_corpus(corpus), skips=skips)
    settings = SampleSettings(3, 32, questions=replace(ASKED, **changes))
    return draw(corpus, source, runs, settings, LetterTokenizer)


def asked(drawn):
    return [int(answer) for answer in drawn.questions.answers]


def test_questions_follow_the_documents_that_calibration_read(corpus):
    order = list(seeded_order(40, 42))
    fresh = drawn_from(corpus)
    assert asked(fresh) == order[:5]
    tokens = LetterTokenizer().encode(f"<q{word(order[0])}>", add_special_tokens=False)
    assert list(fresh.questions.prompts[0]) == tokens
    manifest = calibrated(corpus)
    read = manifest.corpora[0].num_documents
    drawn = drawn_from(corpus, [manifest])
    assert (drawn.facts["drawn"], drawn.facts["skipped"]) == (BEYOND, read)
    assert asked(drawn) == order[read : read + 5]
    # The loss is that of the corpus without a check.
    name = corpus.partition(",")[0]
    plain = draw(name, open_corpus(name), [manifest], SampleSettings(3, 32), LetterTokenizer)
    assert plain.sequences.digest == drawn.sequences.digest
    assert plain.corpus == drawn.corpus


def test_a_question_that_calibration_read_elsewhere_is_left_out(tmp_path):
    order = list(seeded_order(40, 42))
    rows = [row_of(number) for number in range(40)]
    corpus = write(tmp_path / "rows.jsonl", rows)
    read = calibrated(corpus).corpora[0].num_documents
    # The next document asks what the first one asked, and has another answer.
    rows[order[read]] = {**rows[order[0]], "response": "other", "sum": order[read]}
    corpus = write(tmp_path / "rows.jsonl", rows)
    drawn = drawn_from(corpus, [calibrated(corpus)])
    assert asked(drawn) == order[read + 1 : read + 6]
    assert drawn.questions.left_out == 1


def test_fewer_questions_than_asked_for_are_said(corpus):
    assert drawn_from(corpus).questions.shortfall == ""
    few = drawn_from(corpus, questions=64).questions
    assert (len(few), few.shortfall) == (40, "rows.jsonl gives 40 of 64 questions")


@pytest.mark.parametrize(
    ("change", "changes", "problem"),
    [
        ({"sum": None}, {}, r"has no answer.*,answer=NAME.*--skip-bad-rows"),
        ({"sum": " "}, {}, "an answer without text"),
        ({"sum": "none"}, {"check": CHECKS["number"]}, "an answer without a number"),
        ({"prompt": "q" * 20}, {"context": 10}, "22 tokens, with answers of 4 more than .* 10"),
        ({"sum": [1]}, {}, "sum must be a text or a number"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named_or_skipped(tmp_path, change, changes, problem):
    order = list(seeded_order(40, 42))
    bad = order[2]
    rows = [row_of(number, **(change if number == bad else {})) for number in range(40)]
    corpus = write(tmp_path / "rows.jsonl", rows)
    where = rf"^rows\.jsonl, line {bad + 1}\b.*"
    with pytest.raises(CorpusError, match=where + problem):
        drawn_from(corpus, **changes)
    skipped = drawn_from(corpus, skips=1, **changes)
    assert asked(skipped) == [number for number in order[:6] if number != bad]


def test_token_ids_cannot_be_asked(tmp_path):
    corpus = write(tmp_path / "ids.jsonl", [{"input_ids": [1, 2, 3], "sum": 4}] * 3)
    with pytest.raises(CorpusError, match=r"ids\.jsonl, line \d is token ids"):
        drawn_from(corpus)


@pytest.mark.parametrize("corpus", DEMO_CORPORA)
def test_the_demo_asks_its_held_out_documents(corpus):
    asked = QuestionSettings(CHECKS[DEMO_CORPORA[corpus].check], 5)
    tokenizer = load_tokenizer(load_model_index("demo"))
    settings = SampleSettings(3, 64, questions=asked)
    drawn = draw(corpus, open_corpus(corpus), (), settings, lambda: tokenizer)
    documents = list(islice(fitness_source(corpus).draw(42), 5))
    assert list(drawn.questions.answers) == [document.expected for document in documents]
    reader = TextReader(tokenizer, corpus)
    prompts = [document_prompt(document, reader) for document in documents]
    assert [list(prompt) for prompt in drawn.questions.prompts] == prompts
