"""What a family of MoE models is: a small table that says where its parts live."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from analysis.checkpoint import Config
from analysis.errors import CheckpointError

PROJECTIONS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class MoELayer:
    """One sparse layer.

    Args:
        index: decoder index as in the checkpoint, not a position among the sparse layers.
        num_experts: routed experts.
        top_k: experts selected per token.
    """

    index: int
    num_experts: int
    top_k: int


class SlotKind(StrEnum):
    """How a tensor depends on the experts."""

    EXPERT = "expert"  # belongs to one expert
    STACKED = "stacked"  # holds all experts along axis 0
    ROUTER = "router"  # has one row per expert along axis 0


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor sits in the (layer, expert) grid.

    Args:
        layer: decoder index.
        kind: how it depends on the experts.
        projection: gate, up, down, or gate_up where both are stacked; empty for a router.
        expert: the expert it belongs to; None unless kind is EXPERT.
        template: its name with `{expert}` in place of the id; empty unless kind is EXPERT.
    """

    layer: int
    kind: SlotKind
    projection: str = ""
    expert: int | None = None
    template: str = ""


def every_layer(config: Config, layer: int) -> bool:
    """No dense layers."""
    del config, layer
    return True


def whole_number(config: Config, key: str) -> int:
    """A count of a configuration.

    Raises:
        CheckpointError: it is missing, or no whole number of at least 1.
    """
    if key not in config:
        raise CheckpointError(f"config.json has no {key}.")
    value = config[key]
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"config.json gives {key} = {value!r}; it must be a whole number of at least 1."
        )
    return value


@dataclass(frozen=True)
class MoEFamily:
    """Everything in which one architecture differs from another.

    Args:
        model_type: `config.json`'s word for it.
        label: its name for people.
        gate_rule: how the router makes gate weights, in words.
        disk_block: name of the MoE block inside a layer, in the checkpoint.
        module_block: the same in the loaded model.
        router: name of the router inside the block, in both.
        router_parameters: the loaded router's tensors with one row per expert, the matrix first.
        projections: checkpoint names of the gate, up and down projections of one expert.
        count_keys: configuration keys that may hold the number of experts.
        write_count_keys: keys that an export writes besides those present.
        top_k_key: configuration key of the experts selected per token.
        width_key: configuration key of an expert's width.
        is_sparse: (config, decoder index) -> whether that layer has experts.
    """

    model_type: str
    label: str
    gate_rule: str
    disk_block: str = "mlp"
    module_block: str = "mlp"
    router: str = "gate"
    router_parameters: tuple[str, ...] = ("weight",)
    projections: Mapping[str, str] = field(
        default_factory=lambda: {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    )
    count_keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    write_count_keys: tuple[str, ...] = ()
    top_k_key: str = "num_experts_per_tok"
    width_key: str = "moe_intermediate_size"
    is_sparse: Callable[[Config, int], bool] = every_layer

    def num_experts(self, config: Config) -> int:
        """Routed experts of a sparse layer.

        Raises:
            CheckpointError: no count, or two that differ (transformers would pick one silently).
        """
        present = [key for key in self.count_keys if config.get(key) is not None]
        counts = {key: whole_number(config, key) for key in present}
        if not counts:
            raise CheckpointError(
                f"config.json has none of {', '.join(self.count_keys)}, so the number of experts "
                f"of this {self.label} model is not known."
            )
        if len(set(counts.values())) > 1:
            raise CheckpointError(
                "config.json gives two numbers of experts: "
                + ", ".join(f"{key} = {value}" for key, value in counts.items())
                + "; keep the one that matches the weights."
            )
        return next(iter(counts.values()))

    def layers(self, config: Config) -> tuple[MoELayer, ...]:
        """Sparse layers only, in decoder order.

        Raises:
            CheckpointError: a key is missing from the configuration, or cannot be.
        """
        depth = whole_number(config, "num_hidden_layers")
        top_k = whole_number(config, self.top_k_key)
        count = self.num_experts(config)
        if top_k > count:
            raise CheckpointError(
                f"config.json selects {self.top_k_key} = {top_k} experts per token, but the model "
                f"has {count}."
            )
        return tuple(
            MoELayer(index, count, top_k) for index in range(depth) if self.is_sparse(config, index)
        )

    def config_with_count(self, config: Config, count: int) -> dict[str, object]:
        """A copy of `config` whose every expert count is `count`."""
        keys = [key for key in self.count_keys if key in config]
        return {**config, **dict.fromkeys((*keys, *self.write_count_keys), count)}

    def router_module(self, layer: int) -> str:
        """Path of a layer's router in the loaded model."""
        return f"model.layers.{layer}.{self.module_block}.{self.router}"

    def experts_module(self, layer: int) -> str:
        """Path of a layer's experts in the loaded model."""
        return f"model.layers.{layer}.{self.module_block}.experts"

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        # Anchored to the trunk: heads such as `mtp.layers.0.mlp.experts` are other layers.
        # A checkpoint saved with stacked experts has the loaded model's name for the block.
        blocks = "|".join(dict.fromkeys((self.disk_block, self.module_block)))
        block = rf"model\.layers\.(\d+)\.(?:{blocks})\."
        names = "|".join(map(re.escape, self.projections.values()))
        return (
            re.compile(rf"({block}experts\.)(\d+)(\.({names})\.\w+)"),
            re.compile(rf"{block}experts\.(gate_up|down)_proj"),
            re.compile(rf"{block}{re.escape(self.router)}\.(weight|bias)"),
            re.compile(rf"{block}(?:experts|{re.escape(self.router)})\."),
        )

    def locate(self, tensor_name: str) -> Slot | None:
        """The tensor's slot; None for a tensor that pruning leaves alone."""
        expert, stacked, router, _ = self._patterns
        if match := expert.fullmatch(tensor_name):
            head, layer, number, tail, name = match.groups()
            projection = next(key for key, value in self.projections.items() if value == name)
            template = f"{head}{{expert}}{tail}"
            return Slot(int(layer), SlotKind.EXPERT, projection, int(number), template)
        if match := stacked.fullmatch(tensor_name):
            return Slot(int(match[1]), SlotKind.STACKED, match[2])
        if match := router.fullmatch(tensor_name):
            return Slot(int(match[1]), SlotKind.ROUTER)
        return None

    def routed_layer(self, tensor_name: str) -> int | None:
        """Layer whose experts or router the tensor belongs to by its name, located or not."""
        *_, routed = self._patterns
        match = routed.match(tensor_name)
        return int(match[1]) if match else None
