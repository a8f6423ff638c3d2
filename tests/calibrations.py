"""Calibrations of tiny models: token sequences, settings, and what two runs have in common."""

import numpy as np
import pandas as pd

from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.run import calibrate
from analysis.corpora.documents import Document
from analysis.corpora.sampling import tokenize
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.settings import Sampling
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from builders import VOCAB, tiny_checkpoint

LENGTHS = (9, 5, 7, 3, 9, 2, 6)


def make_sequences(lengths=LENGTHS, seed=5, corpus="letters.jsonl", vocabulary=VOCAB):
    rng = np.random.default_rng(seed)
    rows = tuple(rng.integers(3, vocabulary, size=n).astype(np.int32) for n in lengths)
    return TokenSequences(corpus, rows, len(rows), 0)


def part_of(sequences, start, stop):
    rows = sequences.rows[start:stop]
    return TokenSequences(sequences.corpus, rows, len(rows), 0)


def make_settings(**changes):
    return CalibrationSettings(**{"seq_len": 9, "batch_size": 3, "device": "cpu", **changes})


def calibration(described, stats, sequences=None, **settings):
    """The task of a run that goes into a folder of statistics, or into a store."""
    store = stats if isinstance(stats, StatsStore) else StatsStore(stats)
    return calibrate(described, sequences or make_sequences(), make_settings(**settings), store)


def calibrated(described, stats, sequences=None, **settings):
    return drain(calibration(described, stats, sequences, **settings))


def watched(task):
    """What a task gives, and its steps."""
    steps = []
    return drain(task, steps.append), steps


def labelled(packing, count="all"):
    """Documents of the usual lengths, of whose tokens about half are answers."""
    rng = np.random.default_rng(5)
    documents = [
        Document(
            input_ids=tuple(rng.integers(3, VOCAB, size=length).tolist()),
            answer=tuple((rng.random(length) < 0.5).tolist()) if count == "response" else None,
        )
        for length in LENGTHS
    ]
    return tokenize(documents, None, Sampling(100, 12, packing=packing, count=count), corpus="ids")


def describe(path, model_type="olmoe", **options):
    tiny_checkpoint(path, model_type, **options)
    return load_model_index(str(path))


def table_of(run):
    return load_expert_stats(run).table


def assert_same_numbers(run, other):
    """Bit for bit: the files, hence every number in them."""
    assert run.manifest.files == other.manifest.files
    pd.testing.assert_frame_equal(table_of(run), table_of(other), check_exact=True)
