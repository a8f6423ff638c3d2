"""Tasks that make statistics: calibration, and the measurement of weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.calibration.weights import weights_cost
from analysis.corpora.documents import Document
from analysis.corpora.early import (
    check_context,
    check_positions,
    check_reaches,
    check_streamable,
    check_vocabulary,
    shorter_note,
    within_context,
)
from analysis.corpora.encoding import check_token_ids, largest_token_id
from analysis.corpora.sampling import packing_of, tokenize
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import Source, peek
from analysis.corpora.spec import corpus_name, is_same_corpus, parse_corpus
from analysis.model.head_parts import runnable_heads
from analysis.model.moe_model import MoEModel, is_expert_weight
from analysis.model.opening import load_model_index
from analysis.progress import Costs, Progress, Whole
from analysis.stats.manifest import CorpusRef, Run
from analysis.stats.store import StatsStore, stats_store
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.model import WeightsRequest
from pruning.tasks import Steps
from pruning.tasks.apart import open_checked, say_skipped
from pruning.tasks.loading import loaded_model, quiet_transformers, run_settings, together
from pruning.tasks.probing import probing

if TYPE_CHECKING:
    from analysis.calibration.loading import CalibrationSettings
    from analysis.calibration.memory import Estimate
    from analysis.calibration.own_answers import Answering


def _check_model(request: CalibrateRequest, model: MoEModel) -> None:
    """Refuse what the model's configuration rules out, before anything is loaded."""
    from analysis.calibration.feed import check_model_packs
    from analysis.calibration.loading import check_loadable
    from analysis.calibration.removal import check_removable

    quiet_transformers()
    check_loadable(model, trusted=request.trust_remote_code)
    if request.packing == "pack":
        check_model_packs(model, request.attention)
    if "damage" in request.groups:
        for layer in model.layers:
            check_removable(model.family, layer)


def prepare_calibration(
    request: CalibrateRequest,
) -> "Steps[tuple[MoEModel, TokenSequences, CalibrationSettings]]":
    """The model, the token sequences and the settings to run."""
    model = load_model_index(request.model, revision=request.revision)
    groups, sampling = request.collected, _sampling(request, model)
    if "heads" in groups:
        runnable_heads(model)
    if request.stream_layers:
        check_streamable(model)
    yield Progress("reading the corpus", 0, sampling.tokens, "tokens")
    first, source = _open(request, model)
    _check_model(request, model)  # imports torch
    from analysis.calibration.own_answers import answered_sampling, own_answers

    answering = _answering(request, model, source, first)
    tokenizer, selection = answering.tokenizer, answering.selection
    settings = run_settings(request, sampling.seq_len, seed=sampling.seed, groups=groups)
    if request.answers == "own":
        with loaded_model(model, settings) as loaded:  # only for the answers
            source = yield from own_answers(loaded, source, answering)
        sampling = answered_sampling(sampling, was_text=tokenizer is not None)
        selection = None  # the answered documents were selected already
    sequences = tokenize(source, tokenizer, sampling, corpus=answering.corpus, selection=selection)
    check_context(model, sequences)
    if note := shorter_note(model, sampling.seq_len, request.sampling().seq_len):
        yield Progress("reading the corpus", sampling.tokens, sampling.tokens, "tokens", note)
    yield from say_skipped(sequences)
    longest = max(sampling.seq_len, sequences.longest)
    path = parse_corpus(request.corpus).path
    sequences = replace(sequences, path="/".join(path.resolve().parts[-2:]) if path else "")
    return model, sequences, replace(settings, seq_len=longest)


def _sampling(request: CalibrateRequest, model: MoEModel) -> Sampling:
    """How the corpus is cut for this model, whose context may be shorter than usual sequences."""
    sampling = request.sampling()
    return replace(sampling, seq_len=within_context(model, sampling.seq_len, request.seq_len))


def _answering(
    request: CalibrateRequest, model: MoEModel, source: Source, first: Document | None
) -> "Answering":
    """How documents are read and answered; refuses a corpus without the answers to replace."""
    from analysis.calibration.loading import load_tokenizer
    from analysis.calibration.own_answers import Answering, check_answerable

    answering = Answering(
        corpus_name(request.corpus),
        _sampling(request, model),
        # Token ids need no tokenizer, and a checkpoint may lack one.
        load_tokenizer(model, trust_remote_code=request.trust_remote_code)
        if first is None or first.input_ids is None
        else None,
        max_new_tokens=request.most_answer_tokens,
        batch_size=request.batch_size,
    )
    if request.clusters is not None:
        # scikit-learn takes a second to import.
        from analysis.corpora.representatives import CheckpointEmbedding, kmeans_selection

        selection = kmeans_selection(CheckpointEmbedding(model.checkpoint), request.clusters)
        answering = replace(answering, selection=selection)
    if request.answers == "own":
        check_answerable(source, first, answering)
    return answering


