"""Plan files that were pinned: the state folder keeps them under the SHA-256 of their content.

A pin in a URL names that digest. It decides no path: nothing but 64 hexadecimal digits is looked
up, and nobody can guess those of a plan that they do not have.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from analysis.errors import PlanError
from analysis.files.durable import write_durably
from analysis.model.moe_model import MoEModel
from app.session.data import settings
from pruning.plan.plan import PruningPlan, fit_plan, plan_from_json

MOST_BYTES: Final = 256 * 2**20  # of all files; beyond them the oldest goes
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def is_content(text: str) -> bool:
    """Whether it can be the digest of a plan file."""
    return _DIGEST.fullmatch(text) is not None


def content_of(plan: PruningPlan) -> str:
    """The digest of a plan's file, with its provenance."""
    return sha256(plan.to_json().encode()).hexdigest()


def keep_plan(plan: PruningPlan) -> None:
    """Keep the file of a plan, and delete the oldest ones if they are too large together.

    Raises:
        PlanError: the state folder cannot be written.
    """
    path = _path(content_of(plan))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, plan.to_json().encode())
        _delete_oldest(path)
    except OSError as error:
        raise PlanError(
            f"The state folder of this server cannot keep the file: {error.strerror}."
        ) from error


def kept_plan(content: str, model: MoEModel) -> PruningPlan:
    """The plan of the model whose file has this digest.

    Raises:
        PlanError: it is no longer here, was changed, or is of another model.
    """
    try:
        raw = _path(content).read_bytes() if is_content(content) else b""
    except OSError:
        raw = b""
    if sha256(raw).hexdigest() != content:
        raise PlanError(
            "This server does not keep its file any more, or never had it; open the file again "
            "under Model and plan, and pin it."
        )
    return fit_plan(plan_from_json(raw), model)


def _path(content: str) -> Path:
    return settings().state_dir / "plans" / f"{content}.json"


def _delete_oldest(newest: Path) -> None:
    files = [(path, path.stat()) for path in newest.parent.glob("*.json") if path != newest]
    files.sort(key=lambda entry: entry[1].st_mtime_ns, reverse=True)
    total = newest.stat().st_size
    for path, stat in files:
        total += stat.st_size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
