"""Load a checkpoint whose layers differ in number or width of experts, without remote code."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig

from analysis.checkpoint.aligned import align_weights
from analysis.checkpoint.index import Config
from analysis.errors import UnsupportedModelError
from analysis.families.base import PER_LAYER_KEY, WIDTHS_KEY, MoEFamily
from analysis.families.listing import FAMILIES
from analysis.families.native import register_native
from analysis.families.needs import why_too_old
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.model.widths import loaded_widths
from analysis.nonuniform.fp8_loading import take_cut_blocks
from analysis.nonuniform.layers import rebuild_layers
from analysis.nonuniform.modeling_file import MODELING_NAME, auto_map, modeling_file
from analysis.nonuniform.widths import (
    check_grouped_products,
    filling_up,
    forget_filling,
    resize_experts,
)

# What constructors of transformers raise for a configuration that they cannot handle.
_REFUSALS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, StopIteration)

# transformers swaps functions such as PreTrainedModel.tie_weights while it loads; overlapping
# loads would leave them swapped.
_ONE_AT_A_TIME = Lock()


def load_pruned(
    path: str | Path, *, auto_class: str | None = None, revision: str | None = None, **options: Any
) -> Any:
    """A pruned checkpoint as a transformers model in evaluation mode.

    Args:
        path: folder or hub id of an export, or of a loaded one saved by `save_pretrained`; its
            layers may differ in number and width of experts or not.
        auto_class: name of the auto class of transformers to load it with; by default that of its
            family, most often AutoModelForCausalLM.
        revision: on the hub.
        options: others of `from_pretrained`: dtype, device_map, experts_implementation,
            output_loading_info, ... Code that comes with the checkpoint is never run.

    Returns the model; with `output_loading_info=True`, also transformers' report on the tensors.
    """
    described = load_model_index(str(path), revision=revision)
    loader = auto_class_of(described, auto_class)
    with _ONE_AT_A_TIME:
        loaded = loader.from_pretrained(
            described.checkpoint.path, **{**options, "trust_remote_code": False}
        )
    align_weights(loaded[0] if isinstance(loaded, tuple) else loaded)
    return loaded


def auto_class_of(model: MoEModel, name: str | None = None) -> Any:
    """The class whose `from_pretrained` loads a checkpoint.

    It is an auto class of transformers, by default that of the family, or a subclass of it if
    layers differ in number or width of experts; see also `_PartLoader`.
    """
    family = model.family
    if why := why_too_old(family):
        raise UnsupportedModelError(f"{model.name} cannot be loaded: {why}.")
    register_native(family.model_type)
    if model.quantisation == "fp8":
        take_cut_blocks()
    stock = getattr(transformers, name or family.auto_class)
    is_uniform = loaded_widths(model) is None and PER_LAYER_KEY not in model.config
    if family.loads_part and not name:
        return _PartLoader(stock if is_uniform else per_layer_class(stock, family))
    if is_uniform:
        return stock
    # A new class with its own table, so that other loads use the stock one.
    table = _PerLayerTable(stock._model_mapping, family)
    return type(f"PerLayer{stock.__name__}", (stock,), {"_model_mapping": table})


@dataclass(frozen=True)
class _PartLoader:
    """The class of a part of a model in place of an auto class; checkpoints are of the whole."""

    part: Any  # the class

    def from_pretrained(self, path: str | Path, **options: Any) -> Any:
        """The part out of a checkpoint of the whole."""
        options.pop("trust_remote_code", None)  # transformers has the class
        config = self._config(AutoConfig.from_pretrained(path))
        return self.part.from_pretrained(path, config=config, **options)

    def from_config(self, config: Any, **options: Any) -> Any:
        """The part of the model that a configuration describes, with random weights."""
        options.pop("trust_remote_code", None)
        return self.part._from_config(self._config(config), **options)

    def _config(self, config: Any) -> Any:
        inner = (
            value for value in vars(config).values() if isinstance(value, self.part.config_class)
        )
        part_config = next(inner)
        if (quantised := getattr(config, "quantization_config", None)) is not None:
            part_config.quantization_config = quantised
        return part_config


class _PerLayerTable(Mapping[type, Any]):
    """transformers' table configuration class -> model class, with layers of different sizes."""

    def __init__(self, stock: Mapping[type, Any], family: MoEFamily) -> None:
        self._stock = stock
        self._family = family

    def __getitem__(self, config_class: type) -> Any:
        entry = self._stock[config_class]
        several = entry if isinstance(entry, (list, tuple)) else (entry,)
        classes = tuple(per_layer_class(stock, self._family) for stock in several)
        return classes if isinstance(entry, (list, tuple)) else classes[0]

    def __contains__(self, config_class: object) -> bool:
        return config_class in self._stock

    def __iter__(self) -> Iterator[type]:
        return iter(self._stock)

    def __len__(self) -> int:
        return len(self._stock)


