"""Tensors of common decoders from a configuration alone, without transformers, which takes seconds.

A table says how a decoder is built besides its experts, which its family knows. Nothing is guessed:
where config.json leaves out a key that decides a shape, or has one that is not known here,
transformers is asked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.checkpoint.index import Config
from analysis.families.base import MoEFamily

Shape = tuple[int, ...]
# Keys that decide no shape of these decoders.
_WITHOUT_SHAPE = """
    architectures attention_dropout auto_map aux_loss_alpha bos_token_id clip_qkv dtype ep_size
    eos_token_id hidden_act initializer_range max_position_embeddings max_window_layers model_type
    n_group norm_topk_prob num_nextn_predict_layers output_router_logits pad_token_id
    partial_rotary_factor quantization_config rms_norm_eps rope_parameters rope_scaling rope_theta
    routed_scaling_factor router_aux_loss_coef router_jitter_noise scoring_func seq_aux
    sliding_window topk_group topk_method torch_dtype transformers_version use_cache
    use_sliding_window
"""
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a decoder is built besides its experts."""

    attention: Callable[[Config], Iterator[tuple[str, Shape]]]  # names inside `self_attn`
    sizes: tuple[str, ...]  # keys of sizes that `attention` and dense layers read; must be given
    others: frozenset[str] = frozenset()  # more keys, which may be left out
    fixed: Mapping[str, Any] = field(default_factory=dict)  # key -> the only value, and the default
    shared: str = ""  # name of the shared experts inside the block
    gates_shared: bool = False  # whether their output has a gate


def _grouped(
    biased: str = "", *, norms: str = "", bias_key: str = "", norm_key: str = ""
) -> Callable[[Config], Iterator[tuple[str, Shape]]]:
    """Attention with key and value heads; `biased` of q, k, v, o have biases.

    Queries and keys have `norms` of each "head" or of "all"; keys can switch off both.
    """

    def tensors(config: Config) -> Iterator[tuple[str, Shape]]:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        width = config.get("head_dim") or hidden // heads
        rows_of = {"q": heads * width, "k": config["num_key_value_heads"] * width}
        shapes = {name: (rows, hidden) for name, rows in (*rows_of.items(), ("v", rows_of["k"]))}
        for name, shape in {**shapes, "o": (hidden, rows_of["q"])}.items():
            yield f"{name}_proj.weight", shape
            if name in biased and (not bias_key or config.get(bias_key)):
                yield f"{name}_proj.bias", shape[:1]
        if norms and (not norm_key or config.get(norm_key)):
            for name, rows in rows_of.items():
                yield f"{name}_norm.weight", (width if norms == "head" else rows,)

    return tensors


