"""Which files of a folder hold the weights: those that transformers loads, or one clear line.

transformers takes `transformers_weights` of config.json, else model.safetensors, else the shards of
the index. Here a folder is refused in which that is not the same as what index and shards say.
"""

import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analysis.checkpoint.folder_kinds import other_kind
from analysis.checkpoint.headers import ShardIndex, read_index
from analysis.checkpoint.index import INDEX_NAME, LONGEST_NAME, SINGLE_NAME
from analysis.errors import CheckpointError

_ADAPTER = "adapter_config.json"


def read_weight_map(path: Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Tensor -> file, from the index of a checkpoint's folder; empty if there is a single file."""
    index = read_index(path)
    _check_one_model(path, config, index)
    if index is None and (path / SINGLE_NAME).is_file():
        return {}
    if index is None:
        raise _without_weights(path)
    for name in dict.fromkeys(index.weight_map.values()):
        label = name if name.isprintable() else repr(name)
        is_short = 0 < len(name.encode()) <= LONGEST_NAME
        if not is_short or Path(name).name != name or "\0" in name or "\\" in name:
            raise CheckpointError(
                f"{INDEX_NAME} names {label}, which is not a file in its folder; shards must be "
                "next to their index."
            )
    for name in sorted(set(index.weight_map.values())):
        if not (path / name).is_file():
            label = name if name.isprintable() else repr(name)
            raise CheckpointError(f"{INDEX_NAME} names {label}, which is missing from {path}.")
    return index.weight_map


def check_single(model: str, index: ShardIndex | None) -> None:
    """Refuse a model that has a single file beside an index of other files."""
    shards = sorted(set(index.weight_map.values())) if index else [SINGLE_NAME]
    if shards != [SINGLE_NAME]:
        files = shards[0] + (f" and {len(shards) - 1} more" if len(shards) > 1 else "")
        raise CheckpointError(
            f"{model} holds two models: {SINGLE_NAME}, which transformers loads, and the one whose "
            f"{INDEX_NAME} names {files}; move one of the two out of the folder."
        )


def _check_one_model(path: Path, config: Mapping[str, Any], index: ShardIndex | None) -> None:
    """Refuse a folder of which transformers would load other files than the index names."""
    if (path / SINGLE_NAME).is_file():
        check_single(str(path), index)
    ours = INDEX_NAME if index else SINGLE_NAME
    weights_file = config.get("transformers_weights")
    if weights_file is not None and weights_file != ours and (path / ours).is_file():
        raise CheckpointError(
            f"{path} holds two models: transformers_weights in config.json names {weights_file!r}, "
            f"which transformers would load instead of {ours}; remove the line, or rename the file."
        )
    if (path / _ADAPTER).is_file() and (path / ours).is_file() and find_spec("peft"):
        raise CheckpointError(
            f"{path} holds an adapter beside the weights: transformers would load the model that "
            f"{_ADAPTER} names instead of {ours}; move {_ADAPTER} out of the folder."
        )


def _without_weights(path: Path) -> CheckpointError:
    """Why a folder without index and single file cannot be read."""
    names = sorted(file.name for file in path.glob("*.safetensors"))
    if len(names) == 1 and "-of-" not in names[0]:  # transformers reads no other name either
        return CheckpointError(
            f"{path} holds {names[0]}, but neither {SINGLE_NAME} nor {INDEX_NAME}; "
            f"rename the file to {SINGLE_NAME}."
        )
    if variants := sorted(file.name for file in path.glob("model.safetensors.index.*.json")):
        return CheckpointError(
            f"{path} holds {variants[0]}, an index of a variant, but no {INDEX_NAME}; rename it "
            "to that."
        )
    if names:
        return CheckpointError(
            f"{path} holds {len(names)} safetensors files but no {INDEX_NAME}; "
            "fetch the index, or save the model again."
        )
    if kind := other_kind(path):
        return CheckpointError(f"{path} {kind}")
    word = shlex.quote(str(path))
    return CheckpointError(
        f"{path} has no safetensors file; `moeprune inspect {word} --config-only` shows what "
        f"its config.json says, `moeprune plan {word} --config-only` the sizes of plans."
    )