def per_layer_class(stock: Any, family: MoEFamily) -> Any:
    """A subclass of a stock model class whose layers have their own number and width of experts."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        stock.__init__(self, config, *args, **kwargs)
        _rebuild(self, family)
        # Initialises the new layers, unless the model is loaded from a checkpoint.
        self.post_init()

    def save_pretrained(self: Any, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        _write_modeling_file(self, family, Path(save_directory))
        stock.save_pretrained(self, save_directory, *args, **kwargs)

    def load(model: Any, state: Any, files: Any, how: Any, **options: Any) -> Any:
        if _has(model, WIDTHS_KEY):
            how = replace(how, weight_mapping=filling_up(how.weight_mapping or ()))
        loaded = stock._load_pretrained_model(model, state, files, how, **options)
        forget_filling(model._weight_conversions)
        return loaded

    def grouped(self: Any) -> Any:
        if _has(self, WIDTHS_KEY):
            check_grouped_products(self, getattr(self.config.get_text_config(), WIDTHS_KEY))
        return stock._grouped_mm_can_dispatch(self)

    # Keeps the stock name and module: by these transformers finds weight conversions and whether
    # the experts implementation can be set, and the name goes into the configuration.
    members = {
        "__init__": __init__,
        "save_pretrained": save_pretrained,
        "_load_pretrained_model": staticmethod(load),
        "_grouped_mm_can_dispatch": grouped,
        "__module__": stock.__module__,
        "__doc__": stock.__doc__,
    }
    return type(stock.__name__, (stock,), members)


def _rebuild(model: Any, family: MoEFamily) -> None:
    modules = dict(model.named_modules())
    trunk = next(path for path in family.module_trunks if path in modules)
    layers, shared = modules[trunk], modules[trunk.rpartition(".")[0]].config
    if _has(model, PER_LAYER_KEY):
        rebuild_layers(layers, shared, family.count_keys, family.top_k_key)
    if _has(model, WIDTHS_KEY):
        resize_experts(layers, shared, family.module_block, family.width_key, family.count_keys)


def _write_modeling_file(model: Any, family: MoEFamily, folder: Path) -> None:
    # The text model of a composite checkpoint is saved as its own family.
    saved = FAMILIES.get(model.config.model_type, family)
    if classes := auto_map(saved):
        model.config.auto_map = {**(getattr(model.config, "auto_map", None) or {}), **classes}
        # Written first, so that it is included when the folder is pushed to the hub.
        folder.mkdir(parents=True, exist_ok=True)
        content = modeling_file(saved, widths=_has(model, WIDTHS_KEY))
        (folder / MODELING_NAME).write_text(content, "utf-8")


def _has(model: Any, key: str) -> bool:
    return getattr(model.config.get_text_config(), key, None) is not None


def check_buildable(family: MoEFamily, config: Config) -> None:
    """Build the model of a whole `config.json` on the meta device, and check its layers.

    For listed families tests show that this works; for discovered ones only this check does, before
    an export relies on it.
    """
    if reason := _problem(family, config):
        raise UnsupportedModelError(
            f"Layers of different sizes do not work for {family.model_type!r}, which is not in the "
            f"table of families: {reason}."
        )


def _problem(family: MoEFamily, config: Config) -> str:
    """Why it cannot be built; empty if it can."""
    if family.model_type not in CONFIG_MAPPING:
        return "transformers has no class for it, and code of a checkpoint is not run"
    hf_config = CONFIG_MAPPING[family.model_type].from_dict(dict(config))
    table = getattr(transformers, family.auto_class)._model_mapping
    if type(hf_config) not in table:
        return f"transformers has no {family.auto_class} for it"
    try:
        with torch.device("meta"):
            model = per_layer_class(table[type(hf_config)], family)._from_config(hf_config)
        return _odd_layer(model, family, config)
    except _REFUSALS as error:
        first = next(iter(str(error).strip().splitlines()), "")
        return f"building them fails with {type(error).__name__}: {first}".rstrip(": .")


def _odd_layer(model: Any, family: MoEFamily, config: Config) -> str:
    """A layer of a built model without the sizes of its configuration, in words; or empty."""
    widths = family.text_config(config).get(WIDTHS_KEY)
    modules = dict(model.named_modules())
    trunk = next(path for path in family.module_trunks if path in modules)
    for layer in family.layers(config):
        block = model.get_submodule(family.block_module(layer.index, trunk))
        down = block.get_parameter(family.stacked["down"]).shape
        rows = block.get_parameter(family.router_tensors[0].name).shape[0]
        if {down[0], rows} != {layer.num_experts}:
            return f"layer {layer.index} has {down[0]} experts instead of {layer.num_experts}"
        experts = block.get_submodule(family.stacked["down"].rpartition(".")[0])
        width = down[1 if experts.is_transposed else 2]
        if widths and width != widths[layer.index]:
            return f"layer {layer.index} is {width} wide instead of {widths[layer.index]}"
    return ""
