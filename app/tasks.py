"""Tasks: the long actions of command line and jobs, each a generator of progress.

A worker finds them by kind in `TASKS`. Heavy libraries are imported when a task starts, so that
listing the kinds stays light.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from analysis.store import Run
from app.settings import stats_store
from app.task_requests import CalibrateRequest, ExportRequest, WeightsRequest, validated

if TYPE_CHECKING:
    from analysis.calibration.estimate import Estimate
    from analysis.calibration.run import CalibrationSettings
    from analysis.corpora import TokenSequences

Task = Generator[Progress, None, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A calibration that is ready to run."""

    model: MoEModel
    sequences: "TokenSequences"
    settings: "CalibrationSettings"


def _quiet() -> None:
    """Progress is shown our way; transformers would draw bars of its own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _prepare(request: CalibrateRequest) -> Generator[Progress, None, Prepared]:
    from analysis.calibration.run import CalibrationSettings, load_tokenizer
    from analysis.corpora import Sampling, corpus_name, read_documents, tokenize

    _quiet()
    model = load_model_index(request.model, revision=request.revision)
    sampling = Sampling(request.tokens, request.seq_len, request.seed)
    yield Progress("reading the corpus", 0, request.tokens, "tokens")
    documents = read_documents(request.corpus)
    # Token ids need no tokenizer, and a checkpoint may lack one.
    is_text = any(document.input_ids is None for document in documents)
    tokenizer = (
        load_tokenizer(model, trust_remote_code=request.trust_remote_code) if is_text else None
    )
    sequences = tokenize(documents, tokenizer, sampling, corpus=corpus_name(request.corpus))
    settings = CalibrationSettings(
        seq_len=request.seq_len,
        seed=request.seed,
        dtype=request.dtype,
        device=request.device,
        batch_size=request.batch_size,
        trust_remote_code=request.trust_remote_code,
    )
    return Prepared(model, sequences, settings)


def calibrate_run(request: CalibrateRequest) -> Generator[Progress, None, Run]:
    """Tokenise the corpus and run the model over it."""
    from analysis.calibration.run import calibrate

    ready = yield from _prepare(request)
    store = stats_store(request.stats_dir)
    return (
        yield from calibrate(
            ready.model, ready.sequences, ready.settings, store, resume=request.resume
        )
    )


def estimate_run(request: CalibrateRequest) -> Generator[Progress, None, "Estimate"]:
    """What `calibrate_run` would take."""
    from analysis.calibration.estimate import estimate

    ready = yield from _prepare(request)
    return estimate(ready.model, ready.sequences, ready.settings)


def weights_run(request: WeightsRequest) -> Generator[Progress, None, Run]:
    """Measure the weights, unless the cache has them."""
    from analysis.weights import weight_statistics

    model = load_model_index(request.model, revision=request.revision)
    return (yield from weight_statistics(model, stats_store(request.stats_dir)))


def _run_result(run: Run) -> dict[str, Any]:
    return {"run_id": run.manifest.run_id, "path": str(run.path)}


def calibrate_task(raw: dict[str, Any]) -> Task:
    """Job form of `calibrate_run`."""
    run = yield from calibrate_run(validated(CalibrateRequest, raw))
    return _run_result(run)


def weights_task(raw: dict[str, Any]) -> Task:
    """Job form of `weights_run`."""
    run = yield from weights_run(validated(WeightsRequest, raw))
    return _run_result(run)


def export_run(request: ExportRequest) -> Task:
    """Write the pruned checkpoint, then prove it."""
    from pruning.plan import plan_from_dict
    from pruning.surgery.export import ExportOptions, export_checkpoint

    model = load_model_index(request.model, revision=request.revision)
    plan = plan_from_dict(request.plan)
    options = ExportOptions(hash_source=request.hash_source)
    manifest = yield from export_checkpoint(model, plan, request.out, options)
    result: dict[str, Any] = {"out": str(request.out), "plan_digest": manifest.plan.digest}
    if request.verify:
        result["verify"] = yield from verify_result(request.out, None, model)
    return result


def verify_result(out: Path, level: str | None, source: MoEModel | None) -> Task:
    """Verify an export; the report as plain JSON."""
    from pruning.surgery.verify import verify_export

    _quiet()
    report = yield from verify_export(
        out, level=level, source=source.checkpoint.path if source else None
    )
    return asdict(report)


def export_task(raw: dict[str, Any]) -> Task:
    """Job form of `export_run`; a failed check fails the job."""
    from analysis.errors import ExportError

    result = yield from export_run(validated(ExportRequest, raw))
    failed = [check for check in result.get("verify", {}).get("checks", ()) if not check["ok"]]
    if failed:
        raise ExportError(f"The export fails its check: {failed[0]['name']}: {failed[0]['detail']}")
    return result


TASKS: Mapping[str, Callable[[dict[str, Any]], Task]] = {
    "calibrate": calibrate_task,
    "weights": weights_task,
    "export": export_task,
}
