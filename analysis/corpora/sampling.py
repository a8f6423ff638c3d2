"""How much of a corpus is used, and how its documents become token sequences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from analysis.corpora.account import RowAccount
from analysis.corpora.cutting import Extent
from analysis.corpora.documents import Document
from analysis.corpora.encoding import encode, encode_all
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.settings import Packing, Sampling, check_joins
from analysis.corpora.sources import Source, in_memory, peek
from analysis.corpora.tokens import ChatFormat, TokenIds, Tokenizer, Tokens
from analysis.errors import CorpusError
from analysis.numbers.arrays import BoolArray

_OPEN_ROWS = 16
_LONGEST_JOINED = 1 << 24  # characters; tokenised at once, as sequences are drawn from all of it
Documents = Iterator[Tokens]


def packing_of(sampling: Sampling, first: Document) -> Packing:
    """How documents like the first become sequences."""
    packing = sampling.packing
    if packing == "auto":
        packing = "concatenate" if first.input_ids is None else "pad"
    if packing == "concatenate":
        check_joins(sampling)
    return packing


@dataclass(slots=True)
class TokenRows:
    """Sequences, and an account of every token read: fed or dropped."""

    rows: list[TokenIds] = field(default_factory=list)  # ids of each sequence
    counted: list[BoolArray] = field(default_factory=list)  # which of them enter the sums
    # Each token's place in its document, per sequence; empty if no sequence holds several.
    positions: list[TokenIds] = field(default_factory=list)
    # The document of each sequence among those fed, see `TokenSequences.documents`.
    documents: list[int] = field(default_factory=list)
    num_read: int = 0  # tokens read
    num_documents: int = 0  # documents fed at least in part
    num_dropped_documents: int = 0  # documents not fed at all
    num_too_much: int = 0  # tokens of the document that no longer fitted and ended the reading

    @property
    def num_dropped(self) -> int:
        """Tokens read that are in no sequence."""
        return self.num_read - sum(map(len, self.rows))

    def add(self, parts: Sequence[Tokens], document: int) -> None:
        """Add a sequence that is mostly of this document."""
        self.rows.append(np.concatenate([part.ids for part in parts]))
        self.counted.append(np.concatenate([_counted(part) for part in parts]))
        self.documents.append(document)


def _counted(item: Tokens) -> BoolArray:
    return np.ones(len(item.ids), dtype=np.bool_) if item.counted is None else item.counted


def concatenate(documents: Iterator[Tokens], sampling: Sampling) -> TokenRows:
    """Documents joined end to end and cut into sequences of equal length.

    A document sees those before it in its sequence, as in pre-training and in HEAPr. Each is cut to
    `windows_per_document` before.
    """
    packed = TokenRows()
    limit = sampling.tokens // sampling.seq_len * sampling.seq_len
    items: list[Tokens] = []
    num_used = 0
    for item in documents:
        items.append(item.part(0, min(len(item.ids), sampling.most_of_document or limit)))
        num_used += len(items[-1].ids)
        packed.num_read += len(item.ids)
        packed.num_documents += 1
        if num_used >= limit:
            break
    length = min(limit, num_used // sampling.seq_len * sampling.seq_len)
    if length:
        stream = Tokens(
            np.concatenate([item.ids for item in items]),
            np.concatenate([_counted(item) for item in items]),
        )
        ends = np.cumsum([len(item.ids) for item in items])
        for start in range(0, length, sampling.seq_len):
            end = start + sampling.seq_len
            shares = np.diff(np.clip(ends, start, end), prepend=start)
            packed.add([stream.part(start, end)], int(np.argmax(shares)))
    return packed


def _fitting(
    documents: Iterator[Tokens], sampling: Sampling, packed: TokenRows
) -> Iterator[Tokens]:
    """Documents cut to the length of a sequence, or whole, until the tokens are used up."""
    fed = 0
    for item in documents:
        size = len(item.ids)
        packed.num_read += size
        keep = size if sampling.whole else min(size, sampling.seq_len)
        if size == 0 or (size > keep and sampling.truncate == "drop"):
            packed.num_dropped_documents += 1
            continue
        if fed + keep > sampling.tokens:
            packed.num_dropped_documents += 1
            packed.num_too_much = keep
            return
        fed += keep
        packed.num_documents += 1
        yield item.part(size - keep, size) if sampling.truncate == "tail" else item.part(0, keep)


def pad(documents: Iterator[Tokens], sampling: Sampling) -> TokenRows:
    """One document per sequence; batches pad the shorter ones."""
    packed = TokenRows()
    for number, item in enumerate(_fitting(documents, sampling, packed)):
        packed.add([item], number)
    return packed


def pack(documents: Iterator[Tokens], sampling: Sampling) -> TokenRows:
    """Several whole documents per sequence, which do not see each other.

    A document goes into the first of at most sixteen open sequences with room for it; if none has,
    the fullest is closed. No document is split; one longer than a sequence has one to itself.
    """
    packed = TokenRows()
    rows: list[list[tuple[int, Tokens]]] = []
    for number, item in enumerate(_fitting(documents, sampling, packed)):
        place = next((row for row in rows if _size(row) + len(item.ids) <= sampling.seq_len), None)
        if place is None:
            if len(rows) == _OPEN_ROWS:
                fullest = max(range(_OPEN_ROWS), key=lambda at: _size(rows[at]))
                _close(packed, rows.pop(fullest))
            rows.append(place := [])
        place.append((number, item))
    for row in rows:
        _close(packed, row)
    return packed


def _size(row: Sequence[tuple[int, Tokens]]) -> int:
    return sum(len(item.ids) for _, item in row)


def _close(packed: TokenRows, row: Sequence[tuple[int, Tokens]]) -> None:
    largest, _ = max(row, key=lambda pair: len(pair[1].ids))
    packed.add([item for _, item in row], largest)
    places = [np.arange(len(item.ids), dtype=np.int32) for _, item in row]
    packed.positions.append(np.concatenate(places))


PACKERS: Mapping[Packing, Callable[[Iterator[Tokens], Sampling], TokenRows]] = {
    "concatenate": concatenate,
    "pack": pack,
    "pad": pad,
}


@dataclass(frozen=True, slots=True)
class DocumentSelection:
    """A choice among the documents, made on their token ids."""

    choose: Callable[[Documents, int], Documents]  # (documents in seeded order, seed) -> chosen
    description: str  # for manifests
    reads: int = 0  # tokens of a document that the choice is made on, at most


def tokenize(
    documents: Source | Sequence[Document],
    tokenizer: Tokenizer | None,
    sampling: Sampling,
    *,
    corpus: str,
    selection: DocumentSelection | None = None,
) -> TokenSequences:
    """Token sequences drawn in seeded order; reads no more documents than needed."""
    source = documents if isinstance(documents, Source) else in_memory(documents)
    if source.join is not None:
        return _tokenize_joined(source, tokenizer, sampling, corpus, selection)
    first, peeked = peek(source, sampling.seed)
    if first is None:
        raise CorpusError(f"The corpus {corpus} is empty.")
    packing = packing_of(sampling, first)
    extent = partial(_usable_extent, sampling, packing, selection)
    account = RowAccount(source.skips)
    encoder = partial(encode, tokenizer=tokenizer, chat=sampling.chat, corpus=corpus)
    encoded = encode_all(peeked.draw(sampling.seed), encoder, account, corpus, extent)
    if selection is not None:
        encoded = selection.choose(encoded, sampling.seed)
    is_whole = first.input_ids is not None and sampling.whole
    packed = PACKERS[packing](encoded, replace(sampling, whole=is_whole))
    if not packed.rows:
        account.check_used()
        raise CorpusError(_nothing(packed, sampling, packing, corpus))
    facts: dict[str, object] = {"packing": packing, "count": sampling.count, **account.facts}
    if selection is not None:
        facts["select"] = selection.description
    if first.messages is not None and sampling.template_args:
        facts["template_args"] = dict(sampling.template_args)
    if packing == "concatenate" and sampling.windows_per_document is not None:
        facts["windows_per_document"] = sampling.windows_per_document
    if packing != "concatenate":
        facts["truncate"] = "none" if is_whole else sampling.truncate
    return _sequences(packed, source, sampling, corpus, facts)


def _usable_extent(
    sampling: Sampling, packing: Packing, selection: DocumentSelection | None, num_used: int
) -> Extent:
    """The tokens of the next document that can be used, after `num_used` tokens."""
    if packing == "concatenate":
        most = sampling.tokens // sampling.seq_len * sampling.seq_len
        most -= num_used if selection is None else 0  # a selection may leave documents out
        most = min(most, sampling.most_of_document or most)
    else:
        most = sampling.seq_len + 1  # the last one shows that the document is longer
    most = max(most, selection.reads if selection is not None else 0)
    return Extent(most, from_end=packing != "concatenate" and sampling.truncate == "tail")


def _nothing(packed: TokenRows, sampling: Sampling, packing: Packing, corpus: str) -> str:
    """Why there is no sequence."""
    if packed.num_read == 0:
        return f"The corpus {corpus} has no tokens."
    if packing != "concatenate" and packed.num_too_much:
        return (
            f"The first sequence of the corpus {corpus} would have {packed.num_too_much} tokens, "
            f"more than the {sampling.tokens} asked for; use more tokens or a shorter sequence "
            "length."
        )
    if packing != "concatenate":
        return (
            f"Every document of the corpus {corpus} is longer than {sampling.seq_len} tokens; "
            "use a longer sequence length or --truncate head."
        )
    return too_short(corpus, str(packed.num_read), sampling.seq_len)


def too_short(corpus: str, count: str, seq_len: int) -> str:
    """Message for a corpus of so many tokens, less than one sequence."""
    return (
        f"The corpus {corpus} has {count} tokens, less than one sequence of {seq_len}; use a "
        "longer corpus or a shorter sequence length."
    )


def _tokenize_joined(
    source: Source,
    tokenizer: Tokenizer | None,
    sampling: Sampling,
    corpus: str,
    selection: DocumentSelection | None,
) -> TokenSequences:
    """All documents joined, tokenised as one text and cut into sequences, drawn at random.

    HEAPr treats WikiText-2 so (appendix B): joined with blank lines, 128 sequences drawn.
    """
    if selection or sampling.packing not in ("auto", "concatenate") or sampling.count != "all":
        raise CorpusError(
            f"The corpus {corpus} is one text whose sequences are drawn at random; it takes no "
            "--packing, --count or --select."
        )
    check_joins(sampling)
    parts: list[str] = []
    length = 0
    for document in source.draw(0):
        if document.problem is not None:
            raise document.problem
        if document.text is None:
            raise CorpusError(f"The corpus {corpus} is joined to one text, but has a row without.")
        parts.append(document.text)
        length += len(document.text)
        if length > _LONGEST_JOINED:
            raise CorpusError(
                f"The corpus {corpus} is joined to one text, but has more than "
                f"{_LONGEST_JOINED >> 20} MiB; is it a copy of another dataset?"
            )
    text = Document(text=(source.join or "").join(parts))
    stream = encode(text, tokenizer, ChatFormat(), corpus, Extent(_LONGEST_JOINED))
    # The joined text holds no end-of-document token.
    if tokenizer is not None and len(stream.ids) and stream.ids[-1] == tokenizer.eos_token_id:
        stream = stream.part(0, len(stream.ids) - 1)
    joined_sampling = replace(
        sampling, packing="auto", tokens=len(stream.ids), windows_per_document=None
    )
    packed = concatenate(iter([stream]), joined_sampling)
    if not packed.rows:
        raise CorpusError(_nothing(packed, sampling, "concatenate", corpus))
    order = np.random.default_rng(sampling.seed).permutation(len(packed.rows))
    chosen = order[: sampling.tokens // sampling.seq_len]
    packed.rows = [packed.rows[number] for number in chosen]
    packed.counted = [packed.counted[number] for number in chosen]
    facts = {"packing": "concatenate", "count": "all", "drawn": "sequences of one text"}
    return _sequences(packed, source, sampling, corpus, facts)


def _sequences(
    packed: TokenRows, source: Source, sampling: Sampling, corpus: str, facts: Mapping[str, object]
) -> TokenSequences:
    counted = tuple(packed.counted)
    if sampling.count == "response" and not any(row.any() for row in counted):
        raise CorpusError(
            f"No response token of the corpus {corpus} is in a sequence; use a longer sequence "
            "length, --truncate tail, or --count all."
        )
    return TokenSequences(
        corpus,
        tuple(packed.rows),
        packed.num_documents,
        packed.num_dropped,
        counted=None if all(row.all() for row in counted) else counted,
        positions=tuple(packed.positions) or None,
        num_dropped_documents=packed.num_dropped_documents,
        documents=tuple(packed.documents) if source.join is None else None,
        prepared={**facts, **source.facts},
    )
