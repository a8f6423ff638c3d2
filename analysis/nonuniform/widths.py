"""Layers with different widths of experts in a model that transformers builds with one width.

As in `layers`, nothing of transformers is patched: modules are rebuilt from a copy of the
configuration, and an additional conversion step pads experts that are narrower on disk with zeros.

This file is copied into generated `modeling_pruned.py` files, so it uses nothing of this program
but `layers`.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.core_model_loading import ConversionOps, MergeModulelist, WeightConverter

from analysis.nonuniform.layers import LayerConfig


def resize_experts(
    layers: Any, config: Any, block: str, width_key: str, count_keys: tuple[str, ...]
) -> None:
    """Give the experts of every decoder layer their own width; changes the ModuleList in place.

    `config` is the text model's, shared by the layers, and is not changed: `width_key` is its key
    for the width of an expert, `count_keys` are those for the number of experts. `block` is the
    module in a layer that holds its experts.
    """
    widths = config.per_layer_expert_width
    if len(widths) != len(layers):
        raise ValueError(
            f"per_layer_expert_width has {len(widths)} entries for {len(layers)} layers."
        )
    for index, width in enumerate(widths):
        if width in (0, getattr(config, width_key)):  # dense, or already built with the right one
            continue
        holder = layers[index].get_submodule(block)
        view = holder.experts.config
        # A layer with its own number of experts has a view of a copy already.
        layer_config = copy.copy(view.own if isinstance(view, LayerConfig) else view)
        setattr(layer_config, width_key, width)
        experts = type(holder.experts)(layer_config)
        experts.config = LayerConfig(layer_config, config, (*count_keys, width_key))
        holder.experts = experts


def check_grouped_products(model: Any, widths: Sequence[int]) -> None:
    """Raise a ValueError if a layer's width is not a multiple of 16 bytes, as grouped_mm needs.

    transformers then uses the experts implementation `eager`, unless `grouped_mm` was asked for.
    """
    first = next(model.parameters(), None)
    # While a model is built, transformers sets the default dtype to its own.
    dtype = torch.get_default_dtype() if first is None else first.dtype
    multiple = max(1, 16 // dtype.itemsize)
    for layer, width in enumerate(widths):
        if width % multiple:
            raise ValueError(
                f"The experts of layer {layer} have {width} neurons, but grouped_mm needs a "
                f"multiple of {multiple} in {dtype}; use the experts implementation eager or "
                f"batched_mm, or export with --width-multiple-of {multiple}."
            )


class FillUp(ConversionOps):  # type: ignore[misc]
    """Pads experts with zero neurons until all of a layer have the width of the module."""

    def convert(
        self, input_dict: dict[str, Any], *patterns: Any, full_layer_name: str, **given: Any
    ) -> dict[str, Any]:
        """Pad the tensors of each expert, (width, hidden) or (hidden, width), to one shape.

        `input_dict` is source pattern -> tensors, one per expert, of the parameter
        `full_layer_name`; `given` has the model, among others.
        """
        rows, columns = given["model"].get_parameter(full_layer_name).shape[1:]
        shape = (rows // len(input_dict), columns)  # gate and up become one parameter
        return {name: [_filled(t, shape) for t in tensors] for name, tensors in input_dict.items()}


def _filled(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    rows, columns = (target - size for target, size in zip(shape, tensor.shape, strict=True))
    return pad(tensor, (0, columns, 0, rows)) if rows or columns else tensor


def filling_up(conversions: Sequence[Any]) -> list[Any]:
    """Conversions of a checkpoint's tensors that pad experts before they are stacked."""
    return [
        _with_filling(conversion) if _stacks_experts(conversion) else conversion
        for conversion in conversions
    ]


def _stacks_experts(conversion: Any) -> bool:
    return (
        isinstance(conversion, WeightConverter)
        and any(isinstance(step, MergeModulelist) for step in conversion.operations)
        and all("experts" in pattern for pattern in conversion.target_patterns)
    )


def _with_filling(conversion: Any) -> Any:
    changed = copy.deepcopy(conversion)
    steps = changed.operations
    # Just before they are stacked: by then quantised tensors have been dequantised.
    place = next(n for n, step in enumerate(steps) if isinstance(step, MergeModulelist))
    changed.operations = [*steps[:place], FillUp(), *steps[place:]]
    return changed


def forget_filling(conversions: Sequence[Any]) -> None:
    """Make saving store the padded experts; changes the conversions in place."""
    for conversion in conversions:
        if isinstance(conversion, WeightConverter):
            kept = [step for step in conversion.operations if not isinstance(step, FillUp)]
            conversion.operations = kept
