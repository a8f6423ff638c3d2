"""Corpora: files to documents to token sequences, counted by hand."""

import hashlib
import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from letters import MESSAGES, LetterTokenizer, as_lists, read_documents, sequences_of

from analysis.corpora import Document, Sampling, tokenize
from analysis.demo.texts import TEXTS, DemoText, demo_texts
from analysis.errors import CorpusError
from builders.tokens import token_sequences
from tools.demo.tokenizer import train_tokenizer


def write(path, *rows):
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_text_is_parted_at_blank_lines(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("one\ntwo\r\n\r\nthree\n\n\n  \n\nfünf\n".encode())
    texts = [document.text for document in read_documents(str(file))]
    assert [text.strip() for text in texts] == ["one\ntwo", "three", "fünf"]


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
    lines = write(tmp_path / "a.jsonl", json.dumps(row), "", json.dumps(row))
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "a.parquet")
    assert read_documents(lines) == [expected, expected]
    assert read_documents(str(tmp_path / "a.parquet")) == [expected, expected]


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "abc"}\n')
    assert read_documents(str(file)) == [Document(text="abc")]


BAD_ROWS = {
    "no JSON": ("{oops", "is not JSON"),
    "a list": ("[1, 2]", "is not a JSON object"),
    "no known field": ('{"body": 1, "title": 2}', "has the fields body, title; a corpus needs one"),
    "no field": ("{}", "has the fields none"),
    "half a pair": ('{"prompt": "a"}', "has the fields prompt"),
    **{
        f"ids {ids}": (f'{{"input_ids": {ids}}}', "input_ids must be a list of token ids")
        for ids in ('["a"]', "5", "[1.5]", "[-1]", "[2147483648]")  # the last is beyond 32 bits
    },
    **{
        f"messages {each}": (f'{{"messages": {each}}}', "messages must be a list of objects")
        for each in ('"hi"', '["hi"]', "[]")
    },
}


@pytest.mark.parametrize(("row", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_malformed_row_is_named_by_its_line(tmp_path, row, message):
    file = write(tmp_path / "bad.jsonl", '{"text": "abc"}', "", row)
    with pytest.raises(CorpusError, match=rf"bad\.jsonl, line 3:? {message}") as caught:
        read_documents(file)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b'{"text": "abc"}\n{"text": "\xff"}\n')
    with pytest.raises(CorpusError, match=r"bad\.jsonl, line 2 is not JSON"):
        read_documents(str(file))
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    with pytest.raises(CorpusError, match=r"bad\.txt is not UTF-8 text \(byte 3\)"):
        read_documents(str(tmp_path / "bad.txt"))


@pytest.mark.parametrize("content", [None, b"", b"junk that is longer than a footer", b"PAR1"])
def test_a_malformed_parquet_file_or_row_is_named(tmp_path, content):
    file, message = tmp_path / "bad.parquet", "is not a readable parquet file"
    if content is None:
        pq.write_table(pa.table({"text": pa.array(["abc", None], pa.string())}), file)
        message = ", row 2 has the fields text"
    else:
        file.write_bytes(content)
    with pytest.raises(CorpusError, match=rf"bad\.parquet ?{message}"):
        read_documents(str(file))


@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl", "empty.parquet"])
def test_an_empty_corpus_says_so(tmp_path, name):
    file = tmp_path / name
    file.write_text(" \n\n\n")
    if file.suffix == ".parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), file)
    with pytest.raises(CorpusError, match=rf"{name} is empty"):
        read_documents(str(file))


def test_documents_are_joined_end_to_end_and_cut():
    # a b c . + d e . + f g h i . = 4 + 3 + 5 = 12 tokens in some order; two sequences of 5.
    documents = [Document(text=text) for text in ("abc", "de", "fghi")]
    sequences = sequences_of(documents, tokens=100, seq_len=5)
    order = np.random.default_rng(42).permutation(3)
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


def test_the_order_is_that_of_the_seed():
    documents = [Document(text=letter * 3) for letter in "abcdefghij"]
    first, again = (sequences_of(documents, 40, 4, seed=7) for _ in range(2))
    other = sequences_of(documents, 40, 4, seed=8)
    assert as_lists(first) == as_lists(again)
    assert as_lists(first) != as_lists(other)
    # Another order of the same documents, nothing more.
    assert sorted(as_lists(first)) == sorted(as_lists(other))


def test_rows_of_token_ids_are_used_as_they_are():
    rows = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10, 11)]
    documents = [Document(input_ids=row) for row in rows]
    sequences = sequences_of(documents, tokens=100, seq_len=4)
    assert sorted(as_lists(sequences)) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert (sequences.num_tokens, sequences.num_dropped, sequences.num_documents) == (9, 2, 3)


