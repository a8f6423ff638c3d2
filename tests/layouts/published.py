"""Released MoE checkpoints: the sizes in their config.json, and what their cards and indexes say.

Only keys that decide names and shapes of tensors are given. The figures are the publishers', typed
by hand: parameters as the card rounds them; bytes and numbers of tensors where the
published index (`metadata.total_size`, `weight_map`) or the dtypes' counts on the hub are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layout:
    """A released checkpoint."""

    name: str  # as on the hub
    total: str  # parameters as the card or the hub rounds them, with prediction heads or without
    active: str  # the same per token; empty where the card does not say
    sparse: Sequence[int]  # decoder indices of the layers with experts
    experts: int  # routed experts of each
    top_k: int
    config: dict[str, Any] = field(hash=False)
    shared: int = 0  # shared experts of a layer, as the configuration counts them
    groups: int = 1
    # Prediction heads: "beyond" the depth, under "mtp", or only "counted" by config.json.
    heads: str = ""
    stored: str = ""  # quantisation
    nbytes: int | None = None  # of all tensors
    tensors: int | None = None  # number of them
    # Layouts whose hub files hold experts stacked, while transformers saves one tensor an expert.
    fused: bool = False
    built_as: str = ""  # type whose class has these tensors, where transformers lacks the own
    auto_class: str = "AutoModelForCausalLM"

    def __str__(self) -> str:
        return self.name.partition("/")[2]

    @property
    def text(self) -> dict[str, Any]:
        """The text model's part of the configuration."""
        part = self.config
        for key in ("thinker_config", "text_config"):
            part = part.get(key, part)
        return part


def every(depth: int, step: int, last: str, other: str) -> list[str]:
    """Kinds of layers: every step-th is `last`."""
    return [last if (layer + 1) % step == 0 else other for layer in range(depth)]


def _kinds(depth: int, at: Sequence[int], there: str, other: str) -> list[str]:
    return [there if layer in at else other for layer in range(depth)]


def sized(
    hidden: int, layers: int, heads: tuple[int, int], vocab: int, **more: Any
) -> dict[str, Any]:
    """Keys that nearly all have; `heads` are those of queries and of keys and values."""
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "vocab_size": vocab, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def _mixtral(*sizes: Any, inner: int, **more: Any) -> dict[str, Any]:
    local = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": inner}
    return {"model_type": "mixtral", **local, **sized(*sizes), **more}


def qwen(kind: str, *sizes: Any, experts: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    """`experts` are their number, those of a token, and their width."""
    count, top_k, width = experts
    own = {"num_experts": count, "num_experts_per_tok": top_k, "moe_intermediate_size": width}
    return {"model_type": kind, **own, **sized(*sizes), **more}


_LINEAR = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "full_attention_interval": 4, "head_dim": 256,
}  # fmt: skip
QWEN_VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
}  # fmt: skip


def _qwen3_5(hidden: int, layers: int, heads: int, values: int, experts: Any) -> dict[str, Any]:
    text = qwen(
        "qwen3_5_moe_text", hidden, layers, (heads, 2), 248_320, experts=experts, **_LINEAR,
        shared_expert_intermediate_size=experts[2], linear_num_value_heads=values,
        layer_types=every(layers, 4, "full_attention", "linear_attention"),
        mtp_num_hidden_layers=1,
    )  # fmt: skip
    vision = {**QWEN_VISION, "model_type": "qwen3_5_moe", "out_hidden_size": hidden}
    vision |= {"deepstack_visual_indexes": []}
    own = {"model_type": "qwen3_5_moe", "tie_word_embeddings": False}
    return {**own, "text_config": text, "vision_config": vision}


def _mla(rank: int | None, nope: int = 128, values: int = 128) -> dict[str, Any]:
    """Multi-head latent attention."""
    return {
        "kv_lora_rank": 512, "q_lora_rank": rank, "qk_rope_head_dim": 64, "qk_nope_head_dim": nope,
        "v_head_dim": values,
    }  # fmt: skip


def deepseek(
    kind: str, *sizes: Any, experts: tuple[int, int, int], inner: int, shared: int, **more: Any
) -> dict[str, Any]:
    count, top_k, width = experts
    return {
        "model_type": kind, "n_routed_experts": count, "num_experts_per_tok": top_k,
        "moe_intermediate_size": width, "intermediate_size": inner, "n_shared_experts": shared,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, **sized(*sizes), **more,
    }  # fmt: skip


