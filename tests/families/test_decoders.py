"""Tensors that are counted by a table against those that transformers builds and would save."""

import json

import pytest

from analysis.calibration.built import built_tensors
from analysis.checkpoint.index import Checkpoint
from analysis.families.decoders import DECODERS, decoder_tensors
from analysis.families.listing import family_of
from analysis.model.moe_model import MoEModel

COMMON = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 40}
COMMON |= {"num_experts_per_tok": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
COMMON |= {"architectures": ["X"], "rope_theta": 10000.0, "torch_dtype": "float16"}
OLMOE = {"num_experts": 6, "intermediate_size": 20}
QWEN = {"num_experts": 6, "moe_intermediate_size": 20, "intermediate_size": 28}
DEEPSEEK = {"n_routed_experts": 6, "moe_intermediate_size": 20, "intermediate_size": 28}
DEEPSEEK |= {"n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT = {**DEEPSEEK, "num_key_value_heads": 4, "kv_lora_rank": 10, "qk_rope_head_dim": 6}
LATENT |= {"qk_nope_head_dim": 5, "v_head_dim": 7, "q_lora_rank": 9}
WHOLE = {"q_lora_rank": None, "moe_layer_freq": 1}
LOCAL = {"num_local_experts": 5, "intermediate_size": 20}
ERNIE = {"moe_num_experts": 6, "moe_k": 2, "moe_num_shared_experts": 2, "moe_intermediate_size": 20}
CONFIGS = {
    "mixtral": [LOCAL, LOCAL | {"head_dim": 8, "tie_word_embeddings": True}],
    "olmoe": [OLMOE, OLMOE | {"num_key_value_heads": 4, "attention_bias": False}],
    "qwen2_moe": [
        QWEN | {"shared_expert_intermediate_size": 12},
        QWEN | {"shared_expert_intermediate_size": 12, "mlp_only_layers": [1], "qkv_bias": True},
    ],
    "qwen3_moe": [QWEN | {"head_dim": 8}, QWEN | {"head_dim": 8, "decoder_sparse_step": 2}],
    "glm4_moe": [
        DEEPSEEK | {"head_dim": 8},
        DEEPSEEK | {"head_dim": 8, "attention_bias": True, "use_qk_norm": True},
    ],
    "minimax_m2": [LOCAL | {"head_dim": 8}],
    "dots1": [DEEPSEEK],
    "ernie4_5_moe": [
        ERNIE | {"intermediate_size": 28},
        ERNIE | {"intermediate_size": 28, "moe_layer_end_index": 1, "tie_word_embeddings": True},
    ],
    "deepseek_v2": [LATENT, LATENT | WHOLE],
    "deepseek_v3": [LATENT, LATENT | WHOLE],
    "kimi_k2": [LATENT, LATENT | WHOLE],
}


def bare(folder, model_type, config):
    """A model without tensors."""
    full = {"model_type": model_type, **COMMON, **config}
    if "moe_k" in full:
        del full["num_experts_per_tok"]
    (folder / "config.json").write_text(json.dumps(full))
    family = family_of(full)
    return MoEModel("m", Checkpoint(folder, full, ()), family, family.layers(full))


def test_every_decoder_of_the_table_is_compared():
    assert CONFIGS.keys() == DECODERS.keys()


@pytest.mark.parametrize(
    ("model_type", "config"), [(kind, config) for kind, all_ in CONFIGS.items() for config in all_]
)
def test_the_table_names_what_transformers_saves(tmp_path, model_type, config):
    model = bare(tmp_path, model_type, config)
    counted = decoder_tensors(model.family, model.checkpoint.config, "F16")
    assert counted is not None
    assert counted == built_tensors(model, "float16")


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen3_moe", {"attention_bias": True}),
        ("qwen3_moe", {"head_dim": None}),
        ("qwen3_moe", {"tie_word_embeddings": None}),
        ("qwen3_moe", {"num_key_value_heads": None}),
        ("qwen3_moe", {"hidden_size": "wide"}),
        ("qwen3_moe", {"per_layer_num_experts": [6, 3, 6]}),
        ("qwen3_moe", {"new_size": 3}),
        ("ernie4_5_moe", {"use_bias": True}),
        ("deepseek_v3", {"moe_layer_freq": 2}),
        ("granitemoe", {}),
    ],
)
def test_what_the_table_does_not_decide_is_left_to_transformers(tmp_path, model_type, changes):
    config = CONFIGS.get(model_type, [LOCAL])[0]
    model = bare(tmp_path, model_type, config | changes)
    assert decoder_tensors(model.family, model.checkpoint.config, "BF16") is None


@pytest.mark.parametrize(
    ("model_type", "single"),
    [  # as in published headers
        ("deepseek_v3", {"gate.e_score_correction_bias"}),
        ("ernie4_5_moe", {"gate.weight", "moe_statics.e_score_correction_bias"}),
        ("qwen3_moe", set()),
    ],
)
def test_float32_is_what_is_published_and_not_what_transformers_computes_in(
    tmp_path, model_type, single
):
    model = bare(tmp_path, model_type, CONFIGS[model_type][0])
    built = built_tensors(model, "float16")
    assert {name.partition(".mlp.")[2] for name, (dtype, _) in built.items() if dtype == "F32"} == (
        single
    )
