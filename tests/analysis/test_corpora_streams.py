"""Datasets of the hub and copies of them: streamed, shuffled by a seed, refused in one line."""

import gzip
import json
from collections import Counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import COMMIT, OLD_COMMIT, hub, printed
from letters import MESSAGES, LetterTokenizer, as_lists

from analysis.corpora import streams
from analysis.corpora.documents import Document
from analysis.corpora.fields import Fields
from analysis.corpora.presets import PRESETS
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import in_memory, peek
from analysis.corpora.spec import corpus_name, parse_corpus
from analysis.corpora.streams import open_corpus
from analysis.errors import CorpusError


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    """`datasets` waits five seconds at the end of a parquet file for its reader's threads."""
    # Versions before 5 do not wait.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)


def test_a_hub_data_set_and_its_options():
    spec = parse_corpus("hub:owner/some.name,config=en,split=test,revision=v1,text=content")
    dataset = spec.dataset
    assert (dataset.repo, dataset.config, dataset.split) == ("owner/some.name", "en", "test")
    assert (dataset.revision, spec.fields) == ("v1", Fields.only(text="content"))
    assert spec.name == "hub:owner/some.name,config=en,split=test,revision=v1,text=content"
    plain = parse_corpus("hub:owner/name")
    assert (plain.dataset.split, plain.dataset.config, plain.fields) == ("train", None, Fields())


def test_names_never_say_where_a_file_lies():
    assert corpus_name("/some/where/a.jsonl") == "a.jsonl"
    assert corpus_name("/some/where/a.jsonl,text=content") == "a.jsonl"
    assert corpus_name("/some/where,with=comma/a.txt") == "a.txt"
    assert corpus_name("c4=/some/where/c4.parquet") == "c4"
    assert corpus_name("wikitext2") == "wikitext2"
    assert parse_corpus("/some/where,with=comma/a.txt").path.name == "a.txt"


def write_rows(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def tokens_of(corpus, sampling):
    source = open_corpus(corpus)
    return tokenize(source, LetterTokenizer(), sampling, corpus=corpus_name(corpus))


TALK = Document(messages=tuple(MESSAGES))
ROW = {"id": "1", "prompt": "ab", "messages": MESSAGES, "constraints": []}
COPIES = {
    "c4": ({"text": "abc", "url": "x", "timestamp": "y"}, Document(text="abc")),
    "evol-codealpaca": ({"instruction": "ab", "output": "c"}, TALK),
    "tulu-math": (ROW, TALK),
    "wikitext2": ({"text": "abc"}, Document(text="abc")),
}


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.dataset])
def test_the_rows_of_each_preset_are_understood(tmp_path, name):
    row, expected = COPIES[name]
    path = write_rows(tmp_path / "copy.parquet", [row, row])
    source = open_corpus(f"{name}={path}")
    assert list(source.draw(0)) == [expected] * 2
    assert source.facts["source"]["copy"] == "copy.parquet"
    assert source.join == PRESETS[name].join


