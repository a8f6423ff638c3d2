"""Plan files that were pinned: the state folder keeps them under the SHA-256 of their content.

A pin in a URL names that digest. It decides no path: nothing but 64 hexadecimal digits is looked
up. Whoever has the plan, or makes the same one, has its digest; that of another cannot be guessed.
"""

import os
import re
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from analysis.cache_keys import most_results
from analysis.errors import PlanError
from analysis.files.durable import written_durably
from analysis.model.moe_model import MoEModel
from app.session.data import remembered, settings
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.plan_file import plan_from_json

MOST_BYTES: Final = 256 * 2**20  # of all files; beyond them those go that were not used for longest
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_OWN: Final = re.compile(
    rf"{_DIGEST.pattern}\.json|\.{_DIGEST.pattern}\.json\.[0-9a-f]{{8}}\.partial"
)


def is_content(text: str) -> bool:
    """Whether it can be the digest of a plan file."""
    return _DIGEST.fullmatch(text) is not None


def content_of(plan: PruningPlan) -> str:
    """The digest of a plan's file, with its provenance."""
    return sha256(plan.to_json().encode()).hexdigest()


def keep_plan(plan: PruningPlan) -> None:
    """Keep the file of a plan, and delete the longest unused if all are too large together.

    Raises:
        PlanError: the state folder cannot be written.
    """
    path = _path(content_of(plan))
    try:
        for folder in (path.parent.parent, path.parent):
            if not folder.is_dir():  # of one that is there the permissions stay
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_durably(path) as draft:
            draft.chmod(0o600)
            draft.write_bytes(plan.to_json().encode())
        _delete_unused(path)
    except OSError as error:
        raise PlanError(
            f"The state folder of this server cannot keep the file: {error.strerror}."
        ) from error


def kept_plan(content: str, model: MoEModel) -> PruningPlan:
    """The plan of the model whose file has this digest; cached while the file stays as it is.

    Raises:
        PlanError: it is no longer here, was changed, or is of another model.
    """
    if not is_content(content):
        raise _gone()
    path = _path(content)
    with suppress(OSError):  # its last use; its cache key has the time of its last change
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return remembered(_plan_in, path, content, model)


@most_results(12)
def _plan_in(path: Path, content: str, model: MoEModel) -> PruningPlan:
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    if sha256(raw).hexdigest() != content:
        raise _gone()
    return fit_plan(plan_from_json(raw), model)


def _gone() -> PlanError:
    return PlanError(
        "This server does not keep its file any more, or never had it; open the file again under "
        "Model and plan, and pin it."
    )


def _path(content: str) -> Path:
    return settings().state_dir / "plans" / f"{content}.json"


def _delete_unused(newest: Path) -> None:
    """Delete what was not used for longest, drafts of killed writers too, beyond MOST_BYTES."""
    files = []
    for path in newest.parent.iterdir():
        if path != newest and _OWN.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another session deleted it, or finished its draft
                files.append((path, path.stat()))
    files.sort(key=lambda entry: entry[1].st_atime_ns, reverse=True)
    total = newest.stat().st_size
    for path, stat in files:
        total += stat.st_size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
