"""What a calibration run is before it runs: its manifest, and a cached run that already has it."""

from pathlib import Path

from analysis.calibration.loading import CalibrationSettings, resolve_dtype
from analysis.corpora.encoding import check_token_ids
from analysis.corpora.sequences import TokenSequences
from analysis.files.naming import digest_of, run_name
from analysis.model.moe_model import MoEModel
from analysis.stats.columns import ordered
from analysis.stats.manifest import SCHEMA_VERSION, CorpusRef, Run, RunManifest, measured_model
from analysis.stats.store import StatsStore


def corpus_ref(sequences: TokenSequences, batch_size: int) -> CorpusRef:
    """The manifest's entry of the corpus."""
    return CorpusRef(
        name=sequences.corpus,
        digest=sequences.digest,
        num_documents=sequences.num_documents,
        num_sequences=len(sequences.rows),
        num_tokens=sequences.num_tokens,
        num_padded=sequences.num_padded(batch_size),
        num_dropped=sequences.num_dropped,
        num_counted=sequences.num_counted,
        num_dropped_documents=sequences.num_dropped_documents,
        prepared=sequences.prepared,
        path=sequences.path,
    )


def plan_run(
    model: MoEModel, sequences: TokenSequences, settings: CalibrationSettings
) -> RunManifest:
    """The manifest of the run without its measurements; loads no model."""
    largest = max((int(row.max()) for row in sequences.rows if len(row)), default=0)
    check_token_ids(sequences.corpus, largest, model)
    numbers = {
        "seq_len": settings.seq_len,
        "seed": settings.seed,
        "dtype": resolve_dtype(settings.dtype, model),
    }
    corpus = corpus_ref(sequences, settings.batch_size)
    identity = numbers | {
        "schema_version": SCHEMA_VERSION,
        "model": model.identity,
        "corpus": corpus.digest,
        "tokens": corpus.num_tokens,
    }
    groups = ordered(settings.groups)
    # The digest names groups only if there are more than `routed`.
    chosen = {"groups": groups} if groups != ("routed",) else {}
    digest = digest_of(identity | chosen)
    words = (Path(model.name).name, Path(corpus.name).stem)
    return RunManifest(
        kind="routed",
        run_id=run_name(*words, digest=digest),
        digest=digest,
        model=measured_model(model),
        corpora=(corpus,),
        settings=numbers,
        made={},
        groups=groups,
    )


def finished_run(store: StatsStore, manifest: RunManifest) -> Run | None:
    """The run in the cache with all that is asked for and the fewest further groups."""

    def identity(other: RunManifest) -> tuple[object, ...]:
        corpora = tuple((corpus.digest, corpus.num_tokens) for corpus in other.corpora)
        return other.kind, other.model.identity, corpora, dict(other.settings)

    target = identity(manifest)
    runs = [
        run
        for run in store.runs()
        if identity(run.manifest) == target and set(run.manifest.groups) >= set(manifest.groups)
    ]
    return min(runs, key=lambda run: len(run.manifest.groups), default=None)
