"""Token sequences of a corpus: which documents, how they are cut, and what counts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from analysis.corpora.documents import Document
from analysis.corpora.encoding import Count, Tokenizer, Tokens, encode
from analysis.corpora.packing import (
    PACKERS,
    Packing,
    Sampling,
    TokenRows,
    check_joins,
    concatenate,
)
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.sources import Source, in_memory
from analysis.errors import CorpusError

_LONGEST_JOINED = 1 << 28  # characters
Documents = Iterator[Tokens]


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice among the documents, made on their token ids."""

    choose: Callable[[Documents, int], Documents]  # documents in seeded order, seed -> those to use
    description: str  # what manifests say of it


def tokenize(
    documents: Source | Sequence[Document],
    tokenizer: Tokenizer | None,
    sampling: Sampling,
    *,
    corpus: str,
    selection: Selection | None = None,
) -> TokenSequences:
    """Token sequences drawn in seeded order; no more documents are read than are needed."""
    source = documents if isinstance(documents, Source) else in_memory(documents)
    if source.join is not None:
        return _one_text(source, tokenizer, sampling, corpus, selection)
    drawn = source.drawn(sampling.seed)
    first = next(drawn, None)
    if first is None:
        raise CorpusError(f"The corpus {corpus} is empty.")
    ready = first.input_ids is not None
    packing: Packing = sampling.packing
    if packing == "auto":
        packing = "pad" if ready else "concatenate"
    if packing == "concatenate":
        check_joins(sampling)
    encoded = _encoded(chain([first], drawn), tokenizer, sampling.count, corpus)
    if selection is not None:
        encoded = selection.choose(encoded, sampling.seed)
    whole = ready and sampling.whole
    packed = PACKERS[packing](encoded, replace(sampling, whole=whole))

    if not packed.rows:
        raise CorpusError(_nothing(packed, sampling, packing, corpus))
    facts: dict[str, object] = {"packing": packing, "count": sampling.count}
    if selection is not None:
        facts["select"] = selection.description
    if packing != "concatenate":
        facts["truncate"] = "none" if whole else sampling.truncate
    return _sequences(packed, source, sampling, corpus, facts)


def _encoded(
    documents: Iterator[Document], tokenizer: Tokenizer | None, count: Count, corpus: str
) -> Iterator[Tokens]:
    ready = None
    for document in documents:
        is_ready = document.input_ids is not None
        if ready is not None and ready != is_ready:
            raise CorpusError(f"The corpus {corpus} mixes token ids with text; give one kind.")
        ready = is_ready
        yield encode(document, tokenizer, count, corpus)


def _nothing(packed: TokenRows, sampling: Sampling, packing: Packing, corpus: str) -> str:
    """Why there is no sequence."""
    if packed.num_read == 0:
        return f"The corpus {corpus} holds no token."
    if packing != "concatenate" and packed.num_too_much:
        return (
            f"The first sequence of the corpus {corpus} would have {packed.num_too_much} tokens, "
            f"more than the {sampling.tokens} asked for; ask for more tokens or a shorter "
            "sequence length."
        )
    if packing != "concatenate":
        return (
            f"Every document of the corpus {corpus} is longer than {sampling.seq_len} tokens; "
            "give a greater sequence length or --truncate head."
        )
    return (
        f"The corpus {corpus} has {packed.num_read} tokens, less than one sequence of "
        f"{sampling.seq_len}; give a longer corpus or a shorter sequence length."
    )


def _one_text(
    source: Source,
    tokenizer: Tokenizer | None,
    sampling: Sampling,
    corpus: str,
    selection: Selection | None,
) -> TokenSequences:
    """All documents as one text, cut into sequences, of which some are drawn.

    As HEAPr does with WikiText-2 (appendix B): joined with blank lines, tokenised as a whole, cut
    into consecutive sequences, 128 of them chosen at random.
    """
    if selection or sampling.packing not in ("auto", "concatenate") or sampling.count != "all":
        raise CorpusError(
            f"The corpus {corpus} is one text, whose sequences are drawn at random; it takes "
            "neither --packing, --count nor --select."
        )
    check_joins(sampling)
    parts: list[str] = []
    length = 0
    for document in source.drawn(0):
        if document.text is None:
            raise CorpusError(f"The corpus {corpus} is joined to one text, but a row is no text.")
        parts.append(document.text)
        length += len(document.text)
        if length > _LONGEST_JOINED:
            raise CorpusError(
                f"The corpus {corpus} is joined to one text, but holds more than "
                f"{_LONGEST_JOINED >> 20} MiB; is it a copy of another dataset?"
            )
    stream = encode(Document(text=(source.join or "").join(parts)), tokenizer, "all", corpus)
    # The one text has no end of a document in it.
    if tokenizer is not None and len(stream.ids) and stream.ids[-1] == tokenizer.eos_token_id:
        stream = stream.part(0, len(stream.ids) - 1)
    packed = concatenate(iter([stream]), replace(sampling, packing="auto", tokens=len(stream.ids)))
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
            f"No token of a response of the corpus {corpus} is in a sequence; give a greater "
            "sequence length, --truncate tail, or --count all."
        )
    return TokenSequences(
        corpus,
        tuple(packed.rows),
        packed.num_documents,
        packed.num_dropped,
        counted=None if all(row.all() for row in counted) else counted,
        positions=tuple(packed.positions) or None,
        num_dropped_documents=packed.num_dropped_documents,
        prepared={**facts, **source.facts},
    )
