"""What is told of a verification, by `export` and `verify`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pruning.actions.action import Note, Outcome, Table
from pruning.requests.following import commands_after_checks


def checked(folder: Path, report: Mapping[str, Any], *, has_source: bool = True) -> Outcome:
    """All checks, whether they pass, and what to do with an export that does."""
    rows = [(check["name"], check["ok"], check["detail"]) for check in report["checks"]]
    failed = [check for check in report["checks"] if not check["ok"]]
    words = f"{len(failed)} of {len(rows)} checks failed" if failed else f"all {len(rows)} checks"
    if not has_source:
        words += "; bytes were not compared with the original model: give --source MODEL"
    return Outcome(
        f"{'FAIL' if failed else 'PASS'}: {folder}, {words}",
        {
            "verified": not failed,
            "level": str(report["level"]),
            "checks": len(rows),
            "compared_with_source": has_source,
        },
        (
            Table(f"{folder}: level {report['level']}", ("check", "ok", "detail"), rows),
            Note(report["reason"]),
        ),
        () if failed else commands_after_checks(folder),
    )
