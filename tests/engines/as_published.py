"""What published configurations have and the tiny ones of the conformance suite vary or lack.

`transformers` 5 leaves keys out of config.json, or names them in another way, that engines read.
"""

from collections.abc import Mapping
from typing import Any, Final

from families.settings import THINKER, VOCAB, WIDTH

# Sizes of the conformance suite times this suit the kernels of engines: heads of 32, rows of 64.
LARGER: Final = 4
# Hybrid layers with a Mamba mixer, as every published Nemotron-H has, and none of the old MLPs.
_NEMOTRON: Final = {
    "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
    **{"num_hidden_layers": 5, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1},
    **{"ssm_state_size": 8, "conv_kernel": 2, "chunk_size": 8, "use_mamba_kernels": False},
}
_DEFAULT_ROPE: Final = {"rope_type": "default", "rope_theta": 500000.0}
# The latent rows that vLLM's kernel for CPUs takes, 512 + 64, as published.
_MLA: Final = {"kv_lora_rank": 128, "qk_rope_head_dim": 16}
_WINDOWED: Final = ["full_attention", "sliding_attention", "sliding_attention"]

# Model type -> settings in place of those of the conformance suite, of `text_config` in it.
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "olmoe": {"num_key_value_heads": 2},
    "flex_olmo": {"num_key_value_heads": 2},
    "deepseek": {"num_key_value_heads": 2, "moe_layer_freq": 1},
    "qwen2_moe": {"mlp_only_layers": [], "num_key_value_heads": 2},
    "qwen3_moe": {"decoder_sparse_step": 1, "tie_word_embeddings": False},
    "qwen3_next": {"mlp_only_layers": []},
    "qwen3_5_moe": {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}
            | {"partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
            | {"mrope_interleaved": True}
        }
    },
    # llama.cpp's gate of linear attention is the published one, whatever the configuration says.
    # So many heads that blocks of keys hardly ever tie at a score of 0.
    "qwen4_exp_text": {"output_gate_type": "sigmoid", "indexer_n_heads": 8}
    | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}
        | {"partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    },
    "qwen3_vl_moe": {
        # Wider, so that no cut leaves experts square; layers are all sparse.
        "text_config": {"mlp_only_layers": [], "hidden_size": 40}
        | {
            "rope_parameters": {**_DEFAULT_ROPE, "mrope_section": [6, 5, 5]}
            | {"mrope_interleaved": True}
        }
    },
    "qwen3_omni_moe": {
        "vision_config": {**THINKER["vision_config"], "apply_vit_abs_pos_embed": True},
        "text_config": {"mlp_only_layers": []}
        | {
            "rope_parameters": {**_DEFAULT_ROPE, "mrope_section": [6, 5, 5]}
            | {"mrope_interleaved": True}
        },
    },
    "dots1": {"num_key_value_heads": 2},
    "gpt_oss": {"swiglu_limit": 7.0},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    # llama.cpp takes the shared experts' width from the dense one, divided by key and value heads.
    "ernie4_5_moe": {"moe_layer_interval": 1, "intermediate_size": 2 * WIDTH},
    # MLX takes the size of the vocabulary from the whole, by default that of published models.
    "gemma4": {"vocab_size": VOCAB},
    "mellum": {"mlp_layer_types": ["sparse"] * 3}
    | {
        "rope_parameters": {"full_attention": _DEFAULT_ROPE, "sliding_attention": _DEFAULT_ROPE},
    },
    "afmoe": {"num_hidden_layers": 4, "global_attn_every_n_layers": 4}
    | {"layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    "laguna": {"mlp_layer_types": ["dense", "sparse", "sparse"], "layer_types": _WINDOWED}
    | {"num_attention_heads_per_layer": [2, 4, 4], "moe_router_logit_softcapping": 0.0},
    "mimo_v2_flash": {"routed_scaling_factor": 1.0},
    "hy_v3": {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"], **_MLA},
    "glm_moe_dsa": {"indexer_types": ["full"] * 3},
    # llama.cpp takes four streams only.
    "glm5_next": {"text_config": {"hc_mult": 4}},
    "glm4v_moe": {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}
            | {"partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}
        }
    },
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _MLA),
    "deepseek_v2": {
        **_MLA,
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1}
        | {"mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
    },
    # The hashed layers lead; compression of 4 and 128 tokens.
    "deepseek_v4": {"mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"]}
    | {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}},
    "bailing_hybrid": {"q_lora_rank": None, "num_shared_experts": 1},
    "nemotron_h": _NEMOTRON,
    # Prompts end within the blocks that a query sees, as those of published models do.
    "minimax_m3_vl": {
        "text_config": {"mlp_layer_types": ["dense", "sparse", "sparse"]}
        | {"layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]}
        | {"shared_intermediate_size": WIDTH, "index_block_size": 128, "index_topk_blocks": 16}
        | {"swiglu_limit": 7.0}
    },
    # Positions are scaled only beyond the original length, which no prompt reaches.
    "mistral3": {
        "text_config": {
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0}
            | {"original_max_position_embeddings": 8192, "llama_4_scaling_beta": 0.1}
            | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
        }
    },
}

