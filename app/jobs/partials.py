"""Partials: unfinished output that a job which did not end well leaves behind."""

import logging
import shutil
from pathlib import Path

from app.jobs.model import Job

logger = logging.getLogger(__name__)


def delete_partials(job: Job) -> tuple[str, ...]:
    """Delete the job's unfinished output; the paths that could not be deleted.

    Only paths whose last name contains ".partial": whatever a request says, nothing finished is
    ever deleted here. A link is removed, never what it points to.
    """
    return tuple(path for path in job.partials if not _delete(Path(path)))


def not_deleted(left: tuple[str, ...]) -> str:
    """What the error of a job says of paths that could not be deleted; empty where there are none.

    It begins with a blank, for it comes behind another sentence.
    """
    return f" Not deleted: {', '.join(left)}." if left else ""


def _delete(path: Path) -> bool:
    if ".partial" not in path.name:
        logger.warning("Not deleted, the name has no '.partial': %s", path)
        return True
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        logger.exception("Cannot delete %s", path)
        return False
    return True
