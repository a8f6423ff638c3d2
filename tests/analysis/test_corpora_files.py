"""Local files: any size, any order, the same documents as if all were in memory."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letters import as_lists, read_documents, sequences_of

from analysis.corpora import files as corpus_files
from analysis.corpora.documents import Document
from analysis.corpora.fields import Fields
from analysis.corpora.files import open_documents
from analysis.corpora.sources import from_file, in_memory
from analysis.corpora.spec import SUFFIXES
from analysis.errors import CorpusError

WORDS = [f"document {number} " + "x" * (number % 5) for number in range(70)]


def write_jsonl(path, rows):
    # Blank lines are no documents, and must not shift the numbers of those that are.
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def write_parquet(path, rows, row_group_size):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return path


def write_texts(folder, kind, texts, row_group_size=1000):
    """A file of a kind that holds these texts."""
    path, rows = folder / f"a.{kind}", [{"text": text, "other": 1} for text in texts]
    if kind == "txt":
        path.write_text("\n\n".join(texts), encoding="utf-8")
        return path
    return write_jsonl(path, rows) if kind == "jsonl" else write_parquet(path, rows, row_group_size)


@pytest.fixture(params=["jsonl", "parquet", "parquet in small groups", "txt"])
def seventy(request, tmp_path):
    """Seventy documents in a file of each kind: more than the marks of the index are apart."""
    kind, *small = request.param.split(" ", 1)
    return write_texts(tmp_path, kind, WORDS, 9 if small else 1000)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-20])


def other_documents(path):
    path.write_bytes(path.read_bytes().replace(b"document 6", b"document 7"))


def added_to(path):
    with path.open("ab") as file:
        file.write(b"\n\nmore")


def another_file(path):
    path.rename(path.with_suffix(".old"))
    path.write_bytes(path.with_suffix(".old").read_bytes())


@pytest.mark.parametrize("change", [cut_short, other_documents, added_to, another_file])
def test_a_file_that_changes_after_it_was_opened_is_refused(seventy, change):
    documents = open_documents(seventy, Fields())
    assert list(documents.read([69])) == [Document(text=WORDS[69])]
    change(seventy)
    with pytest.raises(CorpusError, match=rf"{seventy.name} (changed while it was read|is not a)"):
        list(documents.read([69]))


def test_a_file_is_drawn_in_the_order_of_memory(seventy):
    documents = open_documents(seventy, Fields())
    assert len(documents) == 70
    at_hand = [Document(text=words) for words in WORDS]
    for seed in (0, 1):
        assert list(from_file(documents).draw(seed)) == list(in_memory(at_hand).draw(seed))
        # The order itself, so that statistics made before remain those of their text.
        order = np.random.default_rng(seed).permutation(70)
        assert [doc.text for doc in from_file(documents).draw(seed)] == [WORDS[i] for i in order]


def test_documents_are_read_in_any_order_and_more_than_once(seventy):
    documents = open_documents(seventy, Fields())
    numbers = [69, 0, 16, 15, 17, 0, 33]
    assert [doc.text for doc in documents.read(numbers)] == [WORDS[i] for i in numbers]


@settings(deadline=None, max_examples=80)
@given(st.text(alphabet="a\u00fc \n", max_size=40), st.booleans())
def test_a_text_file_is_parted_as_the_whole_text_would_be(tmp_path_factory, text, is_dos):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(text.replace("\n", "\r\n" if is_dos else "\n").encode())
    expected = [part for part in text.split("\n\n") if part.strip()]
    if not expected:
        with pytest.raises(CorpusError, match="is empty"):
            read_documents(str(path))
        return
    assert [document.text for document in read_documents(str(path))] == expected


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path, kind):
    texts = [f"{number} " + "abc " * 500 for number in range(4_000)]  # 8 MB
    path = write_texts(tmp_path, kind, texts, 500)
    texts.clear()
    tracemalloc.start()
    drawn = from_file(open_documents(path, Fields())).draw(0)
    got = [len(next(drawn).text) for _ in range(100)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(got) == 100
    assert peak < 2_500_000  # bytes; the file has 8 million


def test_rows_that_are_not_needed_are_not_even_looked_at(tmp_path):
    # A broken row is found when it is drawn: the first tokens of a large file come at once.
    rows = [json.dumps({"text": "abc"})] * 200
    rows[int(np.random.default_rng(42).permutation(200)[150])] = "{broken"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows))
    documents = from_file(open_documents(path, Fields()))
    assert sequences_of(documents, tokens=40, seq_len=4).num_documents == 10
    with pytest.raises(CorpusError, match=r"a\.jsonl, line \d+ is not JSON"):
        sequences_of(documents, tokens=4000, seq_len=4)


def test_every_suffix_of_a_corpus_has_what_opens_it():
    assert tuple(corpus_files._OPENERS) == SUFFIXES


def test_a_text_without_blank_lines_is_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "_LONGEST_DOCUMENT", 1 << 20)
    path = tmp_path / "one.txt"
    path.write_text("word\n" * 300_000)
    with pytest.raises(CorpusError, match=r"one\.txt has a document of more than 1 MiB at byte 0"):
        open_documents(path, Fields())


def test_a_line_that_is_too_long_is_refused_after_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "_LONGEST_DOCUMENT", 1 << 20)
    path = tmp_path / "one.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "a"}\n{"text": "')
        file.truncate(1 << 40)  # a hole: a line of a TiB, which no machine can hold
    with pytest.raises(CorpusError, match=r"one\.jsonl, line 2, has more than 1 MiB"):
        open_documents(path, Fields())


def test_fields_of_other_names(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"content": "abc", "text": "zzz"}])
    (document,) = read_documents(f"{path},text=content")
    assert document == Document(text="abc")
    pairs = write_parquet(
        tmp_path / "b.parquet", [{"instruction": "ab", "output": "c", "text": "z"}], 10
    )
    (document,) = read_documents(f"{pairs},prompt=instruction,response=output")
    assert [message["content"] for message in document.messages] == ["ab", "c"]
    with pytest.raises(CorpusError, match=r"line 1 has the fields content, text, not text=body"):
        read_documents(f"{path},text=body")


def test_padding_and_labels_beside_token_ids(tmp_path):
    row = {
        "input_ids": [9, 9, 5, 6, 7],
        "attention_mask": [0, 0, 1, 1, 1],
        "labels": [-100, -100, -100, 6, 7],
    }
    (document,) = read_documents(str(write_jsonl(tmp_path / "a.jsonl", [row])))
    assert document == Document(input_ids=(5, 6, 7), answer=(False, True, True))
    whole = sequences_of([document], 10, 5)
    assert (as_lists(whole), whole.counted) == ([[5, 6, 7]], None)
    answers = sequences_of([document], 10, 5, count="response")
    assert [row.tolist() for row in answers.counted] == [[False, True, True]]
    short = {**row, "labels": [1]}
    with pytest.raises(CorpusError, match="line 1: labels has 1 values for 5 tokens"):
        read_documents(str(write_jsonl(tmp_path / "b.jsonl", [short])))


def test_half_of_a_surrogate_pair_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00"}\n{"text": "\\uD83D alone"}\n')
    documents = open_documents(path, Fields())
    (whole,) = documents.read([0])
    assert whole.text == "\N{GRINNING FACE}"
    with pytest.raises(CorpusError, match=r"rows.jsonl, line 2 .*half of a surrogate pair"):
        list(documents.read([1]))