def _open(request: CalibrateRequest, model: MoEModel) -> tuple[Document | None, Source]:
    """The first document of the corpus, and the corpus; refuses what the model cannot read."""
    sampling, store = _sampling(request, model), stats_store(request.stats_dir)
    name = corpus_name(request.corpus)
    # What is cached need not be written; a folder that was asked for is to hold it itself.
    held = (StatsStore(store.target) if request.stats_dir else store).runs()
    if not any(is_same_corpus(name, part.name) for run in held for part in run.manifest.corpora):
        store.check_target()
    allowed, skips = request.allow_test_set, request.skip_bad_rows
    corpus = open_checked(request.corpus, store, allowed=allowed, skips=skips)
    first, source = peek(corpus, sampling.seed)
    is_joined = first is not None and _check_documents(request, model, first)
    if is_joined and not request.clusters and request.count == "all":
        folder, seed = model.checkpoint.path, sampling.seed
        check_reaches(corpus, request.corpus, sampling.seq_len, seed, folder)
    if first is not None and first.input_ids is not None:
        largest = largest_token_id(corpus.draw(sampling.seed), sampling.tokens)
        check_token_ids(name, largest, model)
    return first, source


def _check_documents(request: CalibrateRequest, model: MoEModel, first: Document) -> bool:
    """Refuse documents like the first if no sequences come of them; whether they are joined."""
    if request.answers != "given":
        return False  # others are written
    packing = packing_of(_sampling(request, model), first)
    if packing == "concatenate":
        check_positions(model, request.seq_len)
    if first.input_ids is None:
        check_vocabulary(model, trusted=request.trust_remote_code)
    return packing == "concatenate"


def check_corpora(requests: Sequence[CalibrateRequest]) -> Steps[None]:
    """Open every corpus, read its first document and check all token ids, before any runs.

    Where the model is to write the answers, the first document must have one.
    """
    with together():
        for number, request in enumerate(requests):
            yield Progress("checking the corpora", number, len(requests))
            model = load_model_index(request.model, revision=request.revision)
            first, source = _open(request, model)
            if request.answers == "own":
                _answering(request, model, source, first)


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """A run of statistics, and whether it was not in the cache before."""

    run: Run
    is_new: bool


def collected(task: Steps[Run], stats_dir: Path | None) -> Steps[CalibrationResult]:
    """Run a task that makes statistics, and look whether the cache had them."""
    earlier_ids = {run.manifest.run_id for run in stats_store(stats_dir).runs()}
    run = yield from task
    return CalibrationResult(run, run.manifest.run_id not in earlier_ids)


def calibrate_run(request: CalibrateRequest) -> Steps[Run]:
    """Tokenise the corpus and run the model over it."""
    with together():
        ready = yield from prepare_calibration(request)
    from analysis.calibration.run import calibrate

    return (yield from calibrate(*ready, stats_store(request.stats_dir), resume=request.resume))


def known_run(request: CalibrateRequest) -> Steps[Run | None]:
    """The run that `calibrate_run` would find in the cache, with given answers."""
    if request.answers == "own":  # which a model writes first
        return None
    ready = yield from prepare_calibration(request)
    from analysis.calibration.manifest import finished_run, plan_run

    return finished_run(stats_store(request.stats_dir), plan_run(*ready))


def estimate_run(request: CalibrateRequest) -> "Steps[tuple[CorpusRef, Estimate]]":
    """The corpus that `calibrate_run` would read and what it would cost, with given answers.

    What nothing tells of this machine is measured.
    """
    from analysis.calibration.manifest import corpus_ref
    from analysis.calibration.memory import estimate

    if request.answers == "own":
        yield from check_corpora([request])
    ready = yield from prepare_calibration(request.model_copy(update={"answers": "given"}))
    (model, sequences, settings), expected = ready, estimate(*ready)
    yield from probing(Whole(expected.costs), model, settings.dtype, settings.device)
    return corpus_ref(sequences, request.batch_size), expected


def weights_costs(model: MoEModel) -> Costs:
    """What the measurement of the weights costs."""
    items = (item for layer in model.layers for item in model.located[layer.index])
    experts = sum(item.entry.nbytes for item in items if is_expert_weight(item.slot))
    return weights_cost(experts)


def weights_run(request: WeightsRequest) -> Steps[Run]:
    """Measure the weights unless they are cached."""
    from analysis.calibration.weights import weight_statistics

    model = load_model_index(request.model, revision=request.revision)
    return (yield from weight_statistics(model, stats_store(request.stats_dir)))
