"""Nemotron-H: experts without a gate projection, in a width of their own if moe_latent_size."""

from dataclasses import replace

from analysis.checkpoint.index import Config
from analysis.errors import CheckpointError
from analysis.families.base import MoEFamily, SharedExperts
from analysis.families.deepseek_v3 import DEEPSEEK_V3


def _kinds(config: Config) -> list[str]:
    """The kind of each layer, from the list of names or the older string of letters."""
    if pattern := config.get("hybrid_override_pattern"):
        return ["moe" if letter == "E" else "other" for letter in str(pattern)]
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if not isinstance(kinds, list):
        raise CheckpointError("config.json has neither layers_block_type nor a pattern of layers.")
    return kinds


NEMOTRON_H: MoEFamily = replace(
    DEEPSEEK_V3,
    model_type="nemotron_h",
    label="Nemotron-H",
    trunks=("backbone.layers", "model.layers"),
    disk_block="mixer",
    module_block="mixer",
    projections={"up": "up_proj", "down": "down_proj"},
    stacked={"up": "experts.up_proj", "down": "experts.down_proj"},
    output_size_key="moe_latent_size",
    appended_heads_key="",  # of another layout
    engine_keys=(),
    defaults={},
    depth=lambda config: len(_kinds(config)),
    is_sparse=lambda config, layer: _kinds(config)[layer] == "moe",
    shared=SharedExperts("moe_shared_expert_intermediate_size", "n_shared_experts"),
)
