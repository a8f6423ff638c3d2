"""MoEModel: describes a checkpoint from its configuration and headers alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from analysis.errors import CheckpointError
from analysis.families.base import MoEFamily, MoELayer, Slot, SlotKind
from analysis.families.rules import whole_number

if TYPE_CHECKING:
    from analysis.checkpoint.index import Checkpoint, Config, TensorEntry

# Quantised weights have other names: MXFP4, GPTQ and AWQ, compressed-tensors.
_WEIGHT_ROLES = ("weight", "blocks", "qweight", "weight_packed")
# Parts of quantised weights: scales and the like hold no weights, a byte of MXFP4, NVFP4 or
# bitsandbytes' nf4 holds two, an integer of GPTQ, AWQ or compressed-tensors as many as fit.
SCALES = re.compile(
    r".+[._](scales?|scale_inv|scale_2|qzeros|zero_point|g_idx|weight_shape|absmax|quant_map"
    r"|quant_state\.\w+|SCB|weight_format)"
)
_PACKED = re.compile(r".+\.(qweight|weight_packed)")
_PACKED_BITS = 4
# The embedding and the head, which may be tied to it.
EMBEDDING, OUTPUT_HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUANTISED = "quantization_config"


@dataclass(frozen=True, slots=True)
class LocatedTensor:
    """An expert or router tensor, and its slot."""

    entry: TensorEntry
    slot: Slot


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The model that something belongs to."""

    name: str  # the directory's name, or the hub id; for display
    identity: str  # see `Checkpoint.identity`; this is what is compared


@dataclass(frozen=True, eq=False)
class MoEModel:
    """A checkpoint as a grid of experts."""

    name: str  # the directory's name, or the hub id
    checkpoint: Checkpoint
    family: MoEFamily
    layers: tuple[MoELayer, ...]  # the sparse ones

    @property
    def identity(self) -> str:
        """See `Checkpoint.identity`."""
        return self.checkpoint.identity

    @property
    def cache_key(self) -> tuple[str, str, str]:
        """What is in it, its name and its place."""
        return (self.identity, self.name, str(self.checkpoint.path))

    @property
    def num_experts(self) -> int:
        """Routed experts of all layers."""
        return sum(layer.num_experts for layer in self.layers)

    @property
    def config(self) -> Config:
        """The text model's part of `config.json`, with defaults filled in."""
        return self.family.text_config(self.checkpoint.config)

    @cached_property
    def depth(self) -> int:
        """Layers of the trunk, dense ones included."""
        return self.family.depth(self.config)

    @cached_property
    def located(self) -> Mapping[int, tuple[LocatedTensor, ...]]:
        """Expert and router tensors by layer, in checkpoint order.

        Layers from `depth` on are prediction heads.
        """
        by_layer: defaultdict[int, list[LocatedTensor]] = defaultdict(list)
        for entry in self.checkpoint.tensors.values():
            if slot := self.family.locate(entry.name):
                by_layer[slot.layer].append(LocatedTensor(entry, slot))
        return {layer: tuple(items) for layer, items in by_layer.items()}

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Slots of the expert and router tensors, by name."""
        return {item.entry.name: item.slot for items in self.located.values() for item in items}

    @cached_property
    def unlocated(self) -> tuple[TensorEntry, ...]:
        """All other tensors, in checkpoint order."""
        return tuple(e for e in self.checkpoint.tensors.values() if e.name not in self.slots)

    @property
    def dtype(self) -> str:
        """Safetensors name of the experts' dtype."""
        first = self.located[self.layers[0].index]
        return next(item.entry.dtype for item in first if is_expert_weight(item.slot))

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return whole_number(self.config, "hidden_size")

    @property
    def streams_size(self) -> int:
        """Width of all residual streams that a layer hands on; most models have one."""
        key = self.family.streams_key
        return self.hidden_size * (whole_number(self.config, key) if key in self.config else 1)

    @property
    def inseparable(self) -> str:
        """Why its layers do not run alone, as `Relay` needs, on one line; empty if they do."""
        return self.family.inseparable(self.config)

    @cached_property
    def quantisation(self) -> str:
        """transformers' name of the quantisation; empty if there is none."""
        settings = self.quantisation_settings
        return str(settings.get("quant_method", "unknown") if settings else "")

    @property
    def quantisation_settings(self) -> Config:
        """What config.json says of the quantisation; empty if there is none."""
        candidates = (config.get(QUANTISED) for config in (self.checkpoint.config, self.config))
        settings: object = next(filter(None, candidates), {})
        if not isinstance(settings, Mapping):
            raise CheckpointError(
                f"{QUANTISED} in config.json is {settings!r}; it needs an object, such as "
                '{"quant_method": "fp8"}.'
            )
        return settings

    @cached_property
    def stated_block(self) -> tuple[int, int] | None:
        """Rows and columns that share an FP8 scale, as config.json states them; None if not."""
        match self.quantisation_settings.get("weight_block_size"):
            case [int(rows), int(columns)] if rows > 0 and columns > 0:
                return rows, columns
        return None

    def num_weights(self, entry: TensorEntry) -> int:
        """Number of weights in a tensor: its elements, unless it is part of a quantised one."""
        if entry.dtype == "I32" and _PACKED.fullmatch(entry.name) and self.quantisation:
            return entry.numel * 32 // self._packed_bits
        if entry.dtype in ("I64", "I32"):  # ids, in tables of tokens
            return 0
        if not self.quantisation:
            return entry.numel
        if SCALES.fullmatch(entry.name):
            return 0
        in_pairs = entry.dtype == "U8" or (entry.dtype == "I8" and self.has_fp4)
        return entry.numel * (2 if in_pairs else 1)

    @cached_property
    def has_fp4(self) -> bool:
        """Whether a byte of an expert holds two weights, as in DeepSeek-V4."""
        configs = (self.quantisation_settings, self.checkpoint.config, self.config)
        return any(config.get("expert_dtype") == "fp4" for config in configs)

    @cached_property
    def _packed_bits(self) -> int:
        """Bits per weight of those packed into an integer."""
        groups = (self.quantisation_settings.get("config_groups") or {}).values()
        inner = ((group.get("weights") or {}).get("num_bits") for group in groups)
        bits = next(filter(None, (self.quantisation_settings.get("bits"), *inner)), _PACKED_BITS)
        return bits if type(bits) is int and 1 <= bits <= 32 else _PACKED_BITS

    @cached_property
    def num_params(self) -> int:
        """Weights on disk; tied ones count once."""
        return sum(map(self.num_weights, self.checkpoint.tensors.values()))

    @property
    def tied_embedding(self) -> TensorEntry | None:
        """The embedding, if it is also the head and engines of the family need a separate one."""
        tensors = self.checkpoint.tensors
        is_tied = self.family.needs_own_head and self.config.get("tie_word_embeddings")
        return tensors.get(EMBEDDING) if is_tied and OUTPUT_HEAD not in tensors else None

    @property
    def expert_output_size(self) -> int:
        """Width of an expert's output: of the residual stream, or of a latent space."""
        key = self.family.output_size_key
        return whole_number(self.config, key) if key in self.config else self.hidden_size


def is_expert_weight(slot: Slot) -> bool:
    """Whether a tensor holds weights of one or all experts, quantised or not, and not scales."""
    return slot.kind is not SlotKind.ROUTER and slot.role in _WEIGHT_ROLES
