"""Aria: experts stacked on disk as `fc1` and `fc2`, transposed."""

from dataclasses import replace

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts

ARIA_TEXT = MoEFamily(
    model_type="aria_text",
    label="Aria (text)",
    gate_rule="top-k of the logits, then softmax over those",
    router="router",
    router_tensors=(RouterTensor("router.weight"),),
    projections={},
    stacked_on_disk={"gate_up": "experts.fc1.weight", "down": "experts.fc2.weight"},
    is_transposed=True,
    count_keys=("moe_num_experts",),
    top_k_key="moe_topk",
    width_key="intermediate_size",
    shared=SharedExperts("intermediate_size", "moe_num_shared_experts", width_is_each=True),
    needs_transformers="5.18",  # its experts had no common interface before
)
ARIA = replace(
    ARIA_TEXT,
    model_type="aria",
    label="Aria",
    trunks=("language_model.model.layers", "model.language_model.layers"),
    module_trunks=("model.language_model.layers",),
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
)
