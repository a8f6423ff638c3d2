"""Opens a model that is given by its folder, a hub id, or as the demo."""

import re
from functools import partial
from pathlib import Path

from analysis.checkpoint.companions import COMPANION_FILES
from analysis.checkpoint.hub import fetched
from analysis.checkpoint.index import CONFIG_NAME, INDEX_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import CheckpointError, did_you_mean
from analysis.files.home import from_home
from analysis.files.shipped import DEMO_CHECKPOINT, DEMO_MODEL
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel

_HUB_URL = re.compile(r"(?:hf://|(?:https?://)?(?:huggingface|hf)\.co/)([\w.-]+/[\w.-]+)(?:/.*)?")
# The card names the licence.
_HUB_FILES = ("*.safetensors", CONFIG_NAME, INDEX_NAME, "README.md", *COMPANION_FILES)
# The same weights once more in the publisher's own format, as gpt-oss and Mistral have them: shards
# are never read from folders, and `*` also stands for one.
_HUB_COPIES = ["*/*.safetensors", "consolidated*.safetensors"]


def resolve_model(model: str, *, revision: str | None = None) -> Path:
    """Local directory of MODEL: a directory, `demo`, or a hub id (fetched into the hub's cache)."""
    path = from_home(model)
    if path.exists() or model == DEMO_MODEL:
        _check_revision(model, revision)
        return path if path.exists() else DEMO_CHECKPOINT
    if path.is_absolute() or model.startswith(".") or model.count("/") != 1:
        if hub_id := _HUB_URL.fullmatch(model):
            raise CheckpointError(f"{model} is a URL; give its hub id, {hub_id[1]}.")
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        names = {DEMO_MODEL, *(str(sibling) for sibling in siblings if sibling.is_dir())}
        raise CheckpointError(
            f"{model} is not a directory; give the folder of a checkpoint, a hub id such as "
            f"allenai/OLMoE-1B-7B-0125-Instruct, or {DEMO_MODEL!r}."
            f"{did_you_mean(str(path), names)}"
        )
    from huggingface_hub import snapshot_download

    fetch = partial(
        snapshot_download,
        model,
        revision=revision,
        allow_patterns=list(_HUB_FILES),
        ignore_patterns=_HUB_COPIES,
    )
    return fetched(model, fetch)


def _check_revision(model: str, revision: str | None) -> None:
    if revision:
        raise CheckpointError(
            f"{model} is a local folder, and --revision {revision} is for hub ids; leave it out."
        )


def is_hub_id(source: str) -> bool:
    """Whether a source of models is the id of one on the hub, and no folder or file here."""
    is_local = source.startswith((".", "/")) or from_home(source).exists()
    return source.count("/") == 1 and not is_local


def config_folder(source: str, revision: str | None = None) -> Path:
    """The folder of a config.json, given by its path, its folder, `demo` or a hub id."""
    path = from_home(source)
    if path.exists() or source == DEMO_MODEL:
        _check_revision(source, revision)
    if path.is_file() and path.name == CONFIG_NAME:
        return path.parent
    if source == DEMO_MODEL and not path.exists():
        return DEMO_CHECKPOINT
    if not is_hub_id(source):
        return path
    from huggingface_hub import hf_hub_download

    return fetched(source, partial(hf_hub_download, source, CONFIG_NAME, revision=revision)).parent


def load_model_index(model: str, *, revision: str | None = None) -> MoEModel:
    """`resolve_model`, `open_checkpoint` and `describe_model` in one call."""
    path = resolve_model(model, revision=revision)
    if path.resolve() == DEMO_CHECKPOINT.resolve():
        name = DEMO_MODEL  # also if it is given by its path, as in jobs
    else:
        name = path.name if from_home(model).exists() else model
    return describe_model(open_checkpoint(path), name=name or path.resolve().name)
