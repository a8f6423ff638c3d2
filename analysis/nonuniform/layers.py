"""Layers of different sizes in a model that transformers built with one.

Nothing of transformers is patched and no state is global: in the constructor of a subclass, the
layers that have fewer experts are built again, each from a copy of the configuration. While a
checkpoint is loaded that happens on the meta device and costs nothing; the weights come afterwards,
and transformers sizes their conversion by what it finds on disk.

The text of these functions is also a part of every generated `modeling_pruned.py`, so they import
nothing of this program.
"""

import copy
from typing import Any


def rebuild_layers(layers: Any, config: Any, count_keys: tuple[str, ...], top_k_key: str) -> None:
    """Give every layer its own number of experts.

    Args:
        layers: the decoder layers, a ModuleList; changed in place.
        config: configuration of the text model, which the layers share; it is not changed.
        count_keys: its keys that may hold the number of experts, or be another name for one.
        top_k_key: its key of the experts selected per token.

    Raises:
        ValueError: `per_layer_num_experts` does not have one entry for each layer.
    """
    counts = config.per_layer_num_experts
    if len(counts) != len(layers):
        raise ValueError(
            f"per_layer_num_experts has {len(counts)} entries for {len(layers)} layers."
        )
    for index, count in enumerate(counts):
        if count not in (0, max(counts)):  # dense, or built with the right number already
            own = layer_config(config, count, count_keys, top_k_key)
            layers[index] = rebuilt_layer(
                layers[index], index, LayerConfig(own, config, count_keys)
            )


def layer_config(config: Any, count: int, count_keys: tuple[str, ...], top_k_key: str) -> Any:
    """A shallow copy of a configuration with another number of experts."""
    own = copy.copy(config)
    for key in count_keys:
        setattr(own, key, count)
    top_k = getattr(config, top_k_key)
    if isinstance(top_k, int):  # in some families it may be a list
        setattr(own, top_k_key, min(top_k, count))
    return own


class LayerConfig:
    """The shared configuration, but with one layer's number of experts.

    Args:
        own: the configuration that the layer is built from.
        shared: what it was copied from. Changes at run time, such as of the experts
            implementation, are made there, so everything but the keys is looked up there.
        keys: what is looked up in its own.
    """

    def __init__(self, own: Any, shared: Any, keys: tuple[str, ...]) -> None:
        self.own = own
        self.shared = shared
        self.keys = keys

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for while this is copied, when it is still empty
            raise AttributeError(name)
        return getattr(self.own if name in self.keys else self.shared, name)


def rebuilt_layer(layer: Any, index: int, config: LayerConfig) -> Any:
    """A layer of the same class, built with its own number of experts.

    Its modules hold the shared configuration again; only the experts keep the view, because
    quantisers rebuild them from it.
    """
    built = type(layer)(config.own, index)
    for name, module in built.named_modules():
        if getattr(module, "config", None) is config.own:
            module.config = config if name.endswith("experts") else config.shared
    return built
