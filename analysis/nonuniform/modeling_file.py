"""`modeling_pruned.py`: lets plain transformers read an export with layers of different sizes.

It runs with `trust_remote_code=True` and needs only transformers. Its text depends on the family
and on whether widths differ, and is short enough to be read before it is trusted.
"""

import ast
import inspect
import re
from pathlib import Path

from analysis.families.base import MoEFamily
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
"""Models of transformers whose layers have different {what} of routed experts.

{says}
"""

import copy
{imports}

from transformers import (
    CONFIG_MAPPING,
{tables}
)
{more_imports}
MODEL_TYPE = "{model_type}"
COUNT_KEYS = {count_keys}
TOP_K_KEY = "{top_k_key}"
TRUNKS = {trunks}
{constants}

{parts}

class PerLayer:
    """What the classes below add to those of transformers."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        modules = dict(self.named_modules())
        trunk = next(path for path in TRUNKS if path in modules)
        shared = modules[trunk.rpartition(".")[0]].config
{sizes}
        self.post_init()
{methods}
    @classmethod
    def from_pretrained(cls, *args, config=None, **kwargs):
        # As a part of a larger model it gets the configuration of the whole.
        if hasattr(config, "get_text_config") and not isinstance(config, cls.config_class):
            config = config.get_text_config()
        return super().from_pretrained(*args, config=config, **kwargs)

    @classmethod
    def is_custom_code(cls):
        # Weights are converted as for the stock class.
        return False

    @classmethod
    def _can_set_experts_implementation(cls):
        # transformers looks for its decorator in the file of the class; this is not that file.
        return cls.__mro__[cls.__mro__.index(PerLayer) + 1]._can_set_experts_implementation()


def with_own_sizes(table):
    stock = table[CONFIG_MAPPING[MODEL_TYPE]]
    # Under the stock name: transformers decides some things by the names of classes.
    made = type(stock.__name__, (PerLayer, stock), {{"__module__": __name__}})
    globals()[stock.__name__] = made  # where it is looked up after it is saved again
    return made

{classes}'''
# If only numbers of experts differ; also works with transformers 4.57.
_COUNTS = {
    "what": "numbers",
    "says": """\
`per_layer_num_experts` in config.json has one number per decoder layer, 0 for a dense one.
This generated file changes how many experts a layer is built with, and nothing else.""",
    "imports": "from typing import Any",
    "more_imports": "",
    "constants": "",
    "sizes": "        rebuild_layers(modules[trunk], shared, COUNT_KEYS, TOP_K_KEY)",
    "methods": "",
}
# If widths differ, with or without the numbers.
_WIDTHS = {
    "what": "numbers or widths",
    "says": """\
`per_layer_expert_width` in config.json has the width of the experts of each decoder layer, 0 for a
dense one; `per_layer_num_experts`, if present, has their number. This generated file changes how
experts are built and pads those that are narrower on disk with zeros, and nothing else.""",
    "imports": """import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad""",
    "more_imports": """\
from transformers.core_model_loading import ConversionOps, MergeModulelist, WeightConverter
""",
    "constants": """BLOCK = "{module_block}"
WIDTH_KEY = "{width_key}"
""",
    "sizes": """        if getattr(shared, "per_layer_num_experts", None) is not None:
            rebuild_layers(modules[trunk], shared, COUNT_KEYS, TOP_K_KEY)
        resize_experts(modules[trunk], shared, BLOCK, WIDTH_KEY, COUNT_KEYS)""",
    "methods": """
    @classmethod
    def _load_pretrained_model(cls, model, state, files, how, **given):
        how = dataclasses.replace(how, weight_mapping=filling_up(how.weight_mapping or ()))
        loaded = super()._load_pretrained_model(model, state, files, how, **given)
        forget_filling(model._weight_conversions)
        return loaded

    def _grouped_mm_can_dispatch(self):
        check_grouped_products(self, self.config.get_text_config().per_layer_expert_width)
        return super()._grouped_mm_can_dispatch()
""",
}


def _auto_classes(family: MoEFamily) -> tuple[str, ...]:
    also = (_IMAGE_TEXT,) if family.config_path else ()
    return tuple(dict.fromkeys((family.auto_class, *also)))


def _class_name(auto_class: str) -> str:
    return f"Pruned{auto_class.removeprefix('AutoModel')}"


def auto_map(family: MoEFamily) -> dict[str, str]:
    """`auto_map` of `config.json` for the classes in the file; empty if there is no file.

    There is none for families that transformers has no class for and that this program defines,
    and none where a part is loaded by a class that is no auto class.
    """
    if is_registered_here(family.model_type) or family.loads_part:
        return {}
    module = MODELING_NAME.removesuffix(".py")
    return {name: f"{module}.{_class_name(name)}" for name in _auto_classes(family)}


def _tuple(words: tuple[str, ...]) -> str:
    inner = ", ".join(f'"{word}"' for word in words)
    return f"({inner},)" if len(words) == 1 else f"({inner})"


def modeling_file(family: MoEFamily, *, widths: bool = False) -> str:
    """The content of `modeling_pruned.py`; with `widths`, see `analysis.nonuniform.widths`."""
    names = _auto_classes(family)
    classes = (f"\n{_class_name(name)} = with_own_sizes({_TABLES[name]})\n" for name in names)
    parts = [
        inspect.getsource(definition) for definition in (rebuild_layers, layer_config, LayerConfig)
    ]
    parts += [inspect.getsource(rebuilt_layer), *(_width_parts() if widths else ())]
    variant = {**(_WIDTHS if widths else _COUNTS)}
    keys = {"module_block": family.module_block, "width_key": family.width_key}
    variant["constants"] = variant["constants"].format(**keys)
    return _FILE.format(
        **variant,
        tables="\n".join(f"    {_TABLES[name]}," for name in names),
        model_type=family.model_type,
        count_keys=_tuple(family.count_keys),
        top_k_key=family.top_k_key,
        trunks=_tuple(family.module_trunks),
        parts="\n\n".join(parts),
        classes="".join(classes),
    )


def _width_parts() -> list[str]:
    """The classes and functions of `widths`, read and not imported because it needs torch."""
    text = Path(__file__).with_name("widths.py").read_text("utf-8")
    lines = text.splitlines(keepends=True)
    sources = [
        "".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    ]
    return [re.sub(r"  # type: ignore\[.*?\]", "", part) for part in sources]
