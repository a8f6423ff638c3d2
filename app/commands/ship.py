"""Commands that write and prove checkpoints: export, verify."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.errors import ExportError
from analysis.model import load_model_index
from app.commands import options
from app.commands.console import follow, out, show_table
from app.task_requests import ExportRequest, validated
from app.tasks import export_run, verify_result
from pruning.plan import load_plan

Level = Annotated[
    str | None,
    typer.Option(help="bytes, load or logits; default: the highest that fits in memory."),
]


def export(
    model: options.Model,
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="New folder to write.")],
    plan: Annotated[Path, typer.Option(help="plan.json from `moeprune plan`.")],
    hash_source: Annotated[
        bool, typer.Option("--hash-source", help="Record the SHA-256 of the whole source.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Verify the result at once.")] = False,
    revision: options.Revision = None,
) -> None:
    """Write the pruned checkpoint; the model is never loaded."""
    described = load_model_index(model, revision=revision)
    request: ExportRequest = validated(
        ExportRequest,
        {
            "model": model,
            "plan": load_plan(plan, model=described).to_dict(),
            "out": out_dir,
            "hash_source": hash_source,
            "verify": verify,
            "revision": revision,
        },
    )
    result = follow(export_run(request))
    out.print(f"{out_dir}: plan {result['plan_digest'][:8]}", markup=False)
    if verify:
        _report(out_dir, result["verify"])


def verify(
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of an export.")],
    level: Level = None,
    source: Annotated[
        str | None, typer.Option(help="The model that it was made from; needed for logits.")
    ] = None,
) -> None:
    """Check an exported checkpoint: bytes and hashes, loading, equality with the masked source."""
    described = load_model_index(source) if source else None
    _report(out_dir, follow(verify_result(out_dir, level, described)))


def _report(out_dir: Path, report: dict[str, Any]) -> None:
    rows = [(check["name"], check["ok"], check["detail"]) for check in report["checks"]]
    show_table(f"{out_dir}: level {report['level']}", ("check", "ok", "detail"), rows)
    out.print(report["reason"], markup=False)
    failed = [check for check in report["checks"] if not check["ok"]]
    if failed:
        raise ExportError(f"{out_dir} fails: {failed[0]['name']}: {failed[0]['detail']}")
