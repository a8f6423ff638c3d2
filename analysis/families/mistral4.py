"""Mistral 4: softmax among groups; released inside Mistral 3's wrapper with a vision part."""

from dataclasses import replace

from analysis.families.base import GroupRule, MoEFamily, SharedExperts
from analysis.families.rules import after_first

MISTRAL4 = MoEFamily(
    model_type="mistral4",
    label="Mistral 4",
    gate_rule="softmax, then top-k; renormalised if norm_topk_prob",
    # transformers converts nothing: experts are stacked in every checkpoint.
    projections={},
    count_keys=("n_routed_experts", "num_local_experts"),
    is_sparse=after_first("first_k_dense_replace"),
    groups=GroupRule(2),
    shared=SharedExperts("moe_intermediate_size", "n_shared_experts", width_is_each=True),
    # transformers lists its text model there alone.
    auto_class="AutoModelForImageTextToText",
)
# The same wrapper holds dense models; what counts experts is this one.
MISTRAL3 = replace(
    MISTRAL4,
    model_type="mistral3",
    label="Mistral 4 with vision",
    trunks=("language_model.model.layers", "model.language_model.layers"),
    module_trunks=("model.language_model.layers",),
    config_path=("text_config",),
)
