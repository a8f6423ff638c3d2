"""Sizes of published models from config.json alone, against arXiv:2606.15716, Table 3 (GiB)."""

import json

import pytest

from pruning.outline import outline_model
from pruning.plan import PruningPlan, model_ref
from pruning.schedules import uniform
from pruning.sizes import size_report

GIB = 2**30

# Architectures as methods and the hub's config.json give them.
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


def mlp(hidden, width):
    """Weights of gate, up and down."""
    return 3 * hidden * width


# Weights of each model, added up by hand: embeddings and head, last norm, dense layers, then per
# sparse layer attention with its norms, the two norms around, experts with router, shared ones.
BY_HAND = {
    "olmoe": 2 * 50_304 * 2048 + 2048
    + 16 * (4 * 2048**2 + 2 * 2048 + 2 * 2048 + 64 * (mlp(2048, 1024) + 2048)),
    # MLA: queries of 128 + 64 for 16 heads, one latent of 512 with 64 rotary ones, its norm, keys
    # and values of 128 each from the latent, output.
    "deepseek_v2": 2 * 102_400 * 2048 + 2048
    + 27 * (2048 * 16 * 192 + 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048 + 2 * 2048)
    + mlp(2048, 10_944)
    + 26 * (64 * (mlp(2048, 1408) + 2048) + mlp(2048, 2 * 1408)),
    "ernie4_5_moe": 103_424 * 2560 + 2560
    + 28 * (2 * 2560 * 2560 + 2 * 2560 * 512 + 2 * 2560)
    + mlp(2560, 12_288)
    + 27 * (64 * (mlp(2560, 1536) + 2560 + 1) + mlp(2560, 2 * 1536)),  # + 1: correction bias
    "qwen3_moe": 2 * 151_936 * 2048 + 2048
    + 48 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 128 + 2 * 2048)
    + 48 * 128 * (mlp(2048, 768) + 2048),
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params", "before", "after", "layers"),
    [
        (OLMOE, 6.919e9, 12.89, 6.89, 16),
        (DEEPSEEK, 15.706e9, 29.27, 15.86, 26),
        (ERNIE, 21.825e9, 40.66, 21.67, 27),
        (QWEN3, 30.532e9, 56.92, 29.93, 48),
    ],
    ids=["OLMoE", "DeepSeek-V2-Lite", "ERNIE-4.5-21B", "Qwen3-30B"],
)
def test_sizes_of_published_models(tmp_path, config, params, before, after, layers):
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = outline_model(str(tmp_path))
    keep = uniform(model.layers, "50%").keep
    plan = PruningPlan(
        model_ref(model),
        {layer.index: tuple(range(n)) for layer, n in zip(model.layers, keep, strict=True)},
    )
    report = size_report(model, plan)
    assert report.params_before == BY_HAND[config["model_type"]]
    assert report.params_before == pytest.approx(params, rel=1e-4)
    # The paper measured loaded memory, which is a little more than the weights.
    for size, published in zip(report.loaded("bfloat16"), (before, after), strict=True):
        assert size / GIB == pytest.approx(published, rel=2.5e-3)
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    each = 2 * mlp(config["hidden_size"], width)  # a multiplication and an addition per weight
    assert report.expert_flops == layers * model.layers[0].top_k * each
