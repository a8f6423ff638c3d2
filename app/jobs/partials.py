"""Partials: unfinished output that a job which did not end well leaves behind."""

import logging
import shutil
from pathlib import Path

from app.jobs.model import Job

logger = logging.getLogger(__name__)


def delete_partials(job: Job, error: str) -> str:
    """Delete the job's unfinished output; `error`, with the paths that could not be deleted.

    Only paths whose last name contains ".partial": whatever a request says, nothing finished is
    ever deleted here. A link is removed, never what it points to.
    """
    left = ", ".join(path for path in job.partials if not _delete(Path(path)))
    return f"{error} Not deleted: {left}.".lstrip() if left else error


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
