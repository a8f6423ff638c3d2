"""Statistics that no model made: of chosen columns, or of consistent random sums."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.corpora.sequences import TokenSequences
from analysis.families.base import MoELayer
from analysis.files.naming import digest_of, run_name
from analysis.stats.columns import EXPERT_COLUMNS, LARGEST
from analysis.stats.grid import Grid
from analysis.stats.manifest import CorpusRef, MeasuredModel, RunManifest
from analysis.stats.tables import ExpertStats

HIDDEN = 5
TINY = MeasuredModel("tiny", "0" * 64, "olmoe", (MoELayer(1, 5, 2), MoELayer(3, 5, 2)))


def layers_of(counts: Sequence[int]) -> tuple[MoELayer, ...]:
    """Decoder indices with a gap, so that a position never passes for a layer."""
    return tuple(MoELayer(3 + 4 * place, count, 2) for place, count in enumerate(counts))


def grid_of(*counts: int) -> Grid:
    """The grid of layers of so many experts."""
    return Grid(layers_of(counts))


def expert_stats(seed: int = 0, corpus: str = "text", model: MeasuredModel = TINY) -> ExpertStats:
    """Random but seeded: of layers 1 and 3 of five experts each, or of a model."""
    generator = np.random.default_rng(seed)
    table = Grid(model.layers).index()
    columns = {
        name: generator.random(len(table)) * 100 + 1
        for name in EXPERT_COLUMNS
        if name not in ("layer", "expert")
    }
    # What sums can be: (sum of n norms)^2 is at most n times the sum of their squares.
    least = columns["g0_f1"] ** 2 / np.floor(columns["num_tokens"])
    columns["g0_f2"] = np.maximum(columns["g0_f2"], least)
    columns[LARGEST] = np.minimum(columns[LARGEST], np.sqrt(columns["g0_f2"]))
    corpora = (CorpusRef(corpus, f"{seed:064d}", 1, 1, 101, 0, 0, 101),)
    run_id, digest = f"{model.name}-{corpus}", f"{seed:064d}"
    manifest = RunManifest("routed", run_id, digest, model, corpora, {"dtype": "float32"}, {})
    return ExpertStats(manifest, table.assign(**columns).astype(dict(EXPERT_COLUMNS)))


def run_manifest(
    counts=(5, 3), corpora=("prose",), identity="tiny", dtype="float32", kind="routed"
) -> RunManifest:
    """Of a run whose layers have so many experts."""
    refs = tuple(
        CorpusRef(name, digest_of({"tokens of": name}), 3, 2, 40, 6, 1, 40) for name in corpora
    )
    digest = digest_of({"model": identity, "corpora": list(corpora), "dtype": dtype, "kind": kind})
    return RunManifest(
        kind=kind,
        run_id=run_name(identity, *corpora, digest=digest),
        digest=digest,
        model=MeasuredModel(identity, identity, "olmoe", layers_of(counts)),
        corpora=refs,
        settings={"seq_len": 20, "seed": 42, "dtype": dtype},
        made={"created_at": "2026-01-02T03:04:05+00:00"},
    )


def run_on(sequences: TokenSequences, seed: int = 42, **prepared: object) -> RunManifest:
    """Of a calibration on these sequences, as corpora know it."""
    ref = CorpusRef(
        *(sequences.corpus, sequences.digest, sequences.num_documents, len(sequences.rows)),
        *(sequences.num_tokens, 0, 0, sequences.num_counted),
        num_dropped_documents=sequences.num_dropped_documents,
        prepared=prepared,
    )
    model = MeasuredModel("tiny", "00" * 32, "olmoe", ())
    return RunManifest("routed", "run", "0", model, (ref,), {"seed": seed}, {})


def stats_of(counts=None, identity="tiny", corpora=("prose",), **columns) -> ExpertStats:
    """Of chosen columns; those that are not given are NaN, so none is read."""
    manifest = run_manifest(counts or (len(next(iter(columns.values()))),), corpora, identity)
    blank = dict.fromkeys((*EXPERT_COLUMNS, "damage"), np.nan)
    del blank["layer"], blank["expert"]
    table = Grid(manifest.model.layers).index()
    return ExpertStats(manifest, table.assign(**{**blank, **columns}))


def random_stats(seed, counts=(5, 3), identity="tiny", corpora=("prose",)) -> ExpertStats:
    """Sums of made-up tokens, so that they are consistent."""
    columns, vectors = random_columns(seed, sum(counts))
    manifest = run_manifest(counts, corpora, identity)
    table = Grid(manifest.model.layers).index().join(columns)
    return ExpertStats(manifest, table.assign(vector_sum_sq=(vectors**2).sum(axis=1)))


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


def random_columns(seed, count):
    """The columns of made-up tokens of so many experts, and the vector sum of each expert."""
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
        row[LARGEST] = np.abs(f).max(initial=0.0)
        row |= _random_neurons(f)
        rows.append(row)
        vectors.append(f.sum(axis=0))
    return pd.DataFrame(rows), np.array(vectors)
