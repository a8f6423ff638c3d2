"""Export: the pruned checkpoint is written, and verified if that is asked for."""

from typing import Any, Final

from pruning.actions.action import Action, Call, Outcome
from pruning.requests.model import ExportRequest
from pruning.tasks.export import export_task


def _tell(call: Call[ExportRequest], result: dict[str, Any]) -> Outcome:
    """Where it lies, and what its verification found."""
    return Outcome(_in_words(result), result)


def _in_words(result: dict[str, Any]) -> str:
    location = f"{'Found finished in' if result['skipped'] else 'Written to'} {result['out']}"
    if not (report := result.get("verify")):
        return location
    passed = sum(check["ok"] for check in report["checks"])
    words = f"Verified at level {report['level']}: {passed} of {len(report['checks'])} checks"
    if (largest := report.get("max_abs_diff")) is not None:
        words += f", largest logit difference to the masked original {largest:.2g}"
    return f"{words}. {location}"


ACTION: Final = Action(
    ExportRequest,
    export_task,
    _tell,
    "export demo smaller-demo --plan plan.json",
    "{about}",
    "export",
)