# Model type, or case -> keys of published configurations that transformers 5 leaves out, or names
# otherwise.
KEYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "afmoe": {"route_norm": True, "score_func": "sigmoid", "n_group": 1, "topk_group": 1},
    "ernie4_5_moe": {"moe_use_aux_free": True},
    "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "deepseek_v4": {"num_hash_layers": 2, "compress_ratios": [0, 4, 128, 0]},
    "dots1": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "gpt_oss-mxfp4": {
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
        | {"original_max_position_embeddings": 4096, "truncate": False}
    },
    "deepseek_v32": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    # llama.cpp knows the published one by its layers and vocabulary, others by `scoring_func`.
    "glm4_moe_lite": {"topk_method": "noaux_tc", "first_k_dense_replace": 1}
    | {"scoring_func": "sigmoid"},
    "glm5_next": {
        "linear_attn_config": {"num_heads": 2, "head_dim": 8 * LARGER, "safe_gate": True}
        | {"short_conv_kernel_size": 2, "gate_lower_bound": -5.0}
    }
    | {"mla_use_nope": True, "mhc": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "exaone_moe": {"is_moe_layer": [False, True, True], "scoring_func": "sigmoid"},
    "solar_open": {"intermediate_size": 160, "first_k_dense_replace": 0}
    | {"partial_rotary_factor": 1.0},
    "qwen3_vl_moe": {"norm_topk_prob": True, "tie_word_embeddings": False},
    "hy_v3": {"first_k_dense_replace": 1, "expert_hidden_dim": WIDTH * LARGER}
    | {"route_norm": True, "qk_norm": True},
    # transformers 5 saves None.
    "mellum": {"num_nextn_predict_layers": 0},
    "qwen3_omni_moe": {"norm_topk_prob": True, "tie_word_embeddings": False},
    "kimi_linear": {"rope_theta": 10000.0, "mla_use_nope": True, "moe_layer_freq": 1}
    | {"first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid"}
    | {
        "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3], "num_heads": 2}
        | {"head_dim": 8 * LARGER, "short_conv_kernel_size": 2}
    },
    "minimax": {"shared_intermediate_size": 0, "rotary_dim": 16},
    "minimax_m2": {"scoring_func": "sigmoid", "use_routing_bias": True}
    | {"shared_intermediate_size": 0, "rotary_dim": 16, "use_qk_norm": True},
    "minimax_m3_vl": {"scoring_func": "sigmoid", "use_routing_bias": True, "n_shared_experts": 1}
    | {"moe_layer_freq": [0, 1, 1], "use_qk_norm": True}
    | {
        "sparse_attention_config": {"use_sparse_attention": True, "sparse_num_index_heads": 1}
        | {"sparse_index_dim": 8 * LARGER, "sparse_block_size": 128, "sparse_topk_blocks": 16}
        | {"sparse_local_block": 1, "sparse_init_block": 0, "sparse_attention_freq": [0, 1, 1]}
    },
    "hunyuan_v1_moe": {"moe_intermediate_size": [WIDTH * LARGER] * 2, "num_shared_expert": [1] * 2}
    | {"moe_topk": [2] * 2, "use_mixed_mlp_moe": True, "use_qk_norm": True},
    "glm4v_moe": {"use_qk_norm": False},
    "qwen3_next": {"full_attention_interval": 2},
    "qwen3_5_moe": {"full_attention_interval": 2},
    # transformers 5 renames the attention that indexes.
    "qwen4_exp_text": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]}
    | {"position_embedding_type": "nope"},
    "nemotron_h": {"hybrid_override_pattern": "ME*EM"},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": 64},
    "kimi_k25": {"architectures": ["KimiK25ForConditionalGeneration"], "topk_method": "noaux_tc"}
    | {"scoring_func": "sigmoid"},
    "kimi_k2": {"architectures": ["DeepseekV3ForCausalLM"], "topk_method": "noaux_tc"}
    | {"scoring_func": "sigmoid"},
    "bailing_hybrid": {"architectures": ["BailingMoeV3ForCausalLM"], "num_experts_per_tok": 3}
    | {"layer_group_size": 3, "no_kda_lora": True, "norm_topk_prob": True}
    | {"gated_attention_proj_granularity_type": "head_wise", "num_nextn_predict_layers": 0}
    | {"moe_shared_expert_intermediate_size": WIDTH * LARGER, "max_position_embeddings": 64}
    | {"q_lora_rank": None, "score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    "mimo_v2_flash": {"hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1]}
    | {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "layernorm_epsilon": 1e-5}
    | {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334}
    | {"rope_parameters": None}
    | {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "n_shared_experts": None}
    | {"swa_head_dim": 8 * LARGER, "swa_v_head_dim": 8 * LARGER}
    # Keys before the query's own: transformers counts that one too, here 4.
    | {"sliding_window": 3, "sliding_window_size": 3},
}
