"""The hub, which is asked once with a short timeout: its own client waits and tries for minutes."""

import os
from collections.abc import Callable
from pathlib import Path

from analysis.errors import CheckpointError, first_line

_SECONDS = 2
_WAITS = "HF_HUB_ETAG_TIMEOUT"


def hub_seconds() -> int:
    """How long to wait for the hub's first answer: as its own variable says, or a few seconds."""
    try:
        return int(os.environ[_WAITS])
    except (KeyError, ValueError):
        return _SECONDS


def reach_hub() -> None:
    """Ask the hub for anything.

    Raises:
        OfflineModeIsEnabled: HF_HUB_OFFLINE is set; other OSError or HTTPError: no answer.
    """
    # The hub's client takes longer to import than a local checkpoint to open.
    from huggingface_hub import constants, get_session

    get_session().head(constants.ENDPOINT, timeout=hub_seconds())


def fetched(model: str, fetch: Callable[..., str]) -> Path:
    """What `fetch` gets of a model, if the hub answers; otherwise what its cache has.

    `fetch` is called with nothing, or with `local_files_only=True`.

    Raises:
        CheckpointError: one line, within seconds where there is no network.
    """
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
    )

    try:
        reach_hub()
    except (HTTPError, OSError) as error:
        try:
            return Path(fetch(local_files_only=True))
        except (HFValidationError, OSError):
            raise CheckpointError(_no_answer(model, error)) from error
    try:
        return Path(fetch())
    except GatedRepoError as error:
        raise CheckpointError(
            f"{model} is gated: accept its terms on the hub, then log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{model} is not a local directory, and the hub has no such model that you may read; "
            "is the name right?"
        ) from error
    except (HTTPError, HFValidationError, OSError) as error:
        raise CheckpointError(
            f"{model} is not a local directory and cannot be fetched from the hub: "
            f"{first_line(error)}"
        ) from error


def _no_answer(model: str, error: Exception) -> str:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return (
            f"{model} is not a local directory nor in the hub's cache, and HF_HUB_OFFLINE is set; "
            "unset it, or give the folder of a checkpoint."
        )
    return (
        f"{model} is not a local directory, and {constants.ENDPOINT} does not answer within "
        f"{hub_seconds()} s ({first_line(error).rstrip('.')}); give the folder of a checkpoint, "
        f"or set {_WAITS} to wait longer."
    )
