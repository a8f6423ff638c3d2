"""Tasks: the long actions of command line and jobs, each a generator of progress.

A worker finds them by kind in `TASKS`. Heavy libraries are imported when a task starts, so that
listing the kinds stays light.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from analysis.model import MoEModel, load_model_index
from analysis.progress import Progress
from app.benchmark_tasks import benchmark_task
from app.bins_tasks import bins_task
from app.calibration_tasks import calibrate_task, weights_task
from app.evaluation_tasks import evaluate_task, sweep_task
from app.probe_tasks import ask_task
from app.quiet import quiet_transformers
from app.search_tasks import search_task
from app.task_requests import ExportRequest, validated
from app.variance_tasks import variance_task

Task = Generator[Progress, None, dict[str, Any]]


def export_run(request: ExportRequest) -> Task:
    """Write the pruned checkpoint, then prove it."""
    from pruning.atoms.widths import WidthChoice, parse_mode
    from pruning.heads import heads_in_words, parse_choice
    from pruning.plan import plan_from_dict
    from pruning.surgery.export import ExportOptions, export_checkpoint
    from pruning.surgery.resharding import parse_size

    model = load_model_index(request.model, revision=request.revision)
    plan = plan_from_dict(request.plan)
    recipe = request.recipe.encode()
    widths = None
    if request.width_mode:
        widths = WidthChoice(parse_mode(request.width_mode), request.width_multiple_of)
    options = ExportOptions(parse_choice(request.mtp), request.hash_source, recipe, widths)
    largest = parse_size(request.max_shard_size) if request.max_shard_size else None
    options = replace(options, max_shard_bytes=largest, keep_list=request.keep_list)
    manifest = yield from export_checkpoint(model, plan, request.out, options)
    result: dict[str, Any] = {
        "out": str(request.out),
        "plan_digest": manifest.plan.digest,
        "heads": heads_in_words(model, manifest.heads),
    }
    if request.verify:
        result["verify"] = yield from verify_result(request.out, None, model)
    return result


def verify_result(out: Path, level: str | None, source: MoEModel | None, tokens: int = 128) -> Task:
    """Verify an export; the report as plain JSON."""
    from pruning.surgery.verify import verify_export

    quiet_transformers()
    report = yield from verify_export(
        out, level=level, source=source.checkpoint.path if source else None, tokens=tokens
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
    "evaluate": evaluate_task,
    "sweep": sweep_task,
    "search": search_task,
    "benchmark": benchmark_task,
    "bins": bins_task,
    "variance": variance_task,
    "ask": ask_task,
}
