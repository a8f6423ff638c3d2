"""The tensors of a model that transformers builds on the meta device, named as it would save them.

So every family that it loads is exact. Its import and that of torch take seconds.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMultimodalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from analysis.calibration.loading import DTYPES, LOADING_ERRORS
from analysis.checkpoint.index import CONFIG_NAME
from analysis.errors import CheckpointError, first_line
from analysis.model.moe_model import MoEModel
from analysis.model.outline import Shapes
from analysis.nonuniform.loading import auto_class_of

_STORED = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_STORED |= {torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}


def built_tensors(bare: MoEModel, dtype: str) -> Shapes:
    """Name on disk -> dtype and shape, of a model without tensors; `dtype` is a name of torch's."""
    # Before the configuration, whose class it may have to register. Of a part the whole is built.
    auto = AutoModelForMultimodalLM if bare.family.loads_part else auto_class_of(bare)
    try:
        config = AutoConfig.from_pretrained(
            bare.checkpoint.path, local_files_only=True, trust_remote_code=False
        )
        with torch.device("meta"):
            model: PreTrainedModel = auto.from_config(
                config, dtype=DTYPES[dtype], trust_remote_code=False
            )
    except LOADING_ERRORS as error:
        reason = first_line(error)
        raise CheckpointError(
            f"transformers cannot build {bare.name} from its {CONFIG_NAME}: {reason}"
        ) from error
    twice = set(model.all_tied_weights_keys) | set(model._keys_to_ignore_on_save or ())
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in twice}
    stored: Mapping[str, Tensor] = revert_weight_conversion(model, tensors)
    # Which floats are stored in float32 is the family's to say: what transformers keeps so while it
    # computes differs between its versions.
    return {
        name: (_stored(bare, name, tensor, dtype), tuple(tensor.shape))
        for name, tensor in stored.items()
    }


def _stored(bare: MoEModel, name: str, tensor: Tensor, dtype: str) -> str:
    if not tensor.is_floating_point():
        return _STORED[tensor.dtype]
    return "F32" if name.endswith(bare.family.single) else _STORED[DTYPES[dtype]]
