"""Jamba: Mamba and attention layers, of which every so many-th has experts."""

from analysis.checkpoint.index import Config
from analysis.families.base import MoEFamily, RouterTensor
from analysis.families.rules import index_of, whole_number


def _is_sparse(config: Config, layer: int) -> bool:
    if config.get("num_experts") == 1:  # as in Jamba Reasoning 3B: all layers have a plain MLP
        return False
    period = whole_number(config, "expert_layer_period")
    return layer % period == index_of(config, "expert_layer_offset")


JAMBA = MoEFamily(
    model_type="jamba",
    label="Jamba",
    gate_rule="softmax, then top-k, not renormalised",
    disk_block="feed_forward",
    module_block="feed_forward",
    router="router",
    router_tensors=(RouterTensor("router.weight"),),
    width_key="intermediate_size",
    width_shared_with="the dense MLPs",
    defaults={"expert_layer_period": 2, "expert_layer_offset": 1},
    is_sparse=_is_sparse,
    needs_transformers="5.21",  # its router returned logits alone before
)