def test_a_folder_of_compressed_shards_is_a_copy(tmp_path):
    for shard in range(3):
        lines = [json.dumps({"text": f"{shard} {row}"}) for row in range(40)]
        (tmp_path / f"c4-{shard}.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "README.md").write_text("not data")
    source = open_corpus(f"c4={tmp_path}")
    first, again, other = ([document.text for document in source.draw(seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert (
        Counter(first) == Counter(other) == Counter(f"{s} {r}" for s in range(3) for r in range(40))
    )


def test_a_folder_of_two_kinds_of_files_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(CorpusError, match=r"holds several kinds of files to read as c4"):
        open_corpus(f"c4={tmp_path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"holds no file to read as c4"):
        open_corpus(f"c4={tmp_path / 'empty'}")


def test_no_more_is_read_than_shuffle_and_tokens_need(tmp_path, monkeypatch):
    # Beyond the buffer, the part of the parser's chunk that was asked for and the documents used,
    # a broken row goes unseen.
    monkeypatch.setattr(streams, "SHUFFLE_BUFFER", 20)
    good = "".join(json.dumps({"text": "abc", "fill": "x" * 50_000}) + "\n" for _ in range(300))
    path = tmp_path / "c4.jsonl"
    path.write_text(good + '{"text": broken\n' + good)  # 30 MB, broken at 15
    sequences = tokens_of(f"c4={path}", Sampling(400, 4))
    assert (sequences.num_documents, sequences.num_tokens) == (100, 400)
    assert sequences.prepared["source"]["shuffle_buffer"] == 20
    with pytest.raises(CorpusError, match=r"Reading the dataset c4 failed: JSON parse error"):
        tokens_of(f"c4={path}", Sampling(4000, 4))


def test_wikitext_is_one_text_of_which_sequences_are_drawn(tmp_path):
    # 26 rows of 3 letters: a stream of 78 tokens without ends, in which blank lines are no token.
    rows = [{"text": chr(97 + number) * 3} for number in range(26)]
    path = write_rows(tmp_path / "wiki.parquet", rows)
    sampling = Sampling(8 * 5, 8, seed=0)
    sequences = tokens_of(f"wikitext2={path}", sampling)
    stream = [number + 1 for number in range(26) for _ in range(3)]
    windows = [stream[start : start + 8] for start in range(0, 72, 8)]
    assert len(sequences.rows) == 5
    drawn = [windows.index(row) for row in as_lists(sequences)]
    assert len(set(drawn)) == 5
    assert drawn != sorted(drawn)
    assert (sequences.num_tokens, sequences.num_dropped) == (40, 78 - 40)
    assert as_lists(tokens_of(f"wikitext2={path}", sampling)) == as_lists(sequences)
    with pytest.raises(CorpusError, match="takes no --packing, --count or --select"):
        tokens_of(f"wikitext2={path}", Sampling(40, 8, packing="pack"))


def test_a_text_copy_of_wikitext_keeps_its_lines(tmp_path):
    (tmp_path / "wiki.txt").write_text(" = A = \n\n b c \n")
    source = open_corpus(f"wikitext2={tmp_path / 'wiki.txt'}")
    # As in the dataset of the hub, where a row is a line with its end.
    assert [document.text for document in source.draw(0)] == [" = A = \n", "\n", " b c \n"]
    texts = open_corpus(f"c4={tmp_path / 'wiki.txt'}")
    assert sorted(document.text.strip() for document in texts.draw(0)) == ["= A =", "b c"]


PROGRAM = """
import sys
from analysis.corpora.sources import peek
from analysis.corpora.streams import open_corpus
from analysis.errors import CorpusError

for corpus in sys.argv[1:]:
    try:
        source = open_corpus(corpus)
        first, _ = peek(source, 0)
        print(source.facts["source"]["revision"], source.facts["source"]["split"], first.text)
    except CorpusError as error:
        print(error)
"""


def on_the_hub(address, home, *corpora):
    """What a program that has this hub says of each corpus."""
    return printed(PROGRAM, *corpora, home=home, HF_ENDPOINT=address).splitlines()


def test_datasets_of_a_hub_are_streamed_or_refused(tmp_path):
    expected = {
        "hub:someone/cats,text=content": f"{COMMIT} train the cat number ",
        "hub:someone/cats,text=content,revision=v1": f"{OLD_COMMIT} train the cat number ",
        "hub:someone/cats": "row 1 as drawn has the fields content; a corpus needs one of",
        "hub:someone/cats,text=body": "has the fields content, not text=body",
        "hub:someone/cats,split=test": "Bad split: test. Available splits: ['train']",
        "hub:someone/cats,config=en": "BuilderConfig 'en' not found. Available: ['default']",
        "hub:someone/cats,revision=never": "someone/cats has no revision 'never'",
        "hub:someone/gated": "someone/gated is gated: accept its terms on the hub",
        "hub:someone/gone": "The hub has no dataset someone/gone that you may read",
    }
    with hub() as address:
        said = on_the_hub(address, tmp_path, *expected)
    assert len(said) == len(expected)
    for line, words in zip(said, expected.values(), strict=True):
        assert words in line
    # Nothing but the description is kept on this machine.
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 10_000


def test_without_a_network_one_line_says_what_to_do(tmp_path):
    # Nobody listens at this address.
    said = on_the_hub("http://127.0.0.1:9", tmp_path, "c4", "hub:someone/cats")
    assert "allenai/c4 cannot be reached on the hub" in said[0]
    assert said[0].endswith("without a network use c4=PATH with a copy.")
    assert said[1].endswith("without a network use a local file.")
    assert len(said) == 2


def test_peeking_does_not_read_a_document_twice(tmp_path):
    rows = [{"text": chr(97 + number)} for number in range(5)]
    source = open_corpus(f"c4={write_rows(tmp_path / 'c4.parquet', rows)}")
    first, again = peek(source, 3)
    assert list(again.draw(3)) == list(source.draw(3))
    assert next(source.draw(3)) == first


def test_a_corpus_without_a_row_is_empty():
    first, again = peek(in_memory([]), 0)
    assert first is None
    with pytest.raises(CorpusError, match="The corpus c4 is empty"):
        tokenize(again, LetterTokenizer(), Sampling(4, 4), corpus="c4")


def test_what_is_wrong_with_a_copy_is_said_once(tmp_path, caplog, capfd):
    (tmp_path / "c4.jsonl").write_text('{"text": "abc"}\n{broken\n')
    with pytest.raises(CorpusError, match=r"Reading the dataset c4 failed: JSON parse error"):
        list(open_corpus(f"c4={tmp_path / 'c4.jsonl'}").draw(0))
    assert caplog.text == ""
    assert capfd.readouterr().err == ""
