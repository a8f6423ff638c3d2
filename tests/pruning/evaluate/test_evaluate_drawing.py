"""Which documents are drawn to evaluate on, and which positions are scored."""

import json
from itertools import islice
from types import MappingProxyType

import numpy as np
import pytest

from analysis.calibration.distributed import Processes
from analysis.corpora.sampling import tokenize
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import fitness_source
from analysis.corpora.spec import corpus_name
from analysis.corpora.streams import open_corpus
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import CorpusError
from builders.statistics import run_on
from builders.tokens import write_ids
from pruning.measures import drawing
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import SampleSettings
from pruning.measures.samples import make_samples


class Letters:
    """One token a character; a conversation has its roles as tokens 1 and 2."""

    eos_token_id = None
    special_tokens_map = MappingProxyType({"user": "\1", "assistant": "\2"})

    def encode(self, text, *, add_special_tokens):
        return [ord(letter) for letter in text]

    def get_chat_template(self):
        return (
            "{% for turn in messages %}{{ user if turn.role == 'user' else assistant }}"
            "{{ turn.content }}{% endfor %}{{ assistant if add_generation_prompt }}"
        )


def rows_file(path, count=40, length=6):
    """Row n holds the token 100 + n only, so that a sequence tells where it is from."""
    return str(write_ids(path, ([100 + n] * length for n in range(count))))


def calibrated(corpus, tokens, seed=42, length=6, **prepared):
    """The sequences of a calibration, and the manifest that it would have."""
    sampling = Sampling(tokens, length, seed)
    sequences = tokenize(open_corpus(corpus), None, sampling, corpus=corpus_name(corpus))
    return sequences, run_on(sequences, seed, **prepared)


def documents_in(sequences):
    return {int(row[0]) for row in sequences.rows}


def drawn_from(corpus, runs, **wanted):
    return draw(
        corpus, open_corpus(corpus), runs, SampleSettings(**{"seq_len": 6, **wanted}), Letters
    )


def test_documents_follow_those_that_calibration_read(tmp_path):
    corpus = rows_file(tmp_path / "rows.jsonl")
    sequences, manifest = calibrated(corpus, tokens=15 * 6)
    drawn = drawn_from(corpus, [manifest], samples=20)
    assert len(drawn.sequences.rows) == 20
    assert not documents_in(drawn.sequences) & documents_in(sequences)
    # The document that did not fit any more was read and dropped; it is left out too.
    assert (drawn.facts["drawn"], drawn.facts["skipped"]) == (drawing.BEYOND, 16)


def test_a_file_that_grew_may_have_been_read(tmp_path):
    corpus = rows_file(tmp_path / "rows.jsonl")
    manifest = calibrated(corpus, tokens=15 * 6)[1]
    rows_file(tmp_path / "rows.jsonl", count=41)
    assert drawn_from(corpus, [manifest], samples=20).facts["drawn"] == drawing.UNSURE
    copy = rows_file(tmp_path / "copy.jsonl")
    assert drawn_from(copy, [manifest], samples=20).facts["drawn"] == drawing.BEYOND


def test_the_longest_calibration_decides(tmp_path):
    corpus = rows_file(tmp_path / "rows.jsonl")
    small, large = (calibrated(corpus, tokens=count * 6) for count in (5, 12))
    drawn = drawn_from(corpus, [small[1], large[1]], samples=10)
    assert not documents_in(drawn.sequences) & documents_in(large[0])
    assert drawn.facts["drawn"] == drawing.BEYOND
    other = calibrated(corpus, tokens=30, seed=7)[1]
    assert drawn_from(corpus, [large[1], other], samples=10).facts["drawn"] == drawing.UNSURE
    chosen = drawn_from(corpus, [large[1]], samples=10, seed=3).facts
    assert (chosen["drawn"], chosen["seed"]) == (drawing.UNSURE, 3)


def test_a_document_gives_two_samples_unless_more_are_asked_for(tmp_path):
    texts = [letter * 50 for letter in "abc"]
    corpus = tmp_path / "letters.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    drawn = drawn_from(str(corpus), [], samples=10)
    assert (len(drawn.sequences.rows), drawn.num_documents) == (6, 3)
    assert drawn.corpus["windows_per_document"] == 2
    assert drawn.shortfall == (
        "letters.jsonl gives 6 of 10 samples: it has 3 documents, each gives 2 at most; give more "
        "documents, or --windows-per-document 0 for intervals that rest on few."
    )
    whole = drawn_from(str(corpus), [], samples=10, windows_per_document=0)
    assert (len(whole.sequences.rows), whole.num_documents, whole.shortfall) == (10, 2, "")
    assert "windows_per_document" not in whole.corpus
    every = drawn_from(str(corpus), [], samples=100, windows_per_document=0)
    assert every.shortfall == "letters.jsonl gives 25 of 100 samples: it has no more text."


def test_what_is_not_known_is_said(tmp_path):
    corpus = rows_file(tmp_path / "rows.jsonl", count=8)
    facts = drawn_from(corpus, [], samples=3).facts
    assert (facts["drawn"], facts["seed"], facts["skipped"]) == (drawing.UNREAD, 42, 0)
    selected = calibrated(corpus, tokens=30, select="k-means")[1]
    assert drawn_from(corpus, [selected], samples=2).facts["drawn"] == drawing.UNSURE
    # All eight were read, so they are drawn again.
    drawn = drawn_from(corpus, [calibrated(corpus, tokens=8 * 6)[1]], samples=3)
    assert (drawn.facts["drawn"], drawn.facts["skipped"]) == (drawing.UNSURE, 0)
    assert len(drawn.sequences.rows) == 3


