"""Calibration corpora: a name or a file -> documents -> token sequences, seeded and counted.

What is listed here imports neither `datasets` (`streams` does, for datasets of the hub) nor
scikit-learn (`representatives` does, for k-means selection).
"""

from analysis.corpora.documents import Document, Fields, demo_document
from analysis.corpora.encoding import ChatFormat, Count, Tokenizer, Tokens
from analysis.corpora.sampling import DocumentSelection, Packing, Sampling, Truncate, tokenize
from analysis.corpora.sequences import TOKEN_SHARDS, TokenBatch, TokenSequences
from analysis.corpora.sources import Source, peek
from analysis.corpora.spec import (
    PRESETS,
    bare_name,
    content_of,
    corpus_name,
    is_same_corpus,
    name_among,
    parse_corpus,
    with_check,
)

__all__ = [
    "PRESETS",
    "TOKEN_SHARDS",
    "ChatFormat",
    "Count",
    "Document",
    "DocumentSelection",
    "Fields",
    "Packing",
    "Sampling",
    "Source",
    "TokenBatch",
    "TokenSequences",
    "Tokenizer",
    "Tokens",
    "Truncate",
    "bare_name",
    "content_of",
    "corpus_name",
    "demo_document",
    "is_same_corpus",
    "name_among",
    "parse_corpus",
    "peek",
    "tokenize",
    "with_check",
]
