"""The tensors of a model from config.json alone, without weights.

transformers builds it on the meta device and names the tensors as it would save them, so every
family that it loads is exact. What it does not build is added as far as it is known, see
`as_published`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMultimodalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from analysis.calibration.loading import LOADING_ERRORS
from analysis.checkpoint import CONFIG_NAME, Checkpoint, read_config
from analysis.errors import CheckpointError, first_line, unknown_name
from analysis.families import family_of
from analysis.home import from_home
from analysis.model import MoEModel, config_folder, describe_model
from analysis.nonuniform.loading import auto_class_of
from analysis.outline import Shapes, as_published, outline_of

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_STORED = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_STORED |= {torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}


def outline_model(
    source: str, *, dtype: str | None = None, revision: str | None = None
) -> MoEModel:
    """The model that a configuration describes: shapes of its tensors, no weights.

    The source is a config.json, its folder, a hub id, or `demo`. With `dtype` all tensors have it;
    by default that of the configuration, else bfloat16, and tensors are quantised as far as the
    configuration says how, see `as_published`.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise CheckpointError(unknown_name("dtype", dtype, list(_DTYPES)))
    folder = config_folder(source, revision)
    config = read_config(folder)
    # Only listed families: others are discovered from the headers of a real checkpoint.
    family = family_of(config)
    named = dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    # Never a path, as for a checkpoint.
    name = folder.resolve().name if from_home(source).exists() else source
    bare = MoEModel(name, Checkpoint(folder, config, ()), family, family.layers(config))
    tensors = _tensors(bare, _DTYPES.get(str(named), torch.bfloat16))
    tensors, caveats = (tensors, ()) if dtype else as_published(tensors, bare)
    return describe_model(outline_of(folder, config, tensors, caveats), name=name)


def _tensors(bare: MoEModel, dtype: torch.dtype) -> Shapes:
    """The model's tensors by their names on disk, from a model on the meta device."""
    # Before the configuration, whose class it may have to register. Of a part the whole is built.
    auto = AutoModelForMultimodalLM if bare.family.loads_part else auto_class_of(bare)
    try:
        config = AutoConfig.from_pretrained(
            bare.checkpoint.path, local_files_only=True, trust_remote_code=False
        )
        with torch.device("meta"):
            model: PreTrainedModel = auto.from_config(config, dtype=dtype, trust_remote_code=False)
    except LOADING_ERRORS as error:
        reason = first_line(error)
        raise CheckpointError(
            f"transformers cannot build {bare.name} from its {CONFIG_NAME}: {reason}"
        ) from error
    twice = set(model.all_tied_weights_keys) | set(model._keys_to_ignore_on_save or ())
    held = {name: each for name, each in model.state_dict().items() if name not in twice}
    stored: Mapping[str, Tensor] = revert_weight_conversion(model, held)
    # Whatever the dtype of the rest, such as the correction bias of DeepSeek-V3.
    single = tuple(f".{each}" for each in model._keep_in_fp32_modules_strict or ())
    return {
        name: ("F32" if name.endswith(single) else _STORED[each.dtype], tuple(each.shape))
        for name, each in stored.items()
    }
