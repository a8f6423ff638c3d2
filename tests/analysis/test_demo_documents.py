"""The demo's documents: what of them asks, which are written when, and which are held out."""

from itertools import islice

import pytest

from analysis.corpora.documents import Document, demo_document
from analysis.corpora.encoding import TextReader, encode
from analysis.corpora.near_copies import TokenRuns
from analysis.corpora.prompts import document_prompt, question_text
from analysis.corpora.sources import demo_source, fitness_source, seeded_order
from analysis.corpora.spec import parse_corpus
from analysis.corpora.tokens import ChatFormat
from analysis.demo.generate.draw import GeneratedText
from analysis.demo.held_out import benchmark_texts, held_out_numbers
from analysis.demo.listing import DEMO_CORPORA, HELD_OUT_FROM, TRAINING_DOCUMENTS
from analysis.demo.texts import GENERATORS, demo_text
from pruning.measures.questions import KnownText, draw_questions
from pruning.requests.questions import QuestionOptions


def test_plain_text_has_a_prompt_and_a_conversation_has_turns():
    story = GeneratedText("one", "Where is it?", " There.\n", "There.")
    document = Document(text="Where is it? There.\n", prompt="Where is it?", expected="There.")
    assert demo_document(story) == document
    problem = GeneratedText("two", "3 + 4?", "3 + 4 = 7.", "7", earlier=(("1 + 1?", "2."),))
    turns = ("user", "1 + 1?"), ("assistant", "2."), ("user", "3 + 4?"), ("assistant", "3 + 4 = 7.")
    messages = tuple({"role": role, "content": content} for role, content in turns)
    assert demo_document(problem) == Document(messages=messages, expected="7")


@pytest.mark.parametrize("corpus", DEMO_CORPORA)
def test_tokens_of_prompt_and_response_are_those_of_the_document(corpus, tokenizer):
    """So a model is asked with the tokens that it has learned from."""
    reader = TextReader(tokenizer, corpus)
    for number in range(60):
        text = demo_text(corpus, number)
        document = demo_document(text)
        asked = document_prompt(document, reader)
        if text.earlier is None:
            assert asked == tokenizer.encode(text.prompt)
            assert question_text(document).strip() == text.prompt.strip()
        whole = encode(document, tokenizer, ChatFormat(), corpus).ids.tolist()
        assert whole == [*asked, *tokenizer.encode(text.response), tokenizer.eos_token_id]


def test_answers_are_not_cut_off(tokenizer):
    for name, corpus in DEMO_CORPORA.items():
        texts = (demo_text(name, number) for number in held_out_numbers()[name][:300])
        longest = max(len(tokenizer.encode(text.response)) for text in texts)
        assert longest < corpus.answer_tokens == parse_corpus(name).answer_tokens


def test_an_answer_ends_where_a_model_may_go_on(tokenizer):
    """Documents are of several questions, so a model may ask the next one itself."""
    for name, corpus in DEMO_CORPORA.items():
        if corpus.stop is None:
            continue
        settings = QuestionOptions(questions=3).question_settings(name, asked=True)
        reader = TextReader(tokenizer, name)
        known = KnownText(TokenRuns.of([]), ())
        questions = draw_questions(fitness_source(name), 42, known, settings, reader)
        for number, document in enumerate(islice(fitness_source(name).draw(42), 3)):
            response = document.text.removeprefix(document.prompt)
            ids = tokenizer.encode(response + corpus.stop + "And then?")
            assert questions.is_complete(ids)
            assert questions.is_right(number, ids)
            assert not questions.is_right(number, tokenizer.encode(" Nothing.\n"))


def test_documents_are_written_as_they_are_read(monkeypatch):
    written = []

    def note(number, *, held_out):
        written.append((number, held_out))
        return GeneratedText(f"note {number}", f"Note {number}:", " empty.", "empty.")

    monkeypatch.setitem(GENERATORS, "demo-notes", note)

    def drawn(seed):
        return [document.prompt for document in islice(demo_source("demo-notes").draw(seed), 3)]

    first = drawn(42)
    order = list(islice(seeded_order(TRAINING_DOCUMENTS, 42), 3))
    assert written == [(number, False) for number in order]
    assert first == [f"Note {number}:" for number in order] == drawn(42) != drawn(7)
    assert len(written) == 9
    demo_text("demo-notes", HELD_OUT_FROM)
    assert written[-1] == (HELD_OUT_FROM, True)


def questions(text):
    return {text.prompt, *(prompt for prompt, _ in text.earlier or ())}


@pytest.mark.parametrize("corpus", DEMO_CORPORA)
def test_of_the_held_out_documents_2000_are_for_evaluations_and_500_for_benchmarks(corpus):
    """No benchmark asks what an evaluation or another text asks."""
    numbers = held_out_numbers()[corpus]
    assert len(set(numbers)) == len(numbers) == 2500
    assert min(numbers) >= HELD_OUT_FROM > TRAINING_DOCUMENTS
    texts = [demo_text(corpus, number) for number in numbers]
    wanted = [demo_document(texts[place]) for place in seeded_order(2000, 7)]
    assert list(fitness_source(corpus).draw(7)) == wanted
    benchmarked = benchmark_texts(corpus)
    names = {text.name for text in benchmarked}
    assert len(names) == len(benchmarked) > 400
    assert names <= {text.name for text in texts[2000:]}
    asked = set().union(*map(questions, texts[:2000]))
    for text in benchmarked:
        assert asked.isdisjoint(questions(text))
        asked |= questions(text)
