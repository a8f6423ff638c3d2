"""A trial: layers of different sizes, built without weights before an export relies on them.

Of a listed family the tests show that its layers can be built anew. Of one that was discovered only
this shows it.
"""

from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from analysis.checkpoint import Config
from analysis.errors import UnsupportedModelError
from analysis.families import MoEFamily
from analysis.families.base import WIDTHS_KEY
from analysis.nonuniform.loading import per_layer_class

# What constructors of transformers raise about a configuration that they cannot take.
_REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, StopIteration)


def check_buildable(family: MoEFamily, config: Config) -> None:
    """Build the model of a whole `config.json` on the meta device, and look at its layers."""
    if reason := _problem(family, config):
        raise UnsupportedModelError(
            f"Layers of different sizes were tried on {family.model_type!r}, which is not in the "
            f"table of families: {reason}."
        )


def _problem(family: MoEFamily, config: Config) -> str:
    """Why it cannot be built; empty if it can."""
    if family.model_type not in CONFIG_MAPPING:
        return "transformers has no class for it, and code of a checkpoint is not run"
    made = CONFIG_MAPPING[family.model_type].from_dict(dict(config))
    table = getattr(transformers, family.auto_class)._model_mapping
    if type(made) not in table:
        return f"transformers has no {family.auto_class} for it"
    try:
        with torch.device("meta"):
            model = per_layer_class(table[type(made)], family)._from_config(made)
        return _odd_layer(model, family, config)
    except _REFUSALS as error:
        first = next(iter(str(error).strip().splitlines()), "")
        return f"building them fails with {type(error).__name__}: {first}".rstrip(": .")


def _odd_layer(model: Any, family: MoEFamily, config: Config) -> str:
    """A layer of a built model that does not have the sizes of its configuration."""
    widths = family.text_config(config).get(WIDTHS_KEY)
    modules = dict(model.named_modules())
    trunk = next(path for path in family.module_trunks if path in modules)
    for layer in family.layers(config):
        block = model.get_submodule(family.block_module(layer.index, trunk))
        down = block.get_parameter(family.stacked["down"]).shape
        rows = block.get_parameter(family.router_tensors[0].name).shape[0]
        if {down[0], rows} != {layer.num_experts}:
            return f"layer {layer.index} has {down[0]} experts instead of {layer.num_experts}"
        width = down[1 if family.is_transposed else 2]
        if widths and width != widths[layer.index]:
            return f"layer {layer.index} is {width} wide instead of {widths[layer.index]}"
    return ""
