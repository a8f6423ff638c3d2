"""Draws evaluation documents of a corpus that calibration has not read, as far as known.

Calibration reads documents in a seeded order, and its manifest says how many. Those that follow in
the same order are new to it, but may repeat what it read: tokens of long runs that it read as well
are not predicted. The demo's corpora have parts that neither training, calibration nor benchmarks
use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from analysis.corpora.account import SKIPPED_ROWS, RowAccount, row_facts
from analysis.corpora.cutting import Extent
from analysis.corpora.documents import Document
from analysis.corpora.encoding import TextReader, encode, encode_all
from analysis.corpora.near_copies import NewTokens, TokenRuns
from analysis.corpora.sampling import DocumentSelection, tokenize
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import Source, fitness_source, peek
from analysis.corpora.spec import bare_name, corpus_name, is_same_corpus
from analysis.corpora.tokens import ChatFormat, Tokenizer
from analysis.demo.listing import DEMO_CORPORA
from analysis.stats.manifest import CorpusRef
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.questions import draw_questions, known_text
from pruning.measures.sample_settings import (
    BEYOND,
    DEFAULT_SEED,
    HELD_OUT,
    UNREAD,
    UNSURE,
    SampleSettings,
)


class Reading(Protocol):
    """A calibration or repair, by the documents that it read."""

    @property
    def corpora(self) -> Sequence[CorpusRef]:
        """What it read."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """With the `seed` of the order of documents."""


class _UnreadDocuments(NamedTuple):
    """Documents to evaluate on."""

    source: Source
    seed: int
    skipped: int
    words: str  # what is known of them
    tokens_read: int = 0  # at most, of the documents skipped


def draw(
    corpus: str,
    source: Source,
    runs: Iterable[Reading],
    settings: SampleSettings,
    tokenizer: Callable[[], Tokenizer],
) -> DrawnSamples:
    """The sequences to evaluate on: documents that no known run has read, if there are any.

    `runs` are calibrations and repairs of the model. The tokenizer is not loaded if rows are
    token ids.
    """
    name = corpus_name(corpus)
    unread = _find_unread(name, source, runs, settings.seed)
    first, documents = peek(unread.source, unread.seed)
    if first is None and unread.skipped:
        unread = _UnreadDocuments(source, unread.seed, 0, UNSURE)
        first, documents = peek(source, unread.seed)
    is_running = first is None or first.text is not None
    has_answers = first is not None and (first.messages is not None or first.answer is not None)
    by_answers = settings.scored == "response" or (settings.scored == "auto" and has_answers)
    reader = tokenizer() if first is None or first.input_ids is None else None
    runs_read = _runs_read(source, unread, name, reader, settings.template_args)
    new = NewTokens(runs_read)
    selection = DocumentSelection(lambda stream, _seed: new.of(stream), new.words)
    if not is_running:
        selection = DocumentSelection(
            # Already in drawn order.
            lambda stream, _seed: islice(new.of(stream), settings.samples),
            f"the first {settings.samples} documents",
        )
    sequences = tokenize(
        documents,
        reader,
        Sampling(
            settings.samples * settings.seq_len,
            settings.seq_len,
            unread.seed,
            packing="concatenate" if is_running or source.join is not None else "pad",
            count="response" if by_answers else "all",
            template_args=settings.template_args,
            windows_per_document=settings.windows,
        ),
        corpus=name,
        selection=selection if unread.skipped or not is_running else None,
    )
    facts = {"seed": unread.seed, "drawn": unread.words, "skipped": unread.skipped}
    if unread.skipped:
        facts |= {"near_copies": new.num_left_out}
    facts |= {"seq_len": settings.seq_len, **sequences.prepared}
    questions = None
    if settings.questions is not None:
        known = known_text(source, unread.seed, unread.skipped, runs_read)
        asker = TextReader(tokenizer(), name, arguments=settings.template_args)
        questions = draw_questions(unread.source, unread.seed, known, settings.questions, asker)
    return DrawnSamples(sequences, facts, _shortfall(sequences, settings.samples), questions)


def _shortfall(sequences: TokenSequences, asked: int) -> str:
    count, documents = len(sequences.rows), sequences.num_documents
    if count >= asked:
        return ""
    words = f"{bare_name(sequences.corpus)} gives {count} of {asked} samples"
    if windows := sequences.prepared.get("windows_per_document"):
        return (
            f"{words}: it has {documents} documents, each gives {windows} at most; give more "
            "documents, or --windows-per-document 0 for intervals that rest on few."
        )
    return f"{words}: it has no more text."


def _runs_read(
    source: Source,
    unread: _UnreadDocuments,
    name: str,
    tokenizer: Tokenizer | None,
    template_args: Mapping[str, Any],
) -> TokenRuns:
    """The runs of tokens of the documents that were skipped, as calibration read them."""
    chat, extent = ChatFormat(arguments=template_args), Extent(unread.tokens_read)
    encoder = partial(encode, tokenizer=tokenizer, chat=chat, corpus=name)
    read = islice(source.draw(unread.seed), unread.skipped)
    # Calibration left bad rows out, if there were any.
    account = RowAccount(unread.skipped)
    return TokenRuns.of(
        tokens.ids for tokens in encode_all(read, encoder, account, name, lambda _: extent)
    )


def _find_unread(
    name: str, source: Source, runs: Iterable[Reading], seed: int | None
) -> _UnreadDocuments:
    default = DEFAULT_SEED if seed is None else seed
    if name in DEMO_CORPORA:
        return _UnreadDocuments(fitness_source(name), default, 0, HELD_OUT)
    runs = list(runs)
    if not (read := _documents_read(name, runs)):
        corpora = (corpus for manifest in runs for corpus in manifest.corpora)
        # Such a file may be an earlier state of this one.
        has_namesake = any(bare_name(corpus.name) == bare_name(name) for corpus in corpora)
        return _UnreadDocuments(source, default, 0, UNSURE if has_namesake else UNREAD)
    if seed is None:
        seed = max(read, key=lambda known_seed: (read[known_seed] or 0, known_seed))
    skipped = read.get(seed)
    if source.join is not None or skipped is None:
        return _UnreadDocuments(source, seed, 0, UNSURE)
    order = seed

    def draw(_: int) -> Iterator[Document]:
        return islice(source.draw(order), skipped, None)

    words = BEYOND if len(read) == 1 else UNSURE
    same = (ref for run in runs for ref in run.corpora if is_same_corpus(ref.name, name))
    tokens_read = max(ref.num_tokens + ref.num_dropped for ref in same)
    return _UnreadDocuments(replace(source, draw=draw), seed, skipped, words, tokens_read)


def _documents_read(name: str, runs: Iterable[Reading]) -> dict[int, int | None]:
    """Seed -> documents that calibration read in this order; None if unknown."""
    read: dict[int, int | None] = {}
    for manifest in runs:
        for corpus in manifest.corpora:
            if not is_same_corpus(corpus.name, name):
                continue
            seed = int(manifest.settings.get("seed", DEFAULT_SEED))
            count = corpus.num_documents + corpus.num_dropped_documents
            count += row_facts(corpus.prepared).get(SKIPPED_ROWS, 0)
            before = read.get(seed, 0)
            # A selection has read more documents than it fed.
            is_unknown = before is None or "select" in corpus.prepared
            read[seed] = None if is_unknown else max(before or 0, count)
    return read
