"""Builders that the tests of `analysis` share: statistics without a model, runs on disk."""

import numpy as np
import pandas as pd
import pytest
from threads import one_thread  # noqa: F401

from analysis.families import MoELayer
from analysis.stats.grid import Grid
from analysis.stats.groups import GROUP_COLUMNS
from analysis.stats.store import digest_of, run_name, save_expert_stats
from analysis.stats.tables import EXPERT_COLUMNS, CorpusRef, ExpertStats, MeasuredModel, RunManifest

HIDDEN = 5


def _layers(counts, top_k=2):
    # Decoder indices with a gap, so that a position never passes for a layer.
    return tuple(MoELayer(3 + 4 * i, count, top_k) for i, count in enumerate(counts))


def _manifest(counts, corpora, identity, dtype, kind="routed"):
    refs = tuple(
        CorpusRef(name, digest_of({"tokens of": name}), 3, 2, 40, 6, 1, 40) for name in corpora
    )
    digest = digest_of({"model": identity, "corpora": list(corpora), "dtype": dtype, "kind": kind})
    return RunManifest(
        kind=kind,
        run_id=run_name(identity, *corpora, digest=digest),
        digest=digest,
        model=MeasuredModel(identity, identity, "olmoe", _layers(counts)),
        corpora=refs,
        settings={"seq_len": 20, "seed": 42, "dtype": dtype},
        made={"created_at": "2026-01-02T03:04:05+00:00"},
    )


@pytest.fixture
def make_manifest():
    """Manifest of a run that no model made."""

    def make(counts=(5, 3), corpora=("prose",), identity="tiny", dtype="float32", kind="routed"):
        return _manifest(counts, corpora, identity, dtype, kind)

    return make


@pytest.fixture
def make_stats():
    """ExpertStats from chosen columns; columns that are not given are NaN, so none is read."""

    def make(counts=None, identity="tiny", corpora=("prose",), **columns):
        counts = counts or (len(next(iter(columns.values()))),)
        manifest = _manifest(counts, corpora, identity, "float32")
        table = Grid(manifest.model.layers).index()
        blank = dict.fromkeys((*EXPERT_COLUMNS, "damage"), np.nan)
        del blank["layer"], blank["expert"]
        return ExpertStats(manifest, table.assign(**{**blank, **columns}))

    return make


def _random_tokens(rng, count):
    """(tokens of each expert, g, g renormalised, f) of `count` experts; one is never routed."""
    tokens = rng.integers(2, 9, size=count)
    tokens[count // 2] = 0
    for n in tokens:
        gates = rng.uniform(0.05, 0.6, size=n)
        yield gates, gates / rng.uniform(0.7, 1.0, size=n), rng.normal(size=(n, HIDDEN))


def _random_neurons(f):
    """The columns of the group `gradient` of experts whose neurons are the numbers of f."""
    slopes = np.arange(1.0, HIDDEN + 1.0)
    return {
        "neuron_product": ((f**2).sum(axis=0) * slopes * len(f)).sum(),
        "neuron_norm_sum": np.sqrt((f**2).sum(axis=0)).sum(),
        "neuron_peak_sum": np.abs(f).max(axis=0, initial=0.0).sum(),
    }


def _random_columns(seed, count):
    rng = np.random.default_rng(seed)
    rows, vectors = [], []
    for applied, renormalized, f in _random_tokens(rng, count):
        norms = np.sqrt((f**2).sum(axis=1))
        row = {"num_tokens": len(f), "g0_f1": norms.sum(), "g0_f2": (norms**2).sum()}
        for gate, g in (("applied", applied), ("renormalized", renormalized)):
            for a in (1, 2):
                for b in (0, 1, 2):
                    row[f"{gate}_g{a}_f{b}"] = (g**a * norms**b).sum()
        row["damage"] = (applied * norms * norms).sum()
        row |= _random_neurons(f)
        rows.append(row)
        vectors.append(f.sum(axis=0))
    return pd.DataFrame(rows), np.array(vectors)


@pytest.fixture
def random_stats():
    """ExpertStats whose sums come from made-up tokens, so that they are consistent."""

    def make(seed, counts=(5, 3), identity="tiny", corpora=("prose",)):
        columns, vectors = _random_columns(seed, sum(counts))
        manifest = _manifest(counts, corpora, identity, "float32")
        table = Grid(manifest.model.layers).index().join(columns)
        return ExpertStats(manifest, table.assign(vector_sum_sq=(vectors**2).sum(axis=1)))

    return make


@pytest.fixture
def save_run(tmp_path):
    """A calibration run in a directory, made of random but consistent sums; without neurons."""

    def save(
        seed,
        *,
        counts=(5, 3),
        corpora=("prose",),
        identity="tiny",
        dtype="float32",
        parent=None,
        repeat=1,
    ):
        columns, vectors = _random_columns(seed, sum(counts))
        manifest = _manifest(counts, corpora, identity, dtype)
        columns = columns.drop(columns=list(GROUP_COLUMNS["gradient"]))
        table = Grid(manifest.model.layers).index().join(columns * repeat)
        return save_expert_stats(parent or tmp_path / "stats", manifest, table, vectors * repeat)

    return save