def words(document):
    """A document as `Letters` reads it."""
    if document.text is not None:
        return document.text
    return "".join("\2\1"[turn["role"] == "user"] + turn["content"] for turn in document.messages)


@pytest.mark.parametrize("corpus", DEMO_CORPORA)
def test_the_demo_s_corpora_have_a_held_out_part(corpus):
    settings = SampleSettings(samples=12, seq_len=512)
    drawn = draw(corpus, open_corpus(corpus), [], settings, Letters)
    assert drawn.facts["drawn"] == drawing.HELD_OUT
    documents = list(islice(fitness_source(corpus).draw(drawn.facts["seed"]), 12))
    read = "".join(chr(token) for row in drawn.sequences.rows for token in row)
    if documents[0].text is None:
        assert read == "".join(words(document)[:512] for document in documents)
    else:  # of each at most two sequences, which may hold the end of the one before
        assert read.startswith(words(documents[0])[:1024])
        assert len(drawn.sequences.rows) == 12


def test_answers_are_predicted_where_there_are_some():
    source = open_corpus("demo-math")
    drawn = draw("demo-math", source, [], SampleSettings(samples=2, seq_len=512), Letters)
    for row, counted in zip(drawn.sequences.rows, drawn.sequences.counted, strict=True):
        asked, answered, asked_again, answered_again = np.flatnonzero(row <= 2).tolist()
        assert row[[asked, answered, asked_again, answered_again]].tolist() == [1, 2, 1, 2]
        answers = [*range(answered + 1, asked_again), *range(answered_again + 1, len(row))]
        assert np.flatnonzero(counted).tolist() == answers
    whole = draw("demo-math", source, [], SampleSettings(samples=2, scored="all"), Letters)
    assert whole.sequences.counted is None


def test_running_text_is_joined_and_cut(tmp_path):
    (tmp_path / "text.txt").write_text("abcdefgh\n\nijklmnop\n\nqrstuvwx\n")
    corpus = str(tmp_path / "text.txt")
    drawn = drawn_from(corpus, [], samples=3, seq_len=5)
    assert [len(row) for row in drawn.sequences.rows] == [5, 5, 5]
    with pytest.raises(CorpusError, match="has no responses; use --count all"):
        drawn_from(corpus, [], samples=3, scored="response")


IDS = (np.array([11, 12, 13, 14, 15], dtype=np.int32), np.array([21, 22, 23], dtype=np.int32))


def masks(*rows):
    return tuple(np.array(list(row)) == "1" for row in rows)


@pytest.mark.parametrize(
    ("more", "scored", "targets"),
    [
        # Every token but the first is predicted.
        ({}, [[0, 1, 2, 3], [0, 1]], [12, 13, 14, 15, 22, 23]),
        # The answer, 13 and 14, at 1 and 2. Token 21 counts but nothing stands before it.
        ({"counted": masks("00110", "101")}, [[1, 2], [1]], [13, 14, 23]),
        # Packed documents do not predict each other.
        (
            {
                "positions": (
                    np.array([0, 1, 0, 1, 2], dtype=np.int32),
                    np.arange(3, dtype=np.int32),
                )
            },
            [[0, 2, 3], [0, 1]],
            [12, 14, 15, 22, 23],
        ),
        # Samples without an answer are left out.
        ({"counted": masks("00000", "011")}, [[0, 1]], [22, 23]),
    ],
)
def test_positions_are_scored_by_what_follows_them(more, scored, targets):
    samples = make_samples(TokenSequences("text", IDS, 2, 0, **more))
    (batch,) = samples.batches()
    assert [np.flatnonzero(row).tolist() for row in batch.scored.tolist()] == scored
    assert batch.targets.tolist() == targets
    assert batch.counts.tolist() == samples.num_scored.tolist() == list(map(len, scored))
    assert (len(samples), samples.num_unscored) == (len(scored), 2 - len(scored))


def test_nothing_to_predict_is_refused():
    alone = TokenSequences("short.txt", (np.array([5], dtype=np.int32),), 1, 0)
    with pytest.raises(CorpusError, match=r"short\.txt has a token to predict"):
        make_samples(alone)


def test_more_processes_than_batches_are_refused():
    both = TokenSequences("blue.jsonl", IDS, 2, 0)
    assert len(make_samples(both, 1, Processes(0, 2))) == 2
    with pytest.raises(CorpusError, match=r"2 processes share 1 .*blue\.jsonl; start fewer"):
        make_samples(both, 2, Processes(0, 2))


def test_what_repeats_the_calibrated_documents_is_not_predicted(tmp_path):
    licence = list(range(1000, 1040))
    bodies = np.random.default_rng(3).integers(100, 900, size=(12, 20)).tolist()
    corpus = str(write_ids(tmp_path / "rows.jsonl", [licence + body for body in bodies]))
    _, manifest = calibrated(corpus, 5 * 60, length=60)
    drawn = drawn_from(corpus, [manifest], samples=4, seq_len=60)
    # Each of the four has the licence, which calibration read, and 20 tokens of its own.
    assert [int(row.sum()) for row in drawn.sequences.counted] == [20] * 4
    assert drawn.facts["near_copies"] == 4 * 40
    assert make_samples(drawn.sequences).num_scored.tolist() == [20] * 4
    # Without a calibration nothing is known of it.
    assert drawn_from(corpus, [], samples=4, seq_len=60).sequences.counted is None
