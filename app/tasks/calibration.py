"""Tasks that make statistics: calibration, and the measurement of weights."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.stats.groups import parse_groups
from analysis.stats.store import Run
from app.settings import stats_store
from app.tasks.apart import open_checked
from app.tasks.loading import loaded_model, placement_of
from app.tasks.quiet import quiet_transformers
from pruning.requests.base import CalibrateRequest, WeightsRequest

if TYPE_CHECKING:
    from analysis.calibration.estimate import Estimate
    from analysis.calibration.loading import CalibrationSettings, Placement
    from analysis.calibration.own_answers import Answering
    from analysis.corpora import Selection, Source, TokenSequences
    from analysis.stats.tables import CorpusRef

Task = Generator[Progress, None, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A calibration that is ready to run."""

    model: MoEModel
    sequences: "TokenSequences"
    settings: "CalibrationSettings"


def _selection(request: CalibrateRequest, model: MoEModel) -> "Selection | None":
    if request.clusters is None:
        return None
    # scikit-learn takes a second to import.
    from analysis.corpora.representatives import CheckpointEmbedding, kmeans_selection

    return kmeans_selection(CheckpointEmbedding(model.checkpoint), request.clusters)


def _check_model(request: CalibrateRequest, model: MoEModel) -> None:
    """Refuse what the model's configuration alone rules out, before anything is loaded."""
    from analysis.calibration.feed import check_model_packs
    from analysis.calibration.removal import check_removable

    if request.packing == "pack":
        check_model_packs(model, request.attention)
    if "damage" in parse_groups(request.groups):
        for layer in model.layers:
            check_removable(model.family, layer)


def _prepare(request: CalibrateRequest) -> Generator[Progress, None, Prepared]:
    from analysis.calibration.loading import CalibrationSettings, load_tokenizer
    from analysis.calibration.own_answers import Answering, answered_sampling
    from analysis.corpora import corpus_name, peek, tokenize

    quiet_transformers()
    model = load_model_index(request.model, revision=request.revision)
    sampling = request.sampling()
    _check_model(request, model)
    yield Progress("reading the corpus", 0, sampling.tokens, "tokens")
    first, source = peek(_opened(request), sampling.seed)
    # Token ids need no tokenizer, and a checkpoint may lack one.
    tokenizer = (
        load_tokenizer(model, trust_remote_code=request.trust_remote_code)
        if first is None or first.input_ids is None
        else None
    )
    settings = CalibrationSettings(
        seq_len=sampling.seq_len,
        seed=sampling.seed,
        dtype=request.dtype,
        device=request.device,
        batch_size=request.batch_size,
        trust_remote_code=request.trust_remote_code,
        attention=request.attention,
        placement=_placement(request),
        groups=parse_groups(request.groups),
    )
    corpus, selection = corpus_name(request.corpus), _selection(request, model)
    if request.answers == "own":
        answering = Answering(
            corpus, sampling, tokenizer, selection, request.most_answer_tokens, request.batch_size
        )
        source = yield from _answered(model, settings, source, answering)
        sampling = answered_sampling(sampling, was_text=tokenizer is not None)
        selection = None  # it was made among the documents that were answered
    sequences = tokenize(source, tokenizer, sampling, corpus=corpus, selection=selection)
    longest = max(sampling.seq_len, sequences.longest)
    return Prepared(model, sequences, replace(settings, seq_len=longest))


def _answered(
    model: MoEModel, settings: "CalibrationSettings", source: "Source", wanted: "Answering"
) -> Generator[Progress, None, "Source"]:
    """The corpus with the model's own answers; the model is loaded for this alone."""
    from analysis.calibration.own_answers import own_answers

    with loaded_model(model, settings) as loaded:
        return (yield from own_answers(loaded, source, wanted))


def _opened(request: CalibrateRequest) -> "Source":
    store = stats_store(request.stats_dir)
    return open_checked(request.corpus, store, allowed=request.allow_test_set)


def _placement(request: CalibrateRequest) -> "Placement":
    return replace(
        placement_of(request),
        stream_layers=request.stream_layers,
        hidden_states_dir=request.hidden_states_dir,
        expert_parallel=request.expert_parallel,
        checkpoint_activations=request.checkpoint_activations,
    )


def check_corpora(requests: Sequence[CalibrateRequest]) -> Generator[Progress, None, None]:
    """Open every corpus and read its first document, so that what is wrong is said before any runs.

    Raises:
        CorpusError: one is unknown, missing, out of reach, or its first document malformed.
    """
    from analysis.calibration.distributed import join
    from analysis.corpora import peek

    with join().together():
        for number, request in enumerate(requests):
            yield Progress("checking the corpora", number, len(requests))
            peek(_opened(request), request.sampling().seed)


def calibrate_run(request: CalibrateRequest) -> Generator[Progress, None, Run]:
    """Tokenise the corpus and run the model over it."""
    from analysis.calibration.distributed import join
    from analysis.calibration.run import calibrate

    with join().together():
        ready = yield from _prepare(request)
    store = stats_store(request.stats_dir)
    return (
        yield from calibrate(
            ready.model, ready.sequences, ready.settings, store, resume=request.resume
        )
    )


def estimate_run(
    request: CalibrateRequest,
) -> Generator[Progress, None, tuple["CorpusRef", "Estimate"]]:
    """What `calibrate_run` would feed, and what it would take; answers are as they are given."""
    from analysis.calibration.estimate import estimate
    from analysis.calibration.run import corpus_ref

    ready = yield from _prepare(request.model_copy(update={"answers": "given"}))
    corpus = corpus_ref(ready.sequences, request.batch_size)
    return corpus, estimate(ready.model, ready.sequences, ready.settings)


def weights_run(request: WeightsRequest) -> Generator[Progress, None, Run]:
    """Measure the weights, unless the cache has them."""
    from analysis.stats.weights import weight_statistics

    model = load_model_index(request.model, revision=request.revision)
    return (yield from weight_statistics(model, stats_store(request.stats_dir)))


def _run_result(run: Run) -> dict[str, Any]:
    return {"run_id": run.manifest.run_id, "path": str(run.path)}


def calibrate_task(request: CalibrateRequest) -> Task:
    """Job form of `calibrate_run`."""
    run = yield from calibrate_run(request)
    return _run_result(run)


def weights_task(request: WeightsRequest) -> Task:
    """Job form of `weights_run`."""
    run = yield from weights_run(request)
    return _run_result(run)
