"""Model code for families that transformers lacks, registered when such a model is loaded."""

from importlib import import_module

# The modules need torch and transformers, so they are imported only then.
_MODULES = {
    "deepseek": "analysis.families.deepseek_model",
    "kimi_k2": "analysis.families.kimi_k2_model",
}


def register_native(model_type: str) -> None:
    """Register this model type with the auto classes of transformers, if they lack it."""
    if module := _MODULES.get(model_type):
        import_module(module).register()


def is_registered_here(model_type: str) -> bool:
    """Whether transformers lacks this model type, so that only this program loads it."""
    return model_type in _MODULES
