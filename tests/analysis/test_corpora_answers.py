"""Counting the tokens of answers only: exact, or refused."""

import numpy as np
import pytest
from letters import ASSISTANT, USER, LetterTokenizer, as_lists, sequences_of
from transformers import BatchEncoding

from analysis.corpora.documents import Document
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.errors import CorpusError
from tools.demo.tokenizer import train_tokenizer

TALK = (
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
    {"role": "assistant", "content": "ef"},
)
# The same conversation format with and without the mark that transformers fills the mask from.
MARKED = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% else %}<|assistant|>{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["the cat sat on the mat", "how many cats sat? two."])


def counted_text(tokenizer, template, messages):
    """The text of the tokens that count, and of all."""
    tokenizer.chat_template = template
    sampling = Sampling(64, 64, packing="pad", count="response")
    sequences = tokenize([Document(messages=messages)], tokenizer, sampling, corpus="chat")
    (row,), (counted,) = sequences.rows, sequences.counted
    return tokenizer.decode(row[counted]), tokenizer.decode(row)


def test_answers_count_and_what_marks_their_speaker_does_not():
    sequences = sequences_of([Document(messages=TALK)], 10, 10, count="response")
    assert as_lists(sequences) == [[USER, 1, 2, ASSISTANT, 3, USER, 4, ASSISTANT, 5, 6]]
    assert np.flatnonzero(sequences.counted[0]).tolist() == [4, 8, 9]
    assert (sequences.num_tokens, sequences.num_counted) == (10, 3)


@pytest.mark.parametrize("template", [MARKED, UNMARKED], ids=["generation", "prefixes"])
def test_template_mark_and_prefixes_give_the_same_tokens(tokenizer, template):
    answers, whole = counted_text(tokenizer, template, TALK)
    assert whole == "<|user|>ab<|assistant|>c<|end|><|user|>d<|assistant|>ef<|end|>"
    assert answers == "c<|end|>ef<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    # As those of reasoning models, which leave out what was thought in turns before the last.
    forgetful = UNMARKED.replace(
        "{{ m['content'] }}<|end|>", "{% if loop.last %}so {% endif %}{{ m['content'] }}<|end|>"
    )
    assert forgetful != UNMARKED
    with pytest.raises(CorpusError, match=r"formats a turn by what follows it.*--count all"):
        counted_text(tokenizer, forgetful, TALK)


def test_a_slow_tokenizer_without_offsets_is_refused_in_one_line():
    class Slow(LetterTokenizer):
        def get_chat_template(self):
            turn = "{% generation %}{{ m.content }}{% endgeneration %}"
            return f"{{% for m in messages %}}{turn}{{% endfor %}}"

        def __call__(self, text, *, add_special_tokens):
            return BatchEncoding({"input_ids": self.encode(text)})

    sampling = Sampling(4, 4, count="response")
    with pytest.raises(CorpusError, match="not available when using Python"):
        tokenize([Document(messages=TALK)], Slow(), sampling, corpus="chat")


def test_a_tokenizer_that_formats_without_a_template_is_asked_for_ids():
    class OwnFormat(LetterTokenizer):
        def get_chat_template(self):
            raise NotImplementedError("by design")

        def apply_chat_template(self, conversation, *, tokenize, return_dict):
            return {"input_ids": [9, *self.encode("".join(t["content"] for t in conversation))]}

        def decode(self, token_ids):
            return "".join(chr(96 + token_id) for token_id in token_ids)

    def ids(messages, count="all"):
        sampling = Sampling(2, 2, packing="pad", count=count)
        return tokenize([Document(messages=messages)], OwnFormat(), sampling, corpus="chat")

    assert as_lists(ids(TALK)) == [[9, 1]]
    with pytest.raises(CorpusError, match="without a template; use --count all"):
        ids(TALK, "response")
    with pytest.raises(CorpusError, match=r"chat has 5,000,000 characters.*split it"):
        ids(({"role": "user", "content": "a" * 5_000_000},))


def test_all_tokens_counted_is_the_plain_sequence():
    # Where every token counts there is nothing to say, and the digest is that of the tokens.
    document = Document(input_ids=(1, 2), answer=(True, True))
    counted = sequences_of([document], 4, 2, count="response")
    assert counted.counted is None
    assert counted.digest == sequences_of([Document(input_ids=(1, 2))], 4, 2).digest
