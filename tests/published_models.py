"""Architectures of published models, as the papers and their config.json give them."""

import json
from pathlib import Path
from typing import Any

from pruning.outline import outline_model

OLMOE = {
    "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
    "vocab_size": 50_304, "num_experts": 64, "num_experts_per_tok": 8,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10_944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "vocab_size": 102_400, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
ERNIE = {
    "model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12_288,
    "moe_intermediate_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 20,
    "num_key_value_heads": 4, "vocab_size": 103_424, "moe_num_experts": 64, "moe_k": 6,
    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 27,
    "moe_layer_interval": 1, "use_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151_936, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip

DEEPSEEK_R1 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18_432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "vocab_size": 129_280, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}  # fmt: skip
GLM_AIR = {
    "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10_944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 46, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_552, "n_routed_experts": 128,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "attention_bias": True, "use_qk_norm": False, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 201_088, "num_local_experts": 32, "num_experts_per_tok": 4,
    "attention_bias": True, "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
        ],
    },
}  # fmt: skip


def hollow_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """Write a checkpoint with real headers and a hole for each weight: it takes no disk."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (shard,) = outline_model(str(folder)).checkpoint.shards
    header = {
        entry.name: {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": [entry.start, entry.end],
        }
        for entry in shard.tensors
    }
    packed = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    packed += b" " * (-len(packed) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(packed).to_bytes(8, "little") + packed)
        file.truncate(8 + len(packed) + shard.tensors[-1].end)
