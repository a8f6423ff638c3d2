"""MiniMax-M3: sigmoid routing, gated as gpt-oss, and a vision part around the text model."""

from dataclasses import replace

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import by_kinds, every_layer

MINIMAX_M3_TEXT = MoEFamily(
    model_type="minimax_m3_vl_text",
    label="MiniMax-M3 (text)",
    gate_rule="sigmoid; selection by sigmoid + correction bias; renormalised",
    disk_block="block_sparse_moe",
    projections={"gate": "w1", "up": "w3", "down": "w2"},
    router_tensors=(
        RouterTensor("gate.weight"),
        # In a checkpoint of the original layout the block holds it.
        RouterTensor("gate.e_score_correction_bias", on_disk="e_score_correction_bias"),
    ),
    can_exclude=True,
    count_keys=("num_local_experts", "num_experts"),
    width_key="intermediate_size",
    # Published configurations have a list of 0 and 1.
    is_sparse=by_kinds("mlp_layer_types", by_kinds("moe_layer_freq", every_layer)),
    # transformers and MLX take their width from the last key alone, vLLM and llama.cpp multiply.
    shared=SharedExperts(
        "intermediate_size",
        "n_shared_experts",
        width_is_each=True,
        total_key="shared_intermediate_size",
    ),
    defaults={"n_shared_experts": 1, "shared_intermediate_size": 3072},
)
MINIMAX_M3 = replace(
    MINIMAX_M3_TEXT,
    model_type="minimax_m3_vl",
    label="MiniMax-M3",
    trunks=("language_model.model.layers", "model.language_model.layers"),
    module_trunks=("model.language_model.layers",),
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
)
