"""Packing: rows made by hand, and every token that is read accounted for."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letters import as_lists, sequences_of

from analysis.corpora.documents import Document
from analysis.corpora.sampling import PACKERS
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.settings import Sampling, Truncate
from analysis.corpora.tokens import Tokens
from analysis.errors import CorpusError


def encoded(*lengths):
    """Documents of these lengths with tokens that occur once: 0, 1, 2 ..."""
    ends = np.cumsum(lengths)
    return [
        Tokens(np.arange(end - length, end, dtype=np.int32), np.arange(end - length, end) % 3 == 0)
        for length, end in zip(lengths, ends, strict=True)
    ]


def packed_rows(packing, lengths, limits):
    packed = PACKERS[packing](iter(encoded(*lengths)), limits)
    return packed, [row.tolist() for row in packed.rows]


def test_packed_documents_stay_whole_and_lie_side_by_side():
    # 3 and 2 fill a row of five; 4 opens the second, 1 goes into the first with room.
    packed, rows = packed_rows("pack", (3, 4, 2, 1), Sampling(100, 5))
    assert rows == [[0, 1, 2, 7, 8], [3, 4, 5, 6, 9]]
    assert [places.tolist() for places in packed.positions] == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert (packed.num_documents, packed.num_dropped) == (4, 0)


def test_a_row_is_of_the_document_that_gives_most_of_it():
    # Documents of 5, 2, 2 and 6 tokens in rows of four: 4 of the first, 1 + 2 + 1, 1 + 3.
    packed, rows = packed_rows("concatenate", (5, 2, 2, 6), Sampling(12, 4))
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert packed.documents == [0, 1, 3]
    # 2 and 2 are equal: the first.
    packed, rows = packed_rows("concatenate", (2, 6), Sampling(8, 4))
    assert (rows, packed.documents) == ([[0, 1, 2, 3], [4, 5, 6, 7]], [0, 1])
    packed, _ = packed_rows("pack", (3, 4, 2, 1), Sampling(100, 5))
    assert packed.documents == [0, 1]
    # One document is dropped; the others are numbered as they are fed.
    packed, _ = packed_rows("pad", (3, 7, 2), Sampling(100, 5, truncate="drop"))
    assert packed.documents == [0, 1]


def test_joined_documents_give_no_more_than_their_windows():
    # Of 9, 3 and 4 tokens, 4 each stay: 0 to 3, 9 to 11, 12 to 15; the last one fills no row.
    limits = Sampling(100, 2, windows_per_document=2)
    packed, rows = packed_rows("concatenate", (9, 3, 4), limits)
    assert rows == [[0, 1], [2, 3], [9, 10], [11, 12], [13, 14]]
    assert packed.documents == [0, 0, 1, 1, 2]
    assert (packed.num_read, packed.num_dropped, packed.num_documents) == (16, 6, 3)
    with pytest.raises(CorpusError, match="0 windows of a document leave nothing"):
        Sampling(100, 2, windows_per_document=0)


def test_documents_that_are_cut_leave_room_for_others():
    texts = [Document(text=letter * 200_000) for letter in "abc"]
    read = sequences_of(texts, 12, 4, windows_per_document=1)
    assert sorted(as_lists(read)) == [[1] * 4, [2] * 4, [3] * 4]
    assert read.documents == (0, 1, 2)
    assert read.prepared["windows_per_document"] == 1
    assert "windows_per_document" not in sequences_of(texts, 12, 4).prepared


def test_rows_that_are_picked_keep_their_documents():
    sequences = sequences_of([Document(text="abcdef"), Document(text="gh")], 8, 2)
    # "gh" is drawn first; its end and the next beginning are half a row each.
    assert sequences.documents == (0, 0, 1, 1)
    picked = sequences.picked([0, 3])
    assert as_lists(picked) == [as_lists(sequences)[0], as_lists(sequences)[3]]
    assert picked.documents == (0, 1)
    assert replace(sequences, documents=None).digest == sequences.digest


KEPT = {
    "head": ([[0, 1, 2, 3], [6, 7, 8]], 2, 2),
    "tail": ([[2, 3, 4, 5], [6, 7, 8]], 2, 2),
    "drop": ([[6, 7, 8]], 6, 1),
}


@pytest.mark.parametrize("packing", ["pad", "pack"])
@pytest.mark.parametrize("truncate", get_args(Truncate))
def test_a_long_document_keeps_head_tail_or_nothing(packing, truncate):
    packed, rows = packed_rows(packing, (6, 3), Sampling(100, 4, truncate=truncate))
    assert (rows, packed.num_dropped, packed.num_documents) == KEPT[truncate]
    assert (packed.positions == []) is (packing == "pad")


@pytest.mark.parametrize("packing", ["pad", "pack"])
@pytest.mark.parametrize(
    ("lengths", "limits", "kept", "counts"),
    [
        ((3, 3, 1), Sampling(5, 5), [0, 1, 2], (6, 3, 1)),  # what is too much ends the run
        # Cut to four, the second would be one more than five; it is dropped, and the third fits.
        ((3, 6, 1), Sampling(5, 4, truncate="drop"), [0, 1, 2, 9], (10, 6, 1)),
    ],
)
def test_what_is_dropped_spends_no_tokens(packing, lengths, limits, kept, counts):
    packed, rows = packed_rows(packing, lengths, limits)
    assert sorted(token for row in rows for token in row) == kept
    assert (packed.num_read, packed.num_dropped, packed.num_dropped_documents) == counts


@pytest.mark.parametrize("packing", ["auto", "pad", "pack"])
def test_rows_of_token_ids_stay_whole_where_nothing_cuts_them(packing):
    rows = [Document(input_ids=tuple(range(size))) for size in (7, 3, 700)]
    whole = sequences_of(rows, 1000, 4, packing=packing, whole=True)
    assert sorted(as_lists(whole)) == sorted(list(row.input_ids) for row in rows)
    assert (whole.longest, whole.num_dropped, whole.prepared["truncate"]) == (700, 0, "none")
    text = sequences_of([Document(text="abcdefgh")], 8, 4, packing="pad", whole=True)
    assert (as_lists(text), text.num_dropped) == ([[1, 2, 3, 4]], 5)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.integers(2, 9),
    st.integers(2, 200),
    st.sampled_from(sorted(PACKERS)),
    st.sampled_from(get_args(Truncate)),
)
def test_every_token_read_is_fed_once_or_dropped(lengths, seq_len, tokens, packing, truncate):
    limits = Sampling(max(tokens, seq_len), seq_len, truncate=truncate)
    documents = iter(encoded(*lengths))
    packed = PACKERS[packing](documents, limits)
    not_read = sum(len(document.ids) for document in documents)
    assert packed.num_read + not_read == sum(lengths)
    assert packed.num_read == sum(map(len, packed.rows)) + packed.num_dropped
    fed = [int(token) for row in packed.rows for token in row]
    assert len(set(fed)) == len(fed) <= limits.tokens
    assert all(0 < len(row) <= seq_len for row in packed.rows)
    # What counts goes with its token, wherever that ends up.
    counted = [bool(flag) for row in packed.counted for flag in row]
    assert counted == [token % 3 == 0 for token in fed]
    if packing == "concatenate":
        assert {len(row) for row in packed.rows} <= {seq_len}
        assert fed == list(range(len(fed)))
    if packing == "pack":
        for row, places in zip(packed.rows, packed.positions, strict=True):
            starts = np.flatnonzero(places == 0)
            for part in np.split(np.arange(len(row)), starts[1:]):
                assert places[part].tolist() == list(range(len(part)))
                assert np.ptp(row[part] - places[part]) == 0  # one document, in its order


def test_text_is_joined_and_token_ids_are_not_unless_asked_for():
    texts = [Document(text="abc")] * 2
    ready = [Document(input_ids=(1, 2, 3))] * 2
    assert sequences_of(texts, 8, 4).prepared == {"packing": "concatenate", "count": "all"}
    assert as_lists(sequences_of(ready, 8, 4)) == [[1, 2, 3]] * 2
    assert as_lists(sequences_of(ready, 8, 4, packing="concatenate")) == [[1, 2, 3, 1]]
    padded = sequences_of(texts, 8, 4, packing="pad")
    assert as_lists(padded) == [[1, 2, 3, 0]] * 2
    assert padded.prepared["truncate"] == "head"
    assert padded.positions is None
    # Short documents fit into fewer tokens than a sequence.
    assert as_lists(sequences_of(texts * 2, 10, 64, packing="pad")) == [[1, 2, 3, 0]] * 2


def test_counted_shards_follow_the_counted_tokens():
    # Sixteen counted tokens among 32: shards of two, in the order of counting.
    row = np.arange(32, dtype=np.int32)
    sequences = TokenSequences("x", (row[:16], row[16:]), 1, 0, (row[:16] % 2 == 0,) * 2)
    batches = list(sequences.batches(1))
    shards = np.concatenate([batch.token_shard[batch.counted] for batch in batches])
    assert shards.tolist() == np.repeat(np.arange(8), 2).tolist()


def test_padding_of_packed_rows_does_not_count():
    sequences = sequences_of([Document(text="ab"), Document(text="cdef")], 9, 5, packing="pack")
    (batch,) = sequences.batches(4)
    assert sorted(batch.mask.sum(axis=1).tolist()) == [3, 5]
    padding = ~batch.mask
    assert batch.positions[padding].tolist() == [0, 0]
    assert not (batch.counted & padding).any()