_V3 = {"first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1}
_V3_SIZES = (7168, 61, (128, 128), 129_280)
_MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
_GRANITE_MAMBA = {
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "layer_types": _kinds(40, (5, 15, 25, 35), "attention", "mamba"),
    "tie_word_embeddings": True,
}  # fmt: skip
_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_JAMBA = {
    "model_type": "jamba", "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
    "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4, **_MAMBA,
}  # fmt: skip
_LFM_ATTENTION = (2, 6, 10, 14, 18, 21)


def _granite(count: int, top_k: int, width: int, *sizes: Any, **more: Any) -> dict[str, Any]:
    own = {"num_local_experts": count, "num_experts_per_tok": top_k, "intermediate_size": width}
    return {**own, **sized(*sizes), **more}


def _ernie(count: int, top_k: int, width: int, *sizes: Any, **more: Any) -> dict[str, Any]:
    own = {"moe_num_experts": count, "moe_k": top_k, "moe_intermediate_size": width}
    kind = {"model_type": "ernie4_5_moe", "moe_layer_interval": 1, "use_bias": False}
    return {**kind, **own, **sized(*sizes), **more}


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return {
        "model_type": "gpt_oss", "num_local_experts": experts, "num_experts_per_tok": 4,
        "intermediate_size": 2880, "head_dim": 64, **sized(2880, layers, (64, 8), 201_088),
    }  # fmt: skip


_LAYOUTS = (
    Layout(
        "mistralai/Mixtral-8x7B-v0.1", "46.7B", "12.9B", range(32), 8, 2,
        _mixtral(4096, 32, (32, 8), 32_000, inner=14_336),
        nbytes=93_405_585_408, tensors=995,
    ),
    Layout(
        "mistralai/Mixtral-8x22B-v0.1", "141B", "39B", range(56), 8, 2,
        _mixtral(6144, 56, (48, 8), 32_000, inner=16_384),
        nbytes=281_241_268_224,
    ),
    Layout(
        "allenai/OLMoE-1B-7B-0924", "6.9B", "1.3B", range(16), 64, 8,
        {"model_type": "olmoe", "intermediate_size": 1024, "num_experts": 64,
         "num_experts_per_tok": 8, **sized(2048, 16, (16, 16), 50_304)},
        nbytes=13_838_323_712,
    ),
    Layout(
        "allenai/FlexOlmo-7x7B-1T", "33B", "", range(32), 7, 5,
        {"model_type": "flex_olmo", "intermediate_size": 11_008, "num_experts": 7,
         "num_experts_per_tok": 5, **sized(4096, 32, (32, 32), 100_352)},
    ),
    Layout(
        "Qwen/Qwen1.5-MoE-A2.7B", "14.3B", "2.7B", range(24), 60, 4,
        qwen("qwen2_moe", 2048, 24, (16, 16), 151_936, experts=(60, 4, 1408),
              intermediate_size=5632, shared_expert_intermediate_size=5632, decoder_sparse_step=1),
        shared=1, nbytes=28_631_568_384, tensors=4659,
    ),
    Layout(
        "Qwen/Qwen2-57B-A14B", "57B", "14B", range(28), 64, 8,
        qwen("qwen2_moe", 3584, 28, (28, 4), 151_936, experts=(64, 8, 2560),
              intermediate_size=18_944, shared_expert_intermediate_size=20_480,
              decoder_sparse_step=1),
        shared=1,
    ),
    Layout(
        "Qwen/Qwen3-30B-A3B", "30.5B", "3.3B", range(48), 128, 8,
        qwen("qwen3_moe", 2048, 48, (32, 4), 151_936, experts=(128, 8, 768),
              intermediate_size=6144, head_dim=128, decoder_sparse_step=1, mlp_only_layers=[]),
        nbytes=61_064_245_248,
    ),
    Layout(
        "Qwen/Qwen3-235B-A22B", "235B", "22B", range(94), 128, 8,
        qwen("qwen3_moe", 4096, 94, (64, 4), 151_936, experts=(128, 8, 1536),
              intermediate_size=12_288, head_dim=128, decoder_sparse_step=1, mlp_only_layers=[]),
        nbytes=470_187_269_120, tensors=36_945,
    ),
    Layout(
        "Qwen/Qwen3-Coder-480B-A35B-Instruct", "480B", "35B", range(62), 160, 8,
        qwen("qwen3_moe", 6144, 62, (96, 8), 151_936, experts=(160, 8, 2560),
              intermediate_size=8192, head_dim=128, decoder_sparse_step=1, mlp_only_layers=[]),
    ),
    Layout(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "80B", "3B", range(48), 512, 10,
        qwen("qwen3_next", 2048, 48, (16, 2), 151_936, experts=(512, 10, 512), **_LINEAR,
              intermediate_size=5120, shared_expert_intermediate_size=512, decoder_sparse_step=1,
              mlp_only_layers=[], linear_num_value_heads=32),
        shared=1, heads="mtp",
    ),
    Layout(
        "Qwen/Qwen3.5-35B-A3B", "35B", "3B", range(40), 256, 8,
        _qwen3_5(2048, 40, 16, 32, (256, 8, 512)),
        shared=1, heads="mtp", fused=True, auto_class="AutoModelForImageTextToText",
    ),
    Layout(
        "Qwen/Qwen3.5-122B-A10B", "122B", "10B", range(48), 256, 8,
        _qwen3_5(3072, 48, 32, 64, (256, 8, 1024)),
        shared=1, heads="mtp", fused=True, auto_class="AutoModelForImageTextToText",
    ),
    Layout(
        "Qwen/Qwen3.5-397B-A17B", "397B", "17B", range(60), 512, 10,
        _qwen3_5(4096, 60, 32, 64, (512, 10, 1024)),
        shared=1, heads="mtp", fused=True, auto_class="AutoModelForImageTextToText",
    ),
    Layout(
        "deepseek-ai/deepseek-moe-16b-base", "16.4B", "2.8B", range(1, 28), 64, 6,
        deepseek("deepseek", 2048, 28, (16, 16), 102_400, experts=(64, 6, 1408), inner=10_944,
                  shared=2, moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax"),
        shared=2,
    ),
    Layout(
        "deepseek-ai/DeepSeek-V2", "236B", "21B", range(1, 60), 160, 6,
        deepseek("deepseek_v2", 5120, 60, (128, 128), 102_400, experts=(160, 6, 1536),
                  inner=12_288, shared=2, **_mla(1536), topk_method="group_limited_greedy")
        | {"n_group": 8, "topk_group": 3},
        shared=2, groups=8,
    ),
    Layout(
        "deepseek-ai/DeepSeek-V2-Lite", "15.7B", "2.4B", range(1, 27), 64, 6,
        deepseek("deepseek_v2", 2048, 27, (16, 16), 102_400, experts=(64, 6, 1408), inner=10_944,
                  shared=2, **_mla(None), topk_method="greedy"),
        shared=2, nbytes=31_412_968_448,
    ),
    Layout(
        "moonshotai/Moonlight-16B-A3B", "16B", "3B", range(1, 27), 64, 6,
        deepseek("deepseek_v3", 2048, 27, (16, 16), 163_840, experts=(64, 6, 1408), inner=11_264,
                  shared=2, **_mla(None), num_nextn_predict_layers=0),
        shared=2,
    ),
    Layout(
        "deepseek-ai/DeepSeek-V3", "671B", "37B", range(3, 61), 256, 8,
        deepseek("deepseek_v3", *_V3_SIZES, experts=(256, 8, 2048), inner=18_432, shared=1,
                  **_mla(1536)) | _V3,
        shared=1, groups=8, heads="beyond", stored="fp8", nbytes=688_574_839_360,
    ),
    Layout(
        "deepseek-ai/DeepSeek-V3.2", "671B", "37B", range(3, 61), 256, 8,
        deepseek("deepseek_v32", *_V3_SIZES, experts=(256, 8, 2048), inner=18_432, shared=1,
                  **_mla(1536), index_head_dim=128, index_n_heads=64, index_topk=2048) | _V3,
        shared=1, groups=8, heads="beyond", stored="fp8",
    ),
    Layout(
        "moonshotai/Kimi-K2-Instruct", "1T", "32B", range(1, 61), 384, 8,
        deepseek("kimi_k2", 7168, 61, (64, 64), 163_840, experts=(384, 8, 2048), inner=18_432,
                  shared=1, **_mla(1536), num_nextn_predict_layers=0),
        shared=1, stored="fp8", built_as="deepseek_v3",
    ),
    Layout(
        "moonshotai/Kimi-K2-Thinking", "1T", "32B", range(1, 61), 384, 8,
        deepseek("kimi_k2", 7168, 61, (64, 64), 163_840, experts=(384, 8, 2048), inner=18_432,
                  shared=1, **_mla(1536), num_nextn_predict_layers=0),
        shared=1, stored="int4", built_as="deepseek_v3",
    ),
    Layout(
        "zai-org/GLM-4.5", "355B", "32B", range(3, 92), 160, 8,
        deepseek("glm4_moe", 5120, 92, (96, 8), 151_552, experts=(160, 8, 1536), inner=12_288,
                  shared=1, head_dim=128, use_qk_norm=True, attention_bias=True,
                  num_nextn_predict_layers=1) | {"first_k_dense_replace": 3},
        shared=1, heads="beyond",
    ),
    Layout(
        "zai-org/GLM-4.5-Air", "106B", "12B", range(1, 46), 128, 8,
        deepseek("glm4_moe", 4096, 46, (96, 8), 151_552, experts=(128, 8, 1408), inner=10_944,
                  shared=1, head_dim=128, use_qk_norm=False, attention_bias=True,
                  num_nextn_predict_layers=1),
        shared=1, heads="beyond",
    ),
    Layout(  # pruned by its publisher: the heads went, and config.json counts them still
        "cerebras/GLM-4.5-Air-REAP-82B-A12B", "82B", "12B", range(1, 46), 96, 8,
        deepseek("glm4_moe", 4096, 46, (96, 8), 151_552, experts=(96, 8, 1408), inner=10_944,
                  shared=1, head_dim=128, use_qk_norm=False, attention_bias=True,
                  num_nextn_predict_layers=1),
        shared=1, heads="counted",
    ),
    Layout(
        "zai-org/GLM-4.7-Flash", "30B", "3B", range(1, 47), 64, 4,
        deepseek("glm4_moe_lite", 2048, 47, (20, 20), 154_880, experts=(64, 4, 1536),
                  inner=10_240, shared=1, **_mla(768, 192, 256), num_nextn_predict_layers=1),
        shared=1, heads="beyond",
    ),
    Layout(
        "zai-org/GLM-5", "744B", "40B", range(3, 78), 256, 8,
        deepseek("glm_moe_dsa", 6144, 78, (64, 64), 154_880, experts=(256, 8, 2048),
                  inner=12_288, shared=1, **_mla(2048, 192, 256), index_head_dim=128,
                  index_n_heads=32, index_topk=2048, num_nextn_predict_layers=1)
        | {"first_k_dense_replace": 3},
        shared=1, heads="beyond",
    ),
    Layout(
        "openai/gpt-oss-20b", "20.9B", "3.6B", range(24), 32, 4, _gpt_oss(24, 32),
        stored="mxfp4", nbytes=13_761_264_768, tensors=459,
    ),
    Layout(
        "openai/gpt-oss-120b", "116.8B", "5.1B", range(36), 128, 4, _gpt_oss(36, 128),
        stored="mxfp4", nbytes=65_248_815_744,
    ),
    Layout(
        "ibm-granite/granite-3.1-1b-a400m-base", "1.3B", "400M", range(24), 32, 8,
        _granite(32, 8, 512, 1024, 24, (16, 8), 49_155, model_type="granitemoe",
                 tie_word_embeddings=True),
    ),
    Layout(
        "ibm-granite/granite-3.1-3b-a800m-base", "3.3B", "800M", range(32), 40, 8,
        _granite(40, 8, 512, 1536, 32, (24, 8), 49_155, model_type="granitemoe",
                 tie_word_embeddings=True),
    ),
    Layout(
        "ibm-granite/granite-4.0-h-tiny", "7B", "1B", range(40), 64, 6,
        _granite(64, 6, 512, 1536, 40, (12, 4), 100_352, model_type="granitemoehybrid",
                 shared_intermediate_size=1024, mamba_n_heads=48) | _GRANITE_MAMBA,
        shared=1,
    ),
    Layout(
        "ibm-granite/granite-4.0-h-small", "32B", "9B", range(40), 72, 10,
        _granite(72, 10, 768, 4096, 40, (32, 8), 100_352, model_type="granitemoehybrid",
                 shared_intermediate_size=1536, mamba_n_heads=128) | _GRANITE_MAMBA,
        shared=1,
    ),
    Layout(
        "baidu/ERNIE-4.5-21B-A3B-PT", "21.8B", "3B", range(1, 28), 64, 6,
        _ernie(64, 6, 1536, 2560, 28, (20, 4), 103_424, intermediate_size=12_288,
               moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=27)
        | {"tie_word_embeddings": True},
        shared=2,
    ),
    Layout(
        "baidu/ERNIE-4.5-300B-A47B-PT", "300B", "47B", range(3, 54), 64, 8,
        _ernie(64, 8, 3584, 8192, 54, (64, 8), 103_424, intermediate_size=28_672,
               moe_num_shared_experts=0, moe_layer_start_index=3, moe_layer_end_index=53),
    ),
    Layout(
        "tencent/Hunyuan-A13B-Instruct", "80B", "13B", range(32), 64, 8,
        {"model_type": "hunyuan_v1_moe", "intermediate_size": 3072, "head_dim": 128,
         "num_experts": 64, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32,
         "moe_intermediate_size": [3072] * 32, **sized(4096, 32, (32, 8), 128_167),
         "tie_word_embeddings": True},
        shared=1,
    ),
    Layout(
        "ai21labs/AI21-Jamba-1.5-Mini", "52B", "12B", range(1, 32, 2), 16, 2,
        {**_JAMBA, **sized(4096, 32, (32, 8), 65_536), "intermediate_size": 14_336,
         "mamba_dt_rank": 256},
        nbytes=103_140_646_656,
    ),
    Layout(
        "ai21labs/AI21-Jamba-1.5-Large", "398B", "94B", range(1, 72, 2), 16, 2,
        {**_JAMBA, **sized(8192, 72, (64, 8), 65_536), "intermediate_size": 24_576,
         "mamba_dt_rank": 512},
    ),
    Layout(
        "LiquidAI/LFM2-8B-A1B", "8.3B", "1.5B", range(2, 24), 32, 4,
        {"model_type": "lfm2_moe", "intermediate_size": 7168, "moe_intermediate_size": 1792,
         "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2, "conv_L_cache": 3,
         "use_expert_bias": True, **sized(2048, 24, (32, 8), 65_536), "tie_word_embeddings": True,
         "layer_types": _kinds(24, _LFM_ATTENTION, "full_attention", "conv")},
    ),
    Layout(
        "MiniMaxAI/MiniMax-M2", "230B", "10B", range(62), 256, 8,
        {"model_type": "minimax_m2", "num_local_experts": 256, "num_experts_per_tok": 8,
         "intermediate_size": 1536, "head_dim": 128, **sized(3072, 62, (48, 8), 200_064)},
        stored="fp8",
    ),
    Layout(
        "microsoft/Phi-3.5-MoE-instruct", "41.9B", "6.6B", range(32), 16, 2,
        {"model_type": "phimoe", "num_local_experts": 16, "num_experts_per_tok": 2,
         "intermediate_size": 6400, "attention_bias": True, "lm_head_bias": True,
         **sized(4096, 32, (32, 8), 32_064)},
    ),
    Layout(
        "rednote-hilab/dots.llm1.base", "142B", "14B", range(1, 62), 128, 6,
        deepseek("dots1", 4096, 62, (32, 32), 152_064, experts=(128, 6, 1408), inner=10_944,
                  shared=2),
        shared=2,
    ),
    Layout(
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "31.6B", "3.6B",
        [layer for layer, kind in enumerate(_NANO) if kind == "E"], 128, 6,
        {"model_type": "nemotron_h", "intermediate_size": 1856, "moe_intermediate_size": 1856,
         "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128,
         "n_shared_experts": 1, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1,
         "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
         "conv_kernel": 4, "expand": 2, "head_dim": 128, "hybrid_override_pattern": _NANO,
         **sized(2688, 52, (32, 2), 131_072)},
        shared=1,
    ),
    Layout(
        "LGAI-EXAONE/K-EXAONE-236B-A23B", "236B", "23B", range(1, 48), 128, 8,
        {"model_type": "exaone_moe", "num_experts": 128, "num_experts_per_tok": 8,
         "num_shared_experts": 1, "moe_intermediate_size": 2048, "intermediate_size": 18_432,
         "first_k_dense_replace": 1, "head_dim": 128, "n_group": 1, "topk_group": 1,
         "mlp_layer_types": ["dense", *["sparse"] * 47],
         "layer_types": every(48, 4, "full_attention", "sliding_attention"),
         **sized(6144, 48, (64, 8), 153_600)},
        shared=1,
    ),
    Layout(
        "upstage/Solar-Open-100B", "102.6B", "12B", range(48), 128, 8,
        deepseek("solar_open", 4096, 48, (64, 8), 196_608, experts=(128, 8, 1280), inner=10_240,
                  shared=1, head_dim=128) | {"first_k_dense_replace": 0},
        shared=1,
    ),
    Layout(
        "arcee-ai/Trinity-Mini", "26B", "3B", range(2, 32), 128, 8,
        {"model_type": "afmoe", "num_experts": 128, "num_experts_per_tok": 8,
         "num_shared_experts": 1, "num_dense_layers": 2, "moe_intermediate_size": 1024,
         "intermediate_size": 6144, "head_dim": 128, "n_group": 1, "topk_group": 1,
         "global_attn_every_n_layers": 4,
         "layer_types": every(32, 4, "full_attention", "sliding_attention"),
         **sized(2048, 32, (32, 4), 200_192)},
        shared=1,
    ),
    Layout(
        "tencent/Hy3", "295B", "21B", range(1, 80), 192, 8,
        {"model_type": "hy_v3", "num_experts": 192, "num_experts_per_tok": 8,
         "num_shared_experts": 1, "moe_intermediate_size": 1536, "intermediate_size": 13_312,
         "head_dim": 128, "first_k_dense_replace": 1, **sized(4096, 80, (64, 8), 120_832)},
        shared=1,
    ),
    Layout(
        "poolside/Laguna-XS.2", "33B", "3B", range(1, 40), 256, 8,
        {"model_type": "laguna", "num_experts": 256, "num_experts_per_tok": 8,
         "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
         "intermediate_size": 8192, "head_dim": 128, "gating": True,
         "mlp_layer_types": ["dense", *["sparse"] * 39], **sized(2048, 40, (48, 8), 100_352)},
        shared=1,
    ),
    Layout(
        "moonshotai/Kimi-Linear-48B-A3B-Instruct", "49B", "3B", range(1, 27), 256, 8,
        {"model_type": "kimi_linear", "num_experts": 256, "num_experts_per_token": 8,
         "num_shared_experts": 1, "moe_intermediate_size": 1024, "intermediate_size": 9216,
         "first_k_dense_replace": 1, "num_expert_group": 1, "topk_group": 1, **_mla(None),
         "linear_attn_config": {
             "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
             "kda_layers": [n for n in range(1, 28) if n % 4 and n != 27],
             "short_conv_kernel_size": 4},
         **sized(2304, 27, (32, 32), 163_840)},
        shared=1,
    ),
    Layout(
        "XiaomiMiMo/MiMo-V2-Flash", "309B", "15B", range(1, 48), 256, 8,
        {"model_type": "mimo_v2_flash", "n_routed_experts": 256, "num_experts_per_tok": 8,
         "moe_intermediate_size": 2048, "intermediate_size": 16_384, "head_dim": 192,
         "v_head_dim": 128, "n_group": 1, "topk_group": 1, **sized(4096, 48, (64, 4), 152_576)},
    ),
    Layout(
        "deepseek-ai/DeepSeek-V4-Flash", "284B", "13B", range(43), 256, 6,
        {"model_type": "deepseek_v4", "n_routed_experts": 256, "num_experts_per_tok": 6,
         "n_shared_experts": 1, "moe_intermediate_size": 2048, "head_dim": 512,
         "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
         "index_head_dim": 128, "index_topk": 512, "hc_mult": 4,
         **sized(4096, 43, (64, 1), 129_280)},
        shared=1,
    ),
)  # fmt: skip
LAYOUTS = {str(layout): layout for layout in _LAYOUTS}
