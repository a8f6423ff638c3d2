"""What the configurations of the tiny models have in common."""

VOCAB = 64
HIDDEN = 16
WIDTH = 24  # of an expert; a multiple of 8, which grouped_mm needs in bf16

LINEAR_ATTENTION = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "linear_conv_kernel_dim": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}
LOCAL = {"num_local_experts": 6, "intermediate_size": WIDTH}
OLMOE = {"num_experts": 7, "intermediate_size": WIDTH}
QWEN = {"moe_intermediate_size": WIDTH, "intermediate_size": 40}
QWEN_SHARED = {**QWEN, "shared_expert_intermediate_size": 32}
QWEN3_5_TEXT = {
    **{**LINEAR_ATTENTION, "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": 32},
    **{"num_experts": 7, "num_experts_per_tok": 2},
}
HEADS = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
MLA = {**HEADS, "num_key_value_heads": 2, "v_head_dim": 8}
DEEPSEEK = {
    **{**QWEN, "n_routed_experts": 7, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "num_hidden_layers": 3,
}
GROUPS = {**DEEPSEEK, **MLA, "n_routed_experts": 12, "n_group": 3, "topk_group": 2}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
DELTA = {
    **{"num_hidden_layers": 3, "linear_head_dim": 8, "linear_num_heads": 2},
    "linear_conv_kernel_dim": 2,
}
# So many heads that keys hardly ever tie at a score of 0.
DSA = {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 8}
LIMIT = {"hc_mult": 2, "swiglu_limit": 1.0}  # a limit so low that it takes effect
WINDOWS = ["full_attention", "sliding_attention", "full_attention"]
ROPE = {"rope_type": "default", "rope_theta": 1e4}
SIGHT = {"hidden_size": 8, "intermediate_size": 8, "patch_size": 2, "image_size": 4}
MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 2, "mamba_expand": 2}
NEMOTRON = {"n_routed_experts": 7, "moe_intermediate_size": WIDTH, "head_dim": 8}
GEMMA4 = {
    **{"enable_moe_block": True, "num_experts": 7, "top_k_experts": 2, "tie_word_embeddings": True},
    **{"moe_intermediate_size": WIDTH, "intermediate_size": 40, "head_dim": 8},
    **{"global_head_dim": 24, "num_global_key_value_heads": 2, "attention_k_eq_v": True},
    **{"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
    **{"final_logit_softcapping": 5.0, "hidden_size_per_layer_input": 0},
}
VISION = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
EYE = {**VISION, "num_attention_heads": 1, "image_size": 4, "patch_size": 2}
MINIMAX_M3 = {
    **{**LOCAL, "num_local_experts": 7, "num_experts_per_tok": 2, "num_hidden_layers": 3},
    **{"mlp_layer_types": ["sparse", "dense", "sparse"], "head_dim": 8, "rotary_dim": 4},
    **{"dense_intermediate_size": 40, "shared_intermediate_size": 32, "swiglu_limit": 1.0},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}
    | {"partial_rotary_factor": 0.5},
    # Of three blocks of keys a query sees its own and one more.
    **{"layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"]},
    **{"index_n_heads": 1, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 2},
}
MISTRAL4 = {
    **{**DEEPSEEK, **MLA, "n_routed_experts": 12, "num_experts_per_tok": 3},
    **{"n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5},
    # So short that positions are scaled, and queries beyond it.
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0}
    | {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1},
}
# The same text model; vision and audio parts of one layer each.
THINKER = {
    "text_config": {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 3}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    | {"max_position_embeddings": 64, "num_experts": 7, "num_experts_per_tok": 2}
    | {**QWEN, "mlp_only_layers": [1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    | {"rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}},
    "vision_config": {**SIGHT, "depth": 1, "out_hidden_size": HIDDEN, "num_heads": 1}
    | {"deepstack_visual_indexes": []},
    "audio_config": {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 1}
    | {"encoder_ffn_dim": 8, "d_model": 8, "output_dim": HIDDEN, "downsample_hidden_size": 4},
    # transformers asks for them without a default, as published ones have them.
    **{"vision_start_token_id": 151652, "audio_end_token_id": 151648},
}
V4_ATTENTION = [
    *("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
    "sliding_attention",
]
V4_RATES = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}
# Their auto class builds the whole model, or is the only one that knows the text model.
IMAGE_TEXT = (
    *("aria", "kimi_k25", "minimax_m3_vl", "mistral3", "mistral4"),
    *("glm4v_moe", "glm5_next", "qwen3_vl_moe", "qwen3_omni_moe_thinker"),
)
# Case -> the case that stands for it, besides those that are `like` another, in slow tests of what
# no family does in its own way. transformers' modular files make its experts and layers of those
# of the other, or it is the text model inside the other; tensors, router and what layers hand on
# are the same. Every router, layout, mixer and composite of its own stays.
TWINS = {
    **dict.fromkeys(("olmoe-normalised", "flex_olmo"), "olmoe"),
    **dict.fromkeys(("deepseek_v3", "dots1"), "glm4_moe"),
    **{"deepseek-normalised": "deepseek", "lfm2_moe-unbiased": "lfm2_moe"},
    **{"granitemoeshared": "granitemoehybrid", "qwen3_5_moe_text": "qwen3_5_moe"},
    **{"gemma4_text": "gemma4", "aria_text": "aria", "mistral4": "mistral3"},
    "minimax_m3_vl_text": "minimax_m3_vl",
}
