"""`modeling_pruned.py`: lets plain transformers read an export with differing numbers of experts.

A reader who passes `trust_remote_code=True` runs it; it needs nothing but transformers. Its text
depends on the family alone, and is short enough to be read before it is trusted.
"""

import inspect

from analysis.families import MoEFamily
from analysis.families.native import is_registered_here
from analysis.nonuniform.layers import LayerConfig, layer_config, rebuild_layers, rebuilt_layer

MODELING_NAME = "modeling_pruned.py"
_IMAGE_TEXT = "AutoModelForImageTextToText"
# Auto class -> the table in which transformers looks up its model classes.
_TABLES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    _IMAGE_TEXT: "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
}

_FILE = '''# SPDX-License-Identifier: Apache-2.0
"""Models of transformers whose layers have different numbers of routed experts.

`per_layer_num_experts` in config.json has one number for each decoder layer, 0 for a dense one.
This generated file changes how many experts a layer is built with, and nothing else.
"""

import copy
from typing import Any

from transformers import CONFIG_MAPPING, {tables}

MODEL_TYPE = "{model_type}"
COUNT_KEYS = {count_keys}
TOP_K_KEY = "{top_k_key}"
TRUNKS = {trunks}


{parts}

class PerLayer:
    """What the classes below add to those of transformers."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        modules = dict(self.named_modules())
        trunk = next(path for path in TRUNKS if path in modules)
        shared = modules[trunk.rpartition(".")[0]].config
        rebuild_layers(modules[trunk], shared, COUNT_KEYS, TOP_K_KEY)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args, config=None, **kwargs):
        # A text model that is a part of a larger one gets the configuration of the whole.
        if hasattr(config, "get_text_config") and not isinstance(config, cls.config_class):
            config = config.get_text_config()
        return super().from_pretrained(*args, config=config, **kwargs)

    @classmethod
    def is_custom_code(cls):
        # Weights are converted as for the stock class.
        return False

    @classmethod
    def _can_set_experts_implementation(cls):
        # transformers would look for its decorator in this file.
        return True


def with_own_counts(table):
    stock = table[CONFIG_MAPPING[MODEL_TYPE]]
    # Under the stock name: transformers decides some things by the names of classes.
    made = type(stock.__name__, (PerLayer, stock), {{"__module__": __name__}})
    globals()[stock.__name__] = made  # where it is looked for once it was saved again
    return made

{classes}'''
_CLASS = """
{name} = with_own_counts({table})
"""


def _auto_classes(family: MoEFamily) -> tuple[str, ...]:
    also = (_IMAGE_TEXT,) if family.config_path else ()
    return tuple(dict.fromkeys((family.auto_class, *also)))


def _class_name(auto_class: str) -> str:
    return f"Pruned{auto_class.removeprefix('AutoModel')}"


def auto_map(family: MoEFamily) -> dict[str, str]:
    """What `config.json` says of the classes in the file; empty where there is no file.

    transformers has no class of some families that this program loads by one of its own.
    """
    if is_registered_here(family.model_type):
        return {}
    module = MODELING_NAME.removesuffix(".py")
    return {name: f"{module}.{_class_name(name)}" for name in _auto_classes(family)}


def _tuple(words: tuple[str, ...]) -> str:
    inner = ", ".join(f'"{word}"' for word in words)
    return f"({inner},)" if len(words) == 1 else f"({inner})"


def modeling_file(family: MoEFamily) -> str:
    """The content of `modeling_pruned.py`."""
    names = _auto_classes(family)
    classes = (_CLASS.format(name=_class_name(name), table=_TABLES[name]) for name in names)
    parts = (rebuild_layers, layer_config, LayerConfig, rebuilt_layer)
    return _FILE.format(
        tables=", ".join(_TABLES[name] for name in names),
        model_type=family.model_type,
        count_keys=_tuple(family.count_keys),
        top_k_key=family.top_k_key,
        trunks=_tuple(family.module_trunks),
        parts="\n\n".join(inspect.getsource(part) for part in parts),
        classes="".join(classes),
    )
