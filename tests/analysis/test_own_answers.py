"""The model's own answers: what it says alone, token by token; as many as are needed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from calibrations import describe, make_settings
from letters import LetterTokenizer

from analysis.calibration.loading import load_model
from analysis.calibration.own_answers import (
    Answering,
    answered_sampling,
    check_answerable,
    own_answers,
)
from analysis.corpora.documents import Document
from analysis.corpora.sampling import DocumentSelection, tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import Source
from analysis.drain import drain
from analysis.errors import CorpusError
from analysis.model.generation import greedy_answers
from builders import VOCAB

PROMPTS = ([5, 6, 7], [9], [11, 12, 13, 14, 15, 16], [20, 21])
LENGTH = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    described = describe(tmp_path_factory.mktemp("tiny"), "olmoe")
    loaded = load_model(described, make_settings(dtype="float64"))
    loaded.set_experts_implementation("eager")
    return loaded


def alone(model, prompt, count, stop=None):
    """The most probable token, again and again, each time by a forward over all before it."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + count and (len(ids) == len(prompt) or ids[-1] != stop):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def test_together_they_are_answered_as_alone(model):
    found = greedy_answers(model, PROMPTS, LENGTH)
    assert found == [alone(model, prompt, LENGTH) for prompt in PROMPTS]
    assert len({tuple(answer) for answer in found}) > 1


def test_the_end_of_text_ends_an_answer_and_is_part_of_it(model, monkeypatch):
    # It comes to say it in the middle of its first answer.
    stop = alone(model, PROMPTS[0], LENGTH)[2]
    monkeypatch.setattr(model.generation_config, "eos_token_id", stop)
    found = greedy_answers(model, PROMPTS, LENGTH)
    assert found == [alone(model, prompt, LENGTH, stop) for prompt in PROMPTS]
    assert found[0][-1] == stop
    assert len(found[0]) <= 3


def test_what_the_model_has_no_positions_for_is_refused(model):
    positions = model.config.max_position_embeddings
    with pytest.raises(CorpusError, match=f"exceed the model's {positions} positions"):
        greedy_answers(model, [[5, 6]], positions - 1)


def documents(count=6):
    """Rows: three tokens of the prompt, an answer, one more of the prompt, two of an answer."""
    rng = np.random.default_rng(0)
    labels = (False, False, False, True, False, True, True)
    return [
        Document(input_ids=tuple(rng.integers(3, VOCAB, 7).tolist()), answer=labels)
        for _ in range(count)
    ]


def wanted(tokens=1000, **changes):
    sampling = Sampling(tokens, 64, whole=True)
    return replace(Answering("rows", sampling, None, max_new_tokens=4, batch_size=2), **changes)


def source_of(rows, read=None):
    def drawn(seed):
        for row in rows:
            if read is not None:
                read.append(row)
            yield row

    return Source(drawn, facts={"dataset": "rows"})


def test_only_the_last_answer_is_replaced(model):
    rows = documents()
    answered = drain(own_answers(model, source_of(rows), wanted()))
    for row, found in zip(rows, answered.draw(0), strict=True):
        prompt = row.input_ids[:5]
        written = alone(model, prompt, 4)
        assert found.input_ids == (*prompt, *written)
        assert found.answer == (False,) * 5 + (True,) * 4
    assert answered.facts == {
        "dataset": "rows",
        "answers": {"by": "the model, greedy", "max_new_tokens": 4},
    }
    sequences = tokenize(answered, None, Sampling(1000, 64, count="response"), corpus="rows")
    assert sequences.num_counted == 4 * len(rows)
    given = tokenize(source_of(rows), None, Sampling(1000, 64, count="response"), corpus="rows")
    assert sequences.digest != given.digest


def test_no_more_are_answered_than_are_needed(model):
    """Nine tokens a document: three are enough for 20, and prompts come in pairs."""
    read = []
    progress = list(own_answers(model, source_of(documents(), read), wanted(20)))
    assert len(read) == 4
    assert [step.done for step in progress] == [18, 20]


def test_what_is_too_long_and_dropped_does_not_count(model):
    read = []
    sampling = Sampling(20, 8, packing="pad", truncate="drop")
    drain(own_answers(model, source_of(documents(), read), wanted(sampling=sampling)))
    assert len(read) == 6


def test_a_selection_is_made_before(model):
    second = DocumentSelection(lambda encoded, seed: list(encoded)[1:2], "the second")
    rows = documents()
    answered = drain(own_answers(model, source_of(rows), wanted(selection=second)))
    (found,) = answered.draw(0)
    assert found.input_ids[:5] == rows[1].input_ids[:5]
    assert answered.facts["select"] == "the second"


def test_conversations_are_cut_as_text(model):
    user, said = {"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}
    source = source_of([Document(messages=(user, said))])
    tokenizer = LetterTokenizer()
    answered = drain(own_answers(model, source, wanted(tokenizer=tokenizer)))
    (found,) = answered.draw(0)
    prompt = tokenizer.encode("<ab>")
    assert list(found.input_ids) == [*prompt, *alone(model, prompt, 4)]
    cut = answered_sampling(Sampling(10, 5, whole=True), was_text=True)
    assert (cut.packing, cut.whole) == ("concatenate", False)
    rows = Sampling(10, 5, whole=True)
    assert answered_sampling(rows, was_text=False) is rows


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (Document(input_ids=(5, 6)), "without labels"),
        (Document(input_ids=(5, 6), answer=(False, False)), "no answer to be replaced"),
        (Document(input_ids=(5, 6), answer=(True, True)), "an answer without a prompt"),
        (Document(text="abc"), "plain text"),
    ],
)
def test_documents_without_an_answer_are_refused(model, document, message):
    with pytest.raises(CorpusError, match=message):
        drain(own_answers(model, source_of([document]), wanted(tokenizer=LetterTokenizer())))


def test_one_text_is_refused():
    with pytest.raises(CorpusError, match="--answers given"):
        check_answerable(replace(source_of([]), join="\n"), None, wanted())
