"""Model code for families that transformers lacks, registered when such a model is loaded."""

from functools import cache
from importlib import import_module

# The modules need torch and transformers, so they are imported only then. Each has CLASSES, the
# configuration and the models without and with a head, and NAMED_AS, a model type that
# transformers knows, whose checkpoints name tensors alike.
_MODULES = {
    "deepseek": "analysis.families.deepseek_model",
    "kimi_k2": "analysis.families.kimi_k2_model",
}


def register_native(model_type: str) -> None:
    """Register this model type with the auto classes of transformers, if they lack it."""
    if model_type not in _MODULES:
        return
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers.conversion_mapping import (
        get_checkpoint_conversion_mapping,
        register_checkpoint_conversion_mapping,
    )

    if model_type in CONFIG_MAPPING:
        return
    module = import_module(_MODULES[model_type])
    config, trunk, whole_model = module.CLASSES
    AutoConfig.register(model_type, config)
    AutoModel.register(config, trunk)
    AutoModelForCausalLM.register(config, whole_model)
    # On disk each expert has its own tensors.
    stacking = get_checkpoint_conversion_mapping(module.NAMED_AS)
    register_checkpoint_conversion_mapping(model_type, stacking)


@cache
def is_registered_here(model_type: str) -> bool:
    """Whether transformers lacks this model type, so that only this program loads it."""
    return model_type in _MODULES
