"""Corpora: files to documents to token sequences, counted by hand."""

import hashlib
import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from letters import MESSAGES, LetterTokenizer, as_lists, read_documents, sequences_of

from analysis.corpora.documents import Document
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.errors import CorpusError
from builders.tokens import token_sequences
from tools.demo.tokenizer import train_tokenizer


def write(path, *rows):
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return str(path)


FORMS = {
    "text": ({"text": "abc"}, Document(text="abc")),
    "messages": ({"messages": MESSAGES}, Document(messages=tuple(MESSAGES))),
    "prompt and response": ({"prompt": "ab", "response": "c"}, Document(messages=tuple(MESSAGES))),
    "prompt with an empty response": ({"prompt": "ab", "response": ""}, Document(text="ab")),
    "input_ids": ({"input_ids": [5, 0, 7]}, Document(input_ids=(5, 0, 7))),
    # Token ids are used as they are even where the text stands beside them.
    "input_ids before text": ({"input_ids": [5], "text": "abc"}, Document(input_ids=(5,))),
    "text beside an empty field": ({"messages": None, "text": "abc"}, Document(text="abc")),
}


@pytest.mark.parametrize(("row", "expected"), FORMS.values(), ids=FORMS)
def test_jsonl_and_parquet_rows_become_the_same_document(tmp_path, row, expected):
    byte_order_mark = "\ufeff"  # no part of the first row
    lines = write(tmp_path / "a.jsonl", byte_order_mark + json.dumps(row), "", json.dumps(row))
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "a.parquet")
    assert read_documents(lines) == [expected, expected]
    assert read_documents(str(tmp_path / "a.parquet")) == [expected, expected]


def parquet(**columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


BAD_ROWS = {
    "{oops": "is not JSON",
    "[1, 2]": "is not a JSON object",
    '{"body": 1, "title": 2}': "has the fields body, title; a corpus needs one",
    "{}": "has the fields none",
    '{"prompt": "a"}': "has the fields prompt",
    **{
        f'{{"input_ids": {ids}}}': "input_ids must be a list of token ids"
        for ids in ('["a"]', "5", "[1.5]", "[-1]", "[2147483648]")  # the last is beyond 32 bits
    },
    **{
        f'{{"messages": {messages}}}': "messages must be a list of objects"
        for messages in ('"hi"', '["hi"]', "[]")
    },
}
# Kind of file, content -> the words that matter.
BAD_FILES = [
    *(
        ("jsonl", b'{"text": "abc"}\n\n' + row.encode(), f", line 3:? {message}")
        for row, message in BAD_ROWS.items()
    ),
    ("jsonl", b'{"text": "abc"}\n{"text": "\xff"}\n', ", line 2 is not JSON"),
    ("txt", b"abc\xff", r" is not UTF-8 text \(byte 3\)"),
    ("parquet", parquet(text=["abc", None]), ", row 2 has the fields text"),
    ("parquet", b"", " is not a readable parquet file"),
    ("parquet", b"junk that is longer than a footer", " is not a readable parquet file"),
    ("parquet", b"PAR1", " is not a readable parquet file"),
    ("txt", b" \n\n\n", " is empty"),
    ("jsonl", b" \n\n\n", " is empty"),
    ("parquet", parquet(text=pa.array([], pa.string())), " is empty"),
]


@pytest.mark.parametrize(("kind", "content", "message"), BAD_FILES)
def test_files_that_are_refused(tmp_path, kind, content, message):
    file = tmp_path / f"bad.{kind}"
    file.write_bytes(content)
    with pytest.raises(CorpusError, match=rf"bad\.{kind}{message}") as caught:
        read_documents(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [42, 7])
def test_documents_are_joined_end_to_end_and_cut(seed):
    # a b c . + d e . + f g h i . = 4 + 3 + 5 = 12 tokens in the seed's order; two sequences of 5.
    documents = [Document(text=text) for text in ("abc", "de", "fghi")]
    sequences = sequences_of(documents, tokens=100, seq_len=5, seed=seed)
    order = np.random.default_rng(seed).permutation(3)
    assert order.tolist() != [0, 1, 2]
    texts = [[1, 2, 3, 0], [4, 5, 0], [6, 7, 8, 9, 0]]
    stream = [token for index in order for token in texts[index]]
    assert as_lists(sequences) == [stream[:5], stream[5:10]]
    assert (sequences.num_documents, sequences.num_dropped) == (3, 2)
    assert sequences.num_tokens == 10
    assert sequences.corpus == "letters"


def test_a_text_that_ends_with_the_end_token_gets_no_second_one():
    class Ending(LetterTokenizer):
        def encode(self, text, *, add_special_tokens):
            return [*super().encode(text), 0]

    documents = [Document(text="abc")] * 2
    sequences = tokenize(documents, Ending(), Sampling(8, 4), corpus="letters")
    assert as_lists(sequences) == [[1, 2, 3, 0], [1, 2, 3, 0]]


def test_rows_of_token_ids_are_used_as_they_are():
    rows = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10, 11)]
    documents = [Document(input_ids=row) for row in rows]
    sequences = sequences_of(documents, tokens=100, seq_len=4)
    assert sorted(as_lists(sequences)) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert (sequences.num_tokens, sequences.num_dropped, sequences.num_documents) == (9, 2, 3)


