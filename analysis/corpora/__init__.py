"""Calibration corpora: a name or a file -> documents -> token sequences, seeded and counted.

Datasets of the hub are read by `analysis.corpora.streams`, which imports `datasets`; k-means
selection is in `analysis.corpora.representatives`, which imports scikit-learn. Nothing here does.
"""

from analysis.corpora.documents import Document, Fields, demo_document
from analysis.corpora.encoding import Count, Tokenizer, Tokens
from analysis.corpora.packing import Packing, Sampling, Truncate
from analysis.corpora.presets import PRESETS
from analysis.corpora.sampling import Selection, tokenize
from analysis.corpora.sequences import TOKEN_SHARDS, TokenBatch, TokenSequences
from analysis.corpora.sources import Source, peek
from analysis.corpora.spec import corpus_name, parse_corpus

__all__ = [
    "PRESETS",
    "TOKEN_SHARDS",
    "Count",
    "Document",
    "Fields",
    "Packing",
    "Sampling",
    "Selection",
    "Source",
    "TokenBatch",
    "TokenSequences",
    "Tokenizer",
    "Tokens",
    "Truncate",
    "corpus_name",
    "demo_document",
    "parse_corpus",
    "peek",
    "tokenize",
]