def _latent(config: Config) -> Iterator[tuple[str, Shape]]:
    """Multi-head latent attention."""
    hidden, heads, rank = (
        config[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank")
    )
    nope, rope, value = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    queries = heads * (nope + rope)
    if inner := config.get("q_lora_rank"):
        yield "q_a_proj.weight", (inner, hidden)
        yield "q_a_layernorm.weight", (inner,)
        yield "q_b_proj.weight", (queries, inner)
    else:
        yield "q_proj.weight", (queries, hidden)
    yield "kv_a_proj_with_mqa.weight", (rank + rope, hidden)
    yield "kv_a_layernorm.weight", (rank,)
    yield "kv_b_proj.weight", (heads * (nope + value), rank)
    yield "o_proj.weight", (hidden, heads * value)


_HEADS = ("num_key_value_heads",)
_MLP = (*_HEADS, "intermediate_size")
_NO_BIAS = {"attention_bias": False}
_STEPS = frozenset(("decoder_sparse_step", "mlp_only_layers"))
# Of parts that transformers does not build.
_MINIMAX = frozenset(("num_mtp_modules", "mtp_transformer_layers", "use_mtp"))
_QWEN2 = Decoder(
    _grouped("qkv"), _MLP, _STEPS, {"qkv_bias": True}, "shared_expert", gates_shared=True
)
_DEEPSEEK = Decoder(
    _latent,
    (*_MLP, "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    frozenset(("first_k_dense_replace", "q_lora_rank")),
    {**_NO_BIAS, "moe_layer_freq": 1, "pretraining_tp": 1},
    "shared_experts",
)
DECODERS: Mapping[str, Decoder] = {
    "mixtral": Decoder(_grouped(), _HEADS, frozenset(("head_dim",))),
    "olmoe": Decoder(_grouped(norms="all"), _HEADS, fixed=_NO_BIAS),
    "qwen2_moe": _QWEN2,
    "qwen3_moe": Decoder(_grouped(norms="head"), (*_MLP, "head_dim"), _STEPS, _NO_BIAS),
    "glm4_moe": Decoder(
        _grouped("qkv", norms="head", bias_key="attention_bias", norm_key="use_qk_norm"),
        (*_MLP, "head_dim"),
        frozenset(("first_k_dense_replace", "attention_bias", "use_qk_norm")),
        shared="shared_experts",
    ),
    "minimax_m2": Decoder(_grouped(norms="all"), (*_HEADS, "head_dim"), _MINIMAX),
    "dots1": Decoder(
        _grouped(norms="head"),
        _MLP,
        frozenset(("first_k_dense_replace",)),
        _NO_BIAS,
        "shared_experts",
    ),
    "ernie4_5_moe": Decoder(
        _grouped(),
        _MLP,
        frozenset(("moe_layer_interval", "moe_layer_start_index", "moe_layer_end_index")),
        {"use_bias": False},
        "shared_experts",
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
}


def decoder_tensors(
    family: MoEFamily, config: Config, dtype: str
) -> dict[str, tuple[str, Shape]] | None:
    """Name -> dtype and shape of every tensor; None where transformers must be asked.

    `config` is that of a whole checkpoint, `dtype` as safetensors names it.
    """
    build = DECODERS.get(family.model_type)
    if build is None or not _is_known(build, family, config):
        return None
    return {
        name: ("F32" if name.endswith(family.single) else dtype, shape)
        for name, shape in _tensors(build, family, config)
    }


def _is_known(build: Decoder, family: MoEFamily, config: Config) -> bool:
    """Whether the keys of a configuration are all known, and those that decide shapes given."""
    shared = family.shared
    counts = {key for key in family.count_keys if config.get(key) is not None}
    sizes = {*_SIZES, *build.sizes, family.width_key, family.top_k_key, *counts}
    if shared:
        sizes |= {key for key in (shared.width_key, shared.count_key) if key}
    keys = {*_WITHOUT_SHAPE.split(), *sizes, *build.others, *build.fixed, "tie_word_embeddings"}
    return (
        config.keys() <= keys
        and all(type(config.get(key)) is int and config[key] > 0 for key in sizes)
        and all(config.get(key, only) == only for key, only in build.fixed.items())
        and type(config.get("tie_word_embeddings")) is bool
        and ("q_lora_rank" in config or "q_lora_rank" not in build.others)
        and ("head_dim" in config or config["hidden_size"] % config["num_attention_heads"] == 0)
    )


def _tensors(build: Decoder, family: MoEFamily, config: Config) -> Iterator[tuple[str, Shape]]:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    attention, shared = tuple(build.attention(config)), family.shared
    sparse = {layer.index: layer for layer in family.layers(config)}
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for index in range(family.depth(config)):
        trunk = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{trunk}.{norm}.weight", (hidden,)
        for name, shape in attention:
            yield f"{trunk}.self_attn.{name}", shape
        if index not in sparse:
            yield from _mlp(f"{trunk}.mlp", hidden, config["intermediate_size"])
            continue
        block, count = f"{trunk}.{family.disk_block}", sparse[index].num_experts
        for expert in range(count):
            width = config[family.width_key]
            yield from _mlp(f"{block}.experts.{expert}", hidden, width, family.projections)
        for tensor in family.router_tensors:
            rows: Shape = (1,) * tensor.axis + (count,)
            shape = (*rows, hidden) if tensor.name.endswith(".weight") else rows
            yield f"{block}.{tensor.on_disk or tensor.name}", shape
        if shared:
            number = config[shared.count_key] if shared.count_key else 1
            yield from _mlp(f"{block}.{build.shared}", hidden, config[shared.width_key] * number)
        if build.gates_shared:
            yield f"{block}.{build.shared}_gate.weight", (1, hidden)
    yield "model.norm.weight", (hidden,)


def _mlp(
    place: str, hidden: int, width: int, names: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Shape]]:
    for projection in ("gate", "up", "down"):
        name = (names or {}).get(projection, f"{projection}_proj")
        yield f"{place}.{name}.weight", (hidden, width) if projection == "down" else (width, hidden)
