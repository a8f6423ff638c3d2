"""Access to the hub with one short check first: its own client waits and retries for minutes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analysis.checkpoint.headers import read_index
from analysis.checkpoint.index import INDEX_NAME, SINGLE_NAME, is_copy
from analysis.checkpoint.weight_files import check_single
from analysis.errors import CheckpointError, first_line

_SECONDS = 2
_WAITS = "HF_HUB_ETAG_TIMEOUT"


def hub_seconds() -> int:
    """Timeout of the hub's first answer: its own environment variable, or two seconds."""
    try:
        return int(os.environ[_WAITS])
    except (KeyError, ValueError):
        return _SECONDS


def reach_hub() -> None:
    """Check that the hub answers.

    Raises:
        OfflineModeIsEnabled: HF_HUB_OFFLINE is set; other OSError or HTTPError: no answer.
    """
    # Imported here: it takes longer than opening a local checkpoint.
    from huggingface_hub import constants, get_session

    get_session().head(constants.ENDPOINT, timeout=hub_seconds())


def fetched(model: str, fetch: Callable[..., str]) -> Path:
    """The path that `fetch` returns if the hub answers, otherwise its path in the cache.

    `fetch` is called without arguments, or with `local_files_only=True`. Without a network it
    fails within seconds, by a CheckpointError.
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
            "is the name correct?"
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
    reason, works = first_line(error).rstrip("."), "give the folder of a checkpoint, or"
    absent = f"{model} is not a local directory, and {constants.ENDPOINT} does not answer"
    if "Timeout" in type(error).__name__:
        return f"{absent} within {hub_seconds()} s ({reason}); {works} set {_WAITS} to wait longer."
    return f"{absent} ({reason}); {works} check the network."


Headers = Mapping[str, Mapping[str, Any]]  # shard -> tensor -> dtype, shape and offsets


def hub_headers(model: str, revision: str | None = None) -> tuple[Headers, Headers] | None:
    """The headers of a hub model's weights, by requests for these alone, and of files beside them.

    None if the hub does not answer, or if the model is not in safetensors.

    Raises:
        CheckpointError: a single file stands beside an index of other files.
    """
    from huggingface_hub import (
        get_safetensors_metadata,
        hf_hub_download,
        list_repo_files,
        parse_safetensors_file_metadata,
    )
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HTTPError,
        NotASafetensorsRepoError,
        SafetensorsParsingError,
    )

    unread = (NotASafetensorsRepoError, SafetensorsParsingError, HTTPError, OSError)
    try:
        reach_hub()
        shards = get_safetensors_metadata(model, revision=revision).files_metadata
        names = list_repo_files(model, revision=revision)
        if SINGLE_NAME in shards and INDEX_NAME in names:
            index = hf_hub_download(model, INDEX_NAME, revision=revision)
            check_single(model, read_index(Path(index).parent))
        # The publisher's own layout of the same weights is not fetched either.
        others = {
            name: parse_safetensors_file_metadata(model, name, revision=revision).tensors
            for name in sorted({*names} - {*shards})
            if name.endswith(".safetensors") and "/" not in name and not is_copy(name)
        }
    except unread:
        return None
    return {shard: header.tensors for shard, header in shards.items()}, others
