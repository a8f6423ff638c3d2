"""Sizes of models without weights, by the command line: torch stays out of this process."""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import streamlit as st

from analysis.checkpoint.index import CONFIG_NAME
from analysis.checkpoint.opening import read_config
from analysis.errors import UnsupportedModelError, UserError
from analysis.families.listing import family_of
from analysis.model.opening import config_folder
from app.jobs.runner import passed_variables
from app.session.data import MAX_EXPERTS, MAX_LAYERS, model_choices, shown_checkpoint
from app.session.uploads import uploaded_text

_SECONDS: Final = 180
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True)
class OutlineSource:
    """Where a configuration comes from."""

    name: str
    path: Path | None = None  # its folder; None for an upload or a hub id
    config: str = ""  # an uploaded config.json

    @property
    def stamp(self) -> int:
        """When the folder's configuration changed last, in nanoseconds."""
        try:
            return (self.path / CONFIG_NAME).stat().st_mtime_ns if self.path else 0
        except OSError:
            return 0  # it is gone, as reading it will say

    @property
    def model(self) -> str:
        """MODEL of a command line."""
        return shown_checkpoint(self.path.resolve()) if self.path else self.name


def named_source(name: str) -> OutlineSource:
    """A folder below the models folder by its name, or a hub id; no other folder is read."""
    folders = {choice.name: choice.path for choice in model_choices()}
    if name in folders:
        return OutlineSource(name, folders[name])
    if _HUB_ID.fullmatch(name):
        return OutlineSource(name)
    raise UserError(
        f"{name!r} is neither a hub id such as Qwen/Qwen3-30B-A3B nor a folder in the models "
        f"folder ({', '.join(folders)}); or upload a {CONFIG_NAME}."
    )


def uploaded_source(name: str, content: bytes) -> OutlineSource:
    """An uploaded configuration."""
    return OutlineSource(CONFIG_NAME, config=uploaded_text(name, content))


@st.cache_resource
def _turn() -> threading.Lock:
    """One configuration at a time: each is read by a process that loads torch."""
    return threading.Lock()


@st.cache_data(
    max_entries=64,
    ttl=3600,
    show_spinner="Reading the configuration",
    hash_funcs={OutlineSource: lambda source: (source.name, source.config, source.stamp)},
)
def sizes_of(source: OutlineSource) -> dict[str, Any]:
    """`result` of `moeprune inspect SOURCE --config-only --json`, with `plans`."""
    with TemporaryDirectory() as place, _turn():
        folder = source.path
        if source.config:
            folder = Path(place) / "uploaded"
            folder.mkdir()
            (folder / CONFIG_NAME).write_text(source.config)
        _check_size(folder or config_folder(source.name), source.name)
        return _asked(str(folder or source.name), Path(place))


def _check_size(folder: Path, name: str) -> None:
    """Refuse what would fill the memory, before any tensor is named."""
    config = read_config(folder)
    try:
        family = family_of(config)
    except UnsupportedModelError:
        return  # of a hub model the headers may tell
    depth = family.depth(family.text_config(config))
    experts = max((layer.num_experts for layer in family.layers(config)), default=0)
    if depth > MAX_LAYERS or experts > MAX_EXPERTS:
        raise UserError(
            f"{name} has {depth} layers of up to {experts} experts; the pages show at most "
            f"{MAX_LAYERS} x {MAX_EXPERTS}."
        )


def _asked(model: str, place: Path) -> dict[str, Any]:
    # -P: do not search the working directory, which may have a folder "app".
    words = [sys.executable, "-P", "-m", "app.cli", "inspect", model, "--config-only", "--json"]
    try:
        done = subprocess.run(  # noqa: S603  (a list, no shell; the model is a folder or a hub id)
            words,
            cwd=place,
            env={name: os.environ[name] for name in passed_variables()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        reply = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"Reading the configuration took longer than {_SECONDS} s; run the command below."
        ) from error
    except ValueError as error:
        raise UserError("The configuration cannot be read; run the command below.") from error
    if problem := reply.get("error"):
        raise UserError(problem)
    result: dict[str, Any] = reply["result"]
    return result
