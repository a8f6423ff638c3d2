"""Experts of other widths in a model that transformers built with one.

As in `layers`, nothing of transformers is patched: modules are rebuilt from a copy of the
configuration, and while a checkpoint is read, one more step of its own conversion fills experts
that are narrower on disk up with zeros.

The text of this file is also a part of generated `modeling_pruned.py`s, so it takes nothing of this
program but what is in `layers`.
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
    """Give the experts of every layer their own width; dense and shared layers stay.

    Args:
        layers: the decoder layers, a ModuleList; changed in place.
        config: configuration of the text model, which the layers share; it is not changed.
        block: name of the module in a layer that holds its experts.
        width_key: its key of the width of an expert.
        count_keys: its keys that may hold the number of experts.

    Raises:
        ValueError: `per_layer_expert_width` does not have one entry for each layer.
    """
    widths = config.per_layer_expert_width
    if len(widths) != len(layers):
        raise ValueError(
            f"per_layer_expert_width has {len(widths)} entries for {len(layers)} layers."
        )
    for index, width in enumerate(widths):
        if width in (0, getattr(config, width_key)):  # dense, or built with the right one already
            continue
        holder = layers[index].get_submodule(block)
        seen = holder.experts.config
        # A layer with a number of experts of its own has a view of a copy already.
        own = copy.copy(seen.own if isinstance(seen, LayerConfig) else seen)
        setattr(own, width_key, width)
        experts = type(holder.experts)(own)
        experts.config = LayerConfig(own, config, (*count_keys, width_key))
        holder.experts = experts


def check_grouped_products(model: Any, widths: Sequence[int]) -> None:
    """Refuse experts that grouped matrix products cannot take, before they run.

    transformers then takes the experts implementation `eager` by itself, unless it was asked for
    `grouped_mm`.

    Args:
        model: being built, or loaded.
        widths: of the experts of each layer, 0 for a dense one.

    Raises:
        ValueError: a width that is no multiple of 16 bytes, which grouped_mm needs.
    """
    first = next(model.parameters(), None)
    # While a model is built, transformers makes the type that it is built in the default one.
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
    """Adds neurons of zeros to experts until all of a layer have the width of the module."""

    def convert(
        self, input_dict: dict[str, Any], *patterns: Any, full_layer_name: str, **given: Any
    ) -> dict[str, Any]:
        """The tensors of each expert, (width, hidden) or (hidden, width), all of one shape.

        Args:
            input_dict: source pattern -> tensors, one for each expert.
            patterns: of no use here, like most of `given`.
            full_layer_name: the parameter that they become.
            given: the model, among others.
        """
        rows, columns = given["model"].get_parameter(full_layer_name).shape[1:]
        shape = (rows // len(input_dict), columns)  # gate and up become one parameter
        return {name: [_filled(t, shape) for t in held] for name, held in input_dict.items()}


def _filled(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    rows, columns = (wanted - held for wanted, held in zip(shape, tensor.shape, strict=True))
    return pad(tensor, (0, columns, 0, rows)) if rows or columns else tensor


def filling_up(conversions: Sequence[Any]) -> list[Any]:
    """Conversions of a checkpoint's tensors that fill up experts before they are stacked."""
    return [_with_filling(each) if _stacks_experts(each) else each for each in conversions]


def _stacks_experts(conversion: Any) -> bool:
    return (
        isinstance(conversion, WeightConverter)
        and any(isinstance(step, MergeModulelist) for step in conversion.operations)
        and all("experts" in pattern for pattern in conversion.target_patterns)
    )


def _with_filling(conversion: Any) -> Any:
    changed = copy.deepcopy(conversion)
    steps = changed.operations
    # Right before they are stacked: what is quantised has become plain numbers by then.
    place = next(n for n, step in enumerate(steps) if isinstance(step, MergeModulelist))
    changed.operations = [*steps[:place], FillUp(), *steps[place:]]
    return changed


def forget_filling(conversions: Sequence[Any]) -> None:
    """Make saving store the experts as they are loaded; changes the conversions in place."""
    for conversion in conversions:
        if isinstance(conversion, WeightConverter):
            kept = [step for step in conversion.operations if not isinstance(step, FillUp)]
            conversion.operations = kept