@pytest.mark.parametrize("ids_first", [True, False])
def test_token_ids_and_text_do_not_mix(ids_first):
    documents = [Document(input_ids=(1, 2)), Document(text="abc")]
    documents = documents if ids_first else documents[::-1]
    with pytest.raises(CorpusError, match="letters mixes token ids with text; use one of them"):
        sequences_of(documents, 100, 2)


def test_a_corpus_shorter_than_one_sequence_says_how_long_it_is():
    with pytest.raises(CorpusError, match=r"letters has 4 tokens, less than one sequence of 5"):
        sequences_of([Document(text="abc")], 100, 5)
    with pytest.raises(CorpusError, match=r"letters has no tokens"):
        sequences_of([Document(input_ids=())], 100, 5)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ((3, 4), "3 tokens are less than one sequence of 4; use at least 4 tokens"),
        ((8, 1), "A sequence of 1 tokens is too short"),
        ((8, 4, -1), "The seed -1 is negative"),
    ],
)
def test_a_sampling_that_gives_nothing_is_refused(sampling, message):
    with pytest.raises(CorpusError, match=message):
        Sampling(*sampling, packing="concatenate")


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


def test_demo_math_is_the_same_everywhere():
    # Random.random() is the one sequence that Python guarantees; the first 200 documents made
    # with Python 3.11.
    texts = list(islice(demo_texts("demo-math"), 200))
    assert texts[0].prompt == (
        "Emil has 73 dollars, spends 11, and then saves 7 dollars a week for 4 weeks. "
        "How much does Emil have then?"
    )
    assert texts[0].response.endswith("Together 62 + 28 = 90 dollars. The answer is 90.")
    joined = "\n".join(f"{text.prompt}\n{text.response}" for text in texts)
    assert hashlib.sha256(joined.encode()).hexdigest() == (
        "d354622ae5f58ce119238f31feb548c086565dd68355c1cc7c93c927975edc2f"
    )


def test_held_out_word_problems_are_not_among_the_others():
    training = {text.prompt for text in demo_texts("demo-math")}
    held_out = [text.prompt for text in demo_texts("demo-math", held_out=True)]
    assert training.isdisjoint(held_out)
    assert len(held_out) >= 500


def test_the_demo_tokenizer_is_lossless():
    tokenizer = train_tokenizer(["the cat sat on the mat", "how many cats sat? two."])
    text = "how many cats? zwölf 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    sequences = tokenize(
        [Document(messages=tuple(MESSAGES))], tokenizer, Sampling(6, 6), corpus="chat"
    )
    ids = sequences.rows[0]
    assert tokenizer.decode(ids) == "<|user|>ab<|assistant|>c<|end|>"


def test_every_twelfth_text_is_held_out(monkeypatch):
    texts = [DemoText(f"n{i}", "same" if i in (3, 23) else f"p{i}") for i in range(40)]
    monkeypatch.setitem(TEXTS, "demo-forty", lambda: iter(texts))
    training = [text.name for text in demo_texts("demo-forty")]
    held_out = [text.name for text in demo_texts("demo-forty", held_out=True)]
    assert held_out == ["n11", "n35"]  # n23 repeats n3
    assert training == [f"n{i}" for i in range(40) if i % 12 != 11]
