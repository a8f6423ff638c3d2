"""Tiny random checkpoints that engines take, and the cuts of them that are compared.

The families are those of the conformance suite, in sizes for which engines have kernels, with the
keys that published configurations have and those saved by transformers 5 lack.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from exports import export
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from analysis.checkpoint import INDEX_NAME
from analysis.errors import UserError
from analysis.model import MoEModel, load_model_index
from families.configs import BY_NAME, HIDDEN, VOCAB, WIDTH, Case, tiny_model
from families.published import PUBLISHED, TURNED, as_published
from pruning.engine_results import CUTS
from pruning.neurons.widths import WidthChoice, WidthMode
from pruning.plan import NEURON_GRANULARITY, PruningPlan, model_ref

PROMPTS: Final = ((5, 9, 33, 21), (7, 40, 41, 12, 50, 3, 9))
TOKENS: Final = 32
_SPECIAL: Final = 3  # padding, beginning, end: never chosen, so that nothing ends early
# Sizes of the conformance suite times this suit the kernels of engines: heads of 32, rows of 64.
_LARGER: Final = 4
_SIZES: Final = (
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim"),
    *("shared_expert_intermediate_size", "shared_intermediate_size", "moe_latent_size"),
    *("moe_shared_expert_intermediate_size", "mamba_head_dim", "mamba_dt_rank"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "global_head_dim", "index_head_dim"),
    *("rotary_dim", "dense_intermediate_size", "linear_head_dim"),
)
# What the conformance suite varies and published models of the family do not have.
_AS_PUBLISHED: Final[Mapping[str, Mapping[str, Any]]] = {
    "olmoe": {"num_key_value_heads": 2},
    "flex_olmo": {"num_key_value_heads": 2},
    "deepseek": {"num_key_value_heads": 2},
    "qwen2_moe": {"mlp_only_layers": [], "num_key_value_heads": 2},
    "qwen3_moe": {"decoder_sparse_step": 1, "tie_word_embeddings": False},
    "qwen3_next": {"mlp_only_layers": []},
    "dots1": {"num_key_value_heads": 2},
    "gpt_oss": {"swiglu_limit": 7.0},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "ernie4_5_moe": {"moe_layer_interval": 1},
    # MLX takes the size of the vocabulary from the whole, by default that of published models.
    "gemma4": {"vocab_size": VOCAB},
    "mellum": {"mlp_layer_types": ["sparse"] * 3},
    "afmoe": {"num_hidden_layers": 4, "global_attn_every_n_layers": 4}
    | {"layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    "laguna": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "mimo_v2_flash": {"routed_scaling_factor": 1.0},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "glm_moe_dsa": {"indexer_types": ["full"] * 3},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "deepseek_v2": {
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1}
        | {"mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}
    },
}
# Families whose published checkpoints hold the experts of a layer stacked.
_STACKED: Final = ("qwen3_5_moe", "qwen3_5_moe_text")
# Keys of published configurations that transformers 5 leaves out, or names in another way.
_KEYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "dots1": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "deepseek_v32": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    # llama.cpp knows the published one by its layers and vocabulary, others by `scoring_func`.
    "glm4_moe_lite": {"topk_method": "noaux_tc", "first_k_dense_replace": 1}
    | {"scoring_func": "sigmoid"},
    "exaone_moe": {"is_moe_layer": [False, True, True], "scoring_func": "sigmoid"},
    "solar_open": {"intermediate_size": 160, "first_k_dense_replace": 0}
    | {"partial_rotary_factor": 1.0},
    "qwen3_vl_moe": {"norm_topk_prob": True, "tie_word_embeddings": False},
    "kimi_linear": {"rope_theta": 10000.0, "mla_use_nope": True, "moe_layer_freq": 1}
    | {"first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid"}
    | {
        "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3], "num_heads": 2}
        | {"head_dim": 8 * _LARGER, "short_conv_kernel_size": 2}
    },
    "minimax": {"shared_intermediate_size": 0, "rotary_dim": 16},
    "minimax_m2": {"scoring_func": "sigmoid", "use_routing_bias": True}
    | {"shared_intermediate_size": 0, "rotary_dim": 16, "use_qk_norm": True},
    "qwen3_next": {"full_attention_interval": 2},
    "qwen3_5_moe": {"full_attention_interval": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "kimi_k2": {"architectures": ["DeepseekV3ForCausalLM"], "topk_method": "noaux_tc"}
    | {"scoring_func": "sigmoid"},
    "bailing_hybrid": {"architectures": ["BailingMoeV3ForCausalLM"], "num_experts_per_tok": 3}
    | {"layer_group_size": 3, "no_kda_lora": True, "norm_topk_prob": True}
    | {"gated_attention_proj_granularity_type": "head_wise", "num_nextn_predict_layers": 0}
    | {"moe_shared_expert_intermediate_size": WIDTH * _LARGER, "max_position_embeddings": 64},
    "mimo_v2_flash": {"hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1]}
    | {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    | {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "layernorm_epsilon": 1e-5}
    | {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334}
    | {"rope_parameters": None}
    | {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "n_shared_experts": None}
    | {"swa_head_dim": 8 * _LARGER, "swa_v_head_dim": 8 * _LARGER}
    # Keys before the query's own: transformers counts that one too, here 4.
    | {"sliding_window": 3, "sliding_window_size": 3},
}

# The demo is a tied OLMoE.
_TIED: Final = replace(
    BY_NAME["olmoe"],
    name="olmoe-tied",
    settings={**BY_NAME["olmoe"].settings, "tie_word_embeddings": True},
)
ENGINE_CASES: Final = {**BY_NAME, _TIED.name: _TIED}


def engine_case(name: str) -> Case:
    """A family of ENGINE_CASES in sizes that engines compute, as published models of it are."""
    case = ENGINE_CASES[name]
    settings = {**case.settings, **_AS_PUBLISHED.get(case.model_type, {})}
    defaults = {"hidden_size": HIDDEN} if "text_config" not in settings else {}
    larger = dict(_enlarged({**defaults, **settings}))
    if "text_config" in settings:
        larger["text_config"] = dict(_enlarged(settings["text_config"]))
        vision = dict(settings["vision_config"])
        if "out_hidden_size" in vision:
            vision["out_hidden_size"] = HIDDEN * _LARGER
        larger["vision_config"] = vision
    return replace(case, settings=MappingProxyType(larger))


def _enlarged(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        yield key, value * _LARGER if key in _SIZES and value else value


def save(case: Case, folder: Path) -> MoEModel:
    """The original: weights, a tokenizer that converters take, and the published keys."""
    model = tiny_model(case)
    with torch.no_grad():  # logits of 0 for special tokens, which are never the largest
        head = model.get_output_embeddings()
        head.weight[:_SPECIAL] = 0
        if head.bias is not None:
            head.bias[:_SPECIAL] = 0
    model.save_pretrained(folder, save_original_format=case.model_type not in _STACKED)
    if case.model_type in (*PUBLISHED, *TURNED):
        held: dict[str, torch.Tensor] = {}
        for shard in folder.glob("*.safetensors"):
            held |= as_published(case.model_type, load_file(shard))
            shard.unlink()
        (folder / INDEX_NAME).unlink(missing_ok=True)
        save_file(held, folder / "model.safetensors", {"format": "pt"})
    _tokenizer().save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    part, said = config, case.settings
    if case.composite:
        part, said = config["text_config"], said["text_config"]
    rope = part.get("rope_parameters") or {}
    missing = {**said, **({"rope_scaling": None} if "rope_theta" in rope else {})}
    missing |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    part |= {key: value for key, value in missing.items() if key not in part}
    keys = dict(published_keys(case))
    config["architectures"] = keys.pop("architectures", config["architectures"])
    part |= keys
    file.write_text(json.dumps(config, indent=2))
    return load_model_index(str(folder))


def published_keys(case: Case) -> Mapping[str, Any]:
    """What config.json holds besides what transformers 5 saves."""
    return _KEYS.get(case.model_type, {})


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE; llama.cpp's converter wants a merge."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"
    words = ["<pad>", "<s>", "</s>", *letters, "ab"]
    ids = {word: number for number, word in enumerate(words)}
    assert len(ids) == VOCAB
    tokenizer = Tokenizer(models.BPE(ids, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def plan_of(model: MoEModel, cut: str) -> PruningPlan:
    """What a cut keeps of a model: expert 0 always goes, so ids move up."""
    kept, neurons = {}, {}
    for place, layer in enumerate(model.layers):
        size = layer.num_experts // layer.num_groups
        keep = max(2, size // 2)
        if cut in ("experts per layer", "padded") and place % 2:
            keep = size - 1
        kept[layer.index] = tuple(
            group * size + each
            for group in range(layer.num_groups)
            for each in range(size - keep, size)
        )
        narrow = 2 * WIDTH + 16 * (place % 2)
        neurons[layer.index] = dict.fromkeys(range(layer.num_experts), tuple(range(8, 8 + narrow)))
    if "neurons" in cut:
        return PruningPlan(
            model_ref(model), {}, granularity=NEURON_GRANULARITY, kept_neurons=neurons
        )
    return PruningPlan(model_ref(model), kept)


def write_cuts(
    original: MoEModel, folder: Path, cuts: Collection[str] = CUTS
) -> dict[str, Path | str]:
    """Cut -> the folder of its export, or why this program refuses to write it."""
    written: dict[str, Path | str] = {"original": original.checkpoint.path}
    for cut in CUTS[1:]:
        options: dict[str, Any] = {"pad": cut == "padded"}
        if cut not in cuts or (cut == "padded" and not original.family.can_exclude):
            continue
        if "neurons" in cut:
            mode = WidthMode.PER_LAYER if "per layer" in cut else WidthMode.UNIFORM
            options["widths"] = WidthChoice(mode)
        try:
            export(original, plan_of(original, cut), folder / cut, **options)
        except UserError as error:
            written[cut] = str(error)
        else:
            written[cut] = folder / cut
    return written
