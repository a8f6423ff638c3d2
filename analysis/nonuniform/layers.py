"""Layers with different numbers of experts in a model that transformers builds with one number.

Nothing of transformers is patched, and there is no global state: the constructor of a subclass
rebuilds the layers with fewer experts, each from a copy of the configuration. While a checkpoint is
loaded this happens on the meta device and costs nothing; the weights come afterwards, and
transformers sizes their conversion by what it finds on disk.

These functions are copied into every generated `modeling_pruned.py`, so they import nothing of this
program.
"""

import copy
from typing import Any


def rebuild_layers(layers: Any, config: Any, count_keys: tuple[str, ...], top_k_key: str) -> None:
    """Give every decoder layer its own number of experts; changes the ModuleList in place.

    `config` is the text model's, shared by the layers, and is not changed: `count_keys` are its
    keys for the number of experts, `top_k_key` is that for the experts per token.
    """
    counts = config.per_layer_num_experts
    if len(counts) != len(layers):
        raise ValueError(
            f"per_layer_num_experts has {len(counts)} entries for {len(layers)} layers."
        )
    for index, count in enumerate(counts):
        if count not in (0, max(counts)):  # dense, or already built with the right number
            config_of_layer = layer_config(config, count, count_keys, top_k_key)
            layers[index] = rebuilt_layer(
                layers[index], index, LayerConfig(config_of_layer, config, count_keys)
            )


def layer_config(config: Any, count: int, count_keys: tuple[str, ...], top_k_key: str) -> Any:
    """A shallow copy of a configuration with another number of experts."""
    copied = copy.copy(config)
    for key in count_keys:
        setattr(copied, key, count)
    top_k = getattr(config, top_k_key)
    if isinstance(top_k, int):  # in some families it may be a list
        setattr(copied, top_k_key, min(top_k, count))
    return copied


class LayerConfig:
    """The shared configuration, but with one layer's number of experts.

    Only `keys` are looked up in `own`, from which the layer is built. All else comes from `shared`,
    where changes at run time are made, such as of the experts implementation.
    """

    def __init__(self, own: Any, shared: Any, keys: tuple[str, ...]) -> None:
        self.own = own
        self.shared = shared
        self.keys = keys

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up while this is copied and still empty
            raise AttributeError(name)
        return getattr(self.own if name in self.keys else self.shared, name)


def rebuilt_layer(layer: Any, index: int, config: LayerConfig) -> Any:
    """A layer of the same class, built with its own number of experts.

    Its modules then hold the shared configuration again; only the experts keep the view, because
    quantisers rebuild them from it.
    """
    built = type(layer)(config.own, index)
    for name, module in built.named_modules():
        if getattr(module, "config", None) is config.own:
            module.config = config if name.endswith("experts") else config.shared
    return built