LONG_PROMPT = ({"role": "user", "content": "abcdefgh"}, {"role": "assistant", "content": "i"})
TEXT, LONG, IDS = (Document(text="abc"), Document(text="abcdefgh"), Document(input_ids=(1, 2)))
# Documents, options -> the words that matter.
REFUSED = [
    ([IDS, TEXT], (100, 2), {}, "letters mixes token ids with text; use one of them"),
    ([TEXT, IDS], (100, 2), {}, "letters mixes token ids with text; use one of them"),
    ([TEXT], (100, 5), {}, "letters has 4 tokens, less than one sequence of 5"),
    ([Document(input_ids=())], (100, 5), {}, "letters has no tokens"),
    ([TEXT], (3, 4), {"packing": "concatenate"}, "3 tokens are less than one sequence of 4; use"),
    ([TEXT] * 3, (3, 64), {}, "3 tokens are less than one sequence of 64"),
    ([TEXT], (8, 1), {}, "A sequence of 1 tokens is too short"),
    ([TEXT], (8, 4, -1), {}, "The seed -1 is negative"),
    ([TEXT] * 3, (3, 64), {"packing": "pad"}, "would have 4 tokens, more than the 3 asked for"),
    ([TEXT], (8, 4), {"packing": "concatenate", "truncate": "tail"}, "so 'tail' does not apply"),
    ([TEXT] * 4, (8, 4), {"truncate": "drop"}, "are not truncated, so 'drop' does not"),
    ([LONG], (8, 4), {"packing": "pad", "truncate": "drop"}, "letters is longer than 4 tokens"),
    ([TEXT], (4, 4), {"count": "response"}, "is plain text, which has no responses"),
    ([IDS], (10, 5), {"count": "response"}, "has token ids without labels"),
    ([Document(messages=(MESSAGES[0],))], (4, 2), {"count": "response"}, "no turn of the ass"),
    ([Document(messages=LONG_PROMPT)], (4, 4), {"packing": "pad", "count": "response"},
     "No response token of the corpus letters is in"),
]  # fmt: skip


@pytest.mark.parametrize(("documents", "limits", "options", "message"), REFUSED)
def test_what_gives_no_sequences_is_refused(documents, limits, options, message):
    with pytest.raises(CorpusError, match=message):
        sequences_of(documents, *limits, **options)


def test_an_answer_is_kept_from_the_tail():
    options = {"packing": "pad", "count": "response", "truncate": "tail"}
    assert sequences_of([Document(messages=LONG_PROMPT)], 4, 4, **options).num_counted == 1


def test_a_tokenizer_without_chat_template_says_what_works():
    tokenizer = train_tokenizer(["hello world"])
    document = Document(messages=tuple(MESSAGES))
    tokenizer.chat_template = None
    for template in (None, "{{ raise_exception('roles must alternate') }}"):
        tokenizer.chat_template = template
        with pytest.raises(CorpusError, match=r"cannot format a conversation .*give a corpus of"):
            tokenize([document], tokenizer, Sampling(4, 2), corpus="chat")


def test_batches_are_padded_on_the_right_and_padding_is_counted():
    sequences = token_sequences([1, 2, 3], [4], [5, 6])
    first, second = sequences.batches(2)
    assert first.input_ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert first.mask.tolist() == [[True, True, True], [True, False, False]]
    assert second.input_ids.tolist() == [[5, 6]]
    assert second.mask.all()
    for size, padded in ((1, 0), (2, 2), (3, 3)):
        assert sequences.num_padded(size) == padded
        assert sum(int((~batch.mask).sum()) for batch in sequences.batches(size)) == padded
        assert sum(int(batch.mask.sum()) for batch in sequences.batches(size)) == 6


def test_digest_covers_tokens_and_ends_and_what_counts_and_nothing_else():
    digest = token_sequences([1, 2, 3], [4]).digest
    assert token_sequences([1, 2, 3], [4], corpus="other name").digest == digest
    assert len(digest) == 64
    others = [
        token_sequences([1, 2], [3, 4]),
        token_sequences([1, 2, 3, 4]),
        token_sequences([4], [1, 2, 3]),
        token_sequences([1, 2, 3], [5]),
        token_sequences([1, 2, 3]),
    ]
    plain = token_sequences([1, 2, 3], [4])
    all_count = tuple(np.ones(len(row), dtype=bool) for row in plain.rows)
    answers = (np.array([False, True, True]), np.array([True]))
    places = tuple(np.array(row, dtype=np.int32) for row in ([0, 1, 0], [0]))
    others += [
        replace(plain, counted=answers),
        replace(plain, counted=all_count),
        replace(plain, positions=places),
        replace(plain, counted=answers, positions=places),
    ]
    assert len({digest, *(other.digest for other in others)}) == 1 + len(others) == 10
    raw = (2).to_bytes(8, "little") + (258).to_bytes(4, "little") + (7).to_bytes(4, "little")
    assert token_sequences([258, 7]).digest == hashlib.sha256(raw).hexdigest()


def test_the_demo_tokenizer_is_lossless():
    tokenizer = train_tokenizer(["the cat sat on the mat", "how many cats sat? two."])
    text = "how many cats? zwölf 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    sequences = tokenize(
        [Document(messages=tuple(MESSAGES))], tokenizer, Sampling(6, 6), corpus="chat"
    )
    ids = sequences.rows[0]
    assert tokenizer.decode(ids) == "<|user|>ab<|assistant|>c<|end|>"
