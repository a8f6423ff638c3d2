"""Calibration: the model is run once over a corpus, and its expert statistics are cached."""

from typing import Final

from analysis.corpora.spec import corpus_name, is_same_corpus
from analysis.model.opening import load_model_index
from analysis.ranking.choose import run_by_corpus
from analysis.stats.manifest import Run
from analysis.stats.store import StatsStore, stats_store
from pruning.actions.action import Action, Call, Note, Outcome
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.following import next_plan, usual_budget
from pruning.spec.base import option_words
from pruning.tasks import Steps
from pruning.tasks.calibration import CalibrationResult, calibrate_run, collected


def _run(request: CalibrateRequest) -> Steps[CalibrationResult]:
    return (yield from collected(calibrate_run(request), request.stats_dir))


def _tell(call: Call[CalibrateRequest], measured: CalibrationResult) -> Outcome:
    """What was counted, its speed where it was this run that counted, and the plan that follows."""
    request, run = call.request, measured.run
    manifest, record = run.manifest, run.manifest.made
    dropped = sum(corpus.num_dropped for corpus in manifest.corpora)
    speed = f"{record.get('seconds')} s, {record.get('tokens_per_second')} tokens/s"
    words = (
        f"{manifest.run_id}: {manifest.num_tokens:,} tokens of {manifest.corpus}"
        + (f" ({dropped:,} read and dropped)" if dropped else "")
        + (f", {speed}" if measured.is_new else ", from the cache")
    )
    numbers = {"run": manifest.run_id, "path": str(run.path), "tokens": manifest.num_tokens}
    flags = option_words(request, only=("revision", "stats_dir"))
    by = ("--criterion", "reap", *_words_for(run, stats_store(request.stats_dir)))
    model = load_model_index(request.model, revision=request.revision)
    return Outcome(
        words,
        {**numbers, "dropped_tokens": dropped, "cached": not measured.is_new},
        _other_name(corpus_name(request.corpus), run),
        (next_plan(request.model, *by, *usual_budget(model), *flags),),
        lies_in=run.path,
    )


def _other_name(corpus: str, run: Run) -> tuple[Note, ...]:
    """Under which name a run is kept, where it is not that of the corpus that was asked for."""
    kept = run.manifest.corpus
    if is_same_corpus(corpus, kept):
        return ()
    words = (
        f"{corpus} has the same tokens as {kept}, under which the run is kept: choose it with "
        f"--calibrated-on {kept} or --run {run.manifest.run_id}"
    )
    return (Note(words),)


def _words_for(run: Run, store: StatsStore) -> tuple[str, str]:
    """The option that plans by this run: its corpus, unless another run goes by that name."""
    corpus, run_id = run.manifest.corpus, run.manifest.run_id
    runs = store.of_model(run.manifest.model.identity, "routed")
    named = run_by_corpus(runs).get(corpus, run)  # of a launcher, only the first process has it
    is_named = named.manifest.run_id == run_id
    return ("--calibrated-on", corpus) if is_named else ("--run", run_id)


ACTION: Final = Action(
    CalibrateRequest,
    _run,
    _tell,
    "calibrate demo --corpus demo-code --dry-run",
    "{about} on {request.corpus}, {request.num_tokens:,} tokens",
)
