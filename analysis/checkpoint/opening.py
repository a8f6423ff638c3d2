"""Opens a local checkpoint: its configuration and the headers of all its files, but no weights."""

import re
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analysis.checkpoint.folder_kinds import WEIGHT_SUFFIXES, other_kind
from analysis.checkpoint.headers import read_shard
from analysis.checkpoint.index import CONFIG_NAME, INDEX_NAME, SINGLE_NAME, Checkpoint, Shard
from analysis.checkpoint.weight_files import read_weight_map
from analysis.errors import CheckpointError
from analysis.files.content import read_whole
from analysis.files.json_text import parse_json

_IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
# Implementations in Python or torch; transformers fetches others from the hub (deepgemm, sonicmoe;
# flash_attention_2 if its package is missing).
_PLAIN = frozenset(("eager", "paged|eager", "sdpa", "flex_attention", "batched_mm", "grouped_mm"))


def _config_file(path: Path) -> Path:
    """The config.json of a checkpoint's folder; refuses what is no such folder, by what it is."""
    if path.is_file():
        folder, remedy = path.absolute().parent, f"the folder of a checkpoint, with a {CONFIG_NAME}"
        if (folder / CONFIG_NAME).is_file():
            remedy = f"the checkpoint's folder, {folder}"
        elif path.suffix.lower() in WEIGHT_SUFFIXES and (kind := other_kind(folder)):
            raise CheckpointError(f"{path} is a file; {folder} {kind}")
        raise CheckpointError(f"{path} is a file; give {remedy}.")
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory; give the folder of a checkpoint.")
    file = path / CONFIG_NAME
    if not file.is_file():
        what = other_kind(path) or f"has no {CONFIG_NAME}; is it the folder of a checkpoint?"
        raise CheckpointError(f"{path} {what}")
    return file


def read_config(path: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint directory as raw JSON."""
    file = _config_file(path)
    try:
        config = parse_json(read_whole(file))
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} does not hold a JSON object.")
    # These keys make transformers run native code or read another configuration, whatever
    # trust_remote_code says. Kernels that it names itself are fetched only with package `kernels`.
    if "configuration_files" in config:
        raise CheckpointError(
            f"{file}: configuration_files names other files, of which transformers would read one "
            f"instead; remove the line, or rename the right file to {CONFIG_NAME}."
        )
    for key, text in _texts(config):
        is_fetched = "/" in text or (text not in _PLAIN and find_spec("kernels"))
        if _IMPLEMENTATION.fullmatch(key) and is_fetched:
            raise CheckpointError(
                f"{file}: {key} names {text!r}, native code that would be fetched from the hub and "
                "run; remove the line, and choose an implementation with --attention."
            )
    return config


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a configuration, with the key that it belongs to."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            # There may be one implementation per part of a model: {"text_config": "sdpa"}.
            yield from _texts(item, key if _IMPLEMENTATION.fullmatch(key) else name)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the configuration and all headers, but no weights."""
    config = read_config(path)
    weight_map = read_weight_map(path, config)
    names = sorted(set(weight_map.values())) or [SINGLE_NAME]
    shards = tuple(read_shard(path / name) for name in names)
    shard_of: dict[str, str] = {}
    for shard in shards:
        for entry in shard.tensors:
            if first := shard_of.get(entry.name):
                raise CheckpointError(
                    f"{first} and {shard.name} both hold {entry.name}; fetch the checkpoint again."
                )
            shard_of[entry.name] = shard.name
    missing = sorted(name for name, shard in weight_map.items() if shard_of.get(name) != shard)
    if missing:
        raise CheckpointError(
            f"{INDEX_NAME} places {missing[0]} in {weight_map[missing[0]]}, which does not hold "
            f"it ({len(missing)} such tensors); fetch the checkpoint again."
        )
    return Checkpoint(path.resolve(), config, shards, others=_other_shards(path, names))


def _other_shards(path: Path, names: Collection[str]) -> tuple[Shard, ...]:
    """The safetensors files of a folder besides these; one that is unreadable has no tensors."""
    others = []
    for file in sorted(path.glob("*.safetensors")):
        if file.name not in names and file.is_file():
            try:
                others.append(read_shard(file))
            except CheckpointError:
                others.append(Shard(file.name, file.stat().st_size, b"", 0, {}, ()))
    return tuple(others)
