"""Layouts of published checkpoints: what is counted of them, and what is said."""

import json
import math

import pytest
from calibrations import make_sequences, make_settings
from exports import export
from hollow import experts, hollow

from analysis.calibration.memory import active_params, estimate
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.loadable import cut_blocks, unloadable
from analysis.model.opening import load_model_index
from analysis.model.widths import computed_widths
from pruning.plan.heads import HeadChoice
from pruning.plan.sizes import size_report
from pruning.serving.engines import Reads, contents_of, verdicts

# GLM-4.5 in small: layer 0 is dense, layer 2 lies beyond the depth and is the prediction head.
HIDDEN, WIDTH, COUNT, TOP_K, VOCAB = 64, 32, 8, 2, 100
GLM = {
    "model_type": "glm4_moe", "num_hidden_layers": 2, "first_k_dense_replace": 1,
    "hidden_size": HIDDEN, "moe_intermediate_size": WIDTH, "n_routed_experts": COUNT,
    "num_experts_per_tok": TOP_K, "num_nextn_predict_layers": 1,
}  # fmt: skip
TRUNK = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "lm_head.weight": (VOCAB, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (48, HIDDEN),
}
EXPERT = 3 * HIDDEN * WIDTH
# What one token meets, but for embedding and head.
USED = 48 * HIDDEN + COUNT * HIDDEN + TOP_K * EXPERT


def glm(folder, split=None, **changes):
    """The checkpoint with its head, as a model."""
    tensors = TRUNK | experts("model.layers.1.mlp", COUNT, HIDDEN, WIDTH, split)
    head = experts("model.layers.2.mlp", COUNT, HIDDEN, WIDTH, split)
    tensors |= head | {"model.layers.2.eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
    return load_model_index(str(hollow(folder, GLM | changes, tensors)))


def test_a_head_beyond_the_depth_is_no_part_of_what_a_token_uses(tmp_path):
    model = glm(tmp_path)
    assert active_params(model) == USED
    assert size_report(model).active_before == USED + 2 * VOCAB * HIDDEN


def test_a_vision_tower_is_no_part_of_what_a_token_uses(tmp_path):
    text = {**GLM, "model_type": "new_moe_text"}
    config = {"model_type": "new_vl_moe", "text_config": text}
    tensors = experts("model.language_model.layers.1.mlp", COUNT, HIDDEN, WIDTH)
    tensors |= {"model.visual.blocks.0.mlp.up.weight": (7, 9), "lm_head.weight": (VOCAB, HIDDEN)}
    tensors |= {"model.language_model.layers.0.mlp.up_proj.weight": (48, HIDDEN)}
    model = load_model_index(str(hollow(tmp_path, config, tensors)))
    assert active_params(model) == USED
    assert size_report(model).active_before == USED + VOCAB * HIDDEN
    assert size_report(model).params_before == model.checkpoint.num_params


def test_a_configuration_that_describes_the_model_twice_is_edited_twice(tmp_path):
    # As DeepSeek-OCR: at the top and in language_config; the vision part counts its own.
    again = {key: GLM[key] for key in GLM if key != "model_type"}
    vision = {"n_routed_experts": COUNT, "hidden_size": HIDDEN + 1}
    model = glm(tmp_path / "source", language_config=again, vision_config=vision)
    export(model, (0, 2, 5), tmp_path / "out", heads=HeadChoice.DROP)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["n_routed_experts"] == written["language_config"]["n_routed_experts"] == 3
    assert written["language_config"]["num_nextn_predict_layers"] == 0
    assert written["vision_config"] == vision
    with pytest.raises(CheckpointError, match="gives 8 experts, but 64 in language_config"):
        glm(tmp_path / "two", language_config={**again, "n_routed_experts": 64})


def awq(stem, shape):
    """GEMM of AWQ: (in, out / 8) integers, zeros and scales for groups of 32."""
    rows, columns = shape[1], shape[0]
    return {
        f"{stem}.qweight": ("I32", (rows, columns // 8)),
        f"{stem}.qzeros": ("I32", (rows // 32, columns // 8)),
        f"{stem}.scales": ("F16", (rows // 32, columns)),
    }


def compressed(stem, shape):
    """pack-quantized of compressed-tensors: (out, in / 8) integers, scales for groups of 32."""
    return {
        f"{stem}.weight_packed": ("I32", (shape[0], shape[1] // 8)),
        f"{stem}.weight_scale": ("BF16", (shape[0], shape[1] // 32)),
        f"{stem}.weight_shape": ("I32", (2,)),
    }


def fp4(weight, group, *scales):
    """Two floats of 4 bits in a byte, a scale for each group, and more scales."""
    return lambda stem, shape: {
        f"{stem}.{weight}": ("U8", (shape[0], shape[1] // 2)),
        f"{stem}.weight_scale": ("U8", (shape[0], shape[1] // group)),
        **{f"{stem}.{name}": ("F32", (1,)) for name in scales},
    }


def nf4(stem, shape):
    """bitsandbytes: a matrix in one column of bytes, and what undoes it under longer names."""
    count = math.prod(shape)
    parts = {"absmax": count // 64, "nested_absmax": 1, "nested_quant_map": 256, "quant_map": 16}
    return {
        f"{stem}.weight": ("U8", (count // 2, 1)),
        f"{stem}.weight.quant_state.bitsandbytes__nf4": ("U8", (190,)),
        **{f"{stem}.weight.{part}": ("F32", (size,)) for part, size in parts.items()},
    }


def int8(stem, shape):
    """bitsandbytes in 8 bits: a scale for each row, and a number that stands for the layout."""
    return {
        f"{stem}.weight": ("I8", shape),
        f"{stem}.SCB": ("F32", shape[:1]),
        f"{stem}.weight_format": ("U8", ()),
    }


PACKED = {
    # NVFP4 of NVIDIA and of llm-compressor, MXFP4 of AMD
    "modelopt": (fp4("weight", 16, "weight_scale_2", "input_scale"), {"quant_method": "modelopt"}),
    "compressed-tensors-fp4": (
        fp4("weight_packed", 16, "weight_global_scale", "input_global_scale"),
        {"quant_method": "compressed-tensors"},
    ),
    "quark": (fp4("weight", 32), {"quant_method": "quark"}),
    "bitsandbytes": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "bitsandbytes-int8": (int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4}),
    "compressed-tensors": (
        compressed,
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"0": {"weights": {"num_bits": 4}}},
        },
    ),
}


@pytest.fixture(params=PACKED)
def packed(request, tmp_path):
    """A model in a packed layout, and its settings."""
    split, quantised = PACKED[request.param]
    return glm(tmp_path / "packed", split, quantization_config=quantised), quantised


def test_packed_integers_count_as_the_weights_in_them(packed, tmp_path):
    model, quantised = packed
    plain = glm(tmp_path / "plain")
    assert model.quantisation == quantised["quant_method"]
    assert set(computed_widths(model)[1]) == {WIDTH}
    assert model.num_params == plain.num_params == plain.checkpoint.num_params
    assert active_params(model) == USED
    for size in ("params_before", "active_before"):
        assert getattr(size_report(model), size) == getattr(size_report(plain), size)
    assert size_report(model).loaded("bfloat16") == size_report(plain).loaded("bfloat16")


def test_every_part_of_a_packed_expert_goes_and_stays_with_it(packed, tmp_path):
    model, _ = packed
    export(model, (0, 2, 5), tmp_path / "out", heads=HeadChoice.DROP)
    old, new = (
        {name: entry.shape for name, entry in described.checkpoint.tensors.items()}
        for described in (model, load_model_index(str(tmp_path / "out")))
    )
    block = "model.layers.1.mlp.experts."
    for place, expert in enumerate((0, 2, 5)):
        parts = {n.removeprefix(f"{block}{expert}."): s for n, s in old.items()}
        found = {n.removeprefix(f"{block}{place}."): s for n, s in new.items()}
        assert all(found[n] == s for n, s in parts.items() if not n.startswith("model."))
    assert not any(name.startswith(f"{block}3.") for name in new)


def by_engine(model):
    return {verdict.engine: verdict for verdict in verdicts(contents_of(model))}


def test_what_cannot_be_loaded_is_said_before_anything_is_estimated(packed):
    model, quantised = packed
    said = f"checkpoints quantised with {quantised['quant_method']} cannot be loaded"
    for name in ("transformers", "moeprune, load_pruned"):
        assert by_engine(model)[name].reads is Reads.FAILS
        assert by_engine(model)[name].reason.startswith(f"{said}: ")
    assert not any(verdict.reads is Reads.TRIED for verdict in by_engine(model).values())
    with pytest.raises(UnsupportedModelError, match=said):
        estimate(model, make_sequences(), make_settings())


def test_scales_that_do_not_divide_their_matrix_are_named(tmp_path):
    # DeepSeek-R1: transformers 5.23 derives the block from the grid, 5 rows of scales for 576.
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    tensors = TRUNK | experts("model.layers.1.mlp", COUNT, HIDDEN, WIDTH)
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for rows in (640, 576):
        tensors |= {name: ("F8_E4M3", (rows, 7168)), f"{name}_scale_inv": ("F32", (5, 56))}
        config = {**BARE, "quantization_config": quantised}
        model = load_model_index(str(hollow(tmp_path / str(rows), config, tensors)))
        assert bool(cut_blocks(model)) is (rows == 576)
        assert not unloadable(model)
    estimate(model, make_sequences(), make_settings())
    # On GPUs that compute in FP8 transformers dequantises nothing; on others load_pruned does.
    found = by_engine(model)
    assert found["transformers"].reads is Reads.NOT_TRIED
    assert found["transformers"].reason.startswith("on a GPU that computes in FP8; on a CPU ")
    assert found["moeprune, load_pruned"].reads is Reads.TRIED
    # Scales that fit neither by the stated block nor evenly.
    tensors[f"{name}_scale_inv"] = ("F32", (7, 56))
    model = load_model_index(str(hollow(tmp_path / "odd", config, tensors)))
    says = rf"{name} cannot be dequantised: \[576, 7168\] does not divide into its \[7, 56\] scales"
    with pytest.raises(UnsupportedModelError, match=says):
        estimate(model, make_sequences(), make_settings())


def test_stacked_experts_in_fp8_are_not_loaded_without_their_scales(tmp_path):
    # As Qwen3-VL-30B-A3B-Instruct-FP8: transformers 5.23 finds scales of `weight` alone.
    block, (rows, columns) = "model.layers.1.mlp", (2 * WIDTH, HIDDEN)
    shapes = {"gate_up_proj": (COUNT, rows, columns), "down_proj": (COUNT, HIDDEN, WIDTH)}
    stacked = {f"{block}.experts.{name}": ("F8_E4M3", shape) for name, shape in shapes.items()}
    scales = {f"{name}_scale_inv": ("F32", (COUNT, 1, 1)) for name in stacked}
    tensors = TRUNK | stacked | scales | {f"{block}.gate.weight": (COUNT, HIDDEN)}
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {**BARE, "quantization_config": quantised}
    model = load_model_index(str(hollow(tmp_path, config, tensors)))
    says = r"without their scales \(.*experts\.gate_up_proj_scale_inv\); use the model in bfloat16"
    with pytest.raises(UnsupportedModelError, match=says):
        estimate(model, make_sequences(), make_settings())


@pytest.mark.parametrize(
    ("keys", "warns"),
    [
        ({"rope_parameters": {"rope_theta": 1e6}}, True),  # saved again by transformers 5
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e6}, False),
        ({"rope_parameters": {"rope_theta": 10_000.0}}, False),
        ({"rope_theta": 1e6}, False),
    ],
    ids=str,
)
def test_a_base_of_positions_where_engines_do_not_look_is_said(tmp_path, keys, warns):
    found, words = by_engine(glm(tmp_path, **keys)), "rope_theta is only in rope_parameters"
    said = {engine for engine, verdict in found.items() if words in verdict.reason}
    assert said == ({"vLLM", "SGLang", "llama.cpp", "MLX"} if warns else set())


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ({"topk_method": "noaux_tc", "scoring_func": "sigmoid"}, None),
        ({"scoring_func": "sigmoid"}, "lacks topk_method,"),
        ({}, "lacks topk_method and scoring_func,"),
    ],
)
def test_keys_that_engines_miss_are_said(tmp_path, given, lacks):
    model = glm(tmp_path, model_type="deepseek_v3", n_group=1, topk_group=1, **given)
    reasons = {engine: verdict.reason for engine, verdict in by_engine(model).items()}
    said = {engine for engine, reason in reasons.items() if "which published ones have" in reason}
    assert said == ({"vLLM", "SGLang", "llama.cpp", "MLX"} if lacks else set())
    assert all(lacks in reasons[engine] for engine in said)


def test_a_type_without_a_class_is_not_estimated(tmp_path):
    model = glm(tmp_path, model_type="no_such_moe")
    assert by_engine(model)["moeprune, load_pruned"].reads is Reads.NOT_TRIED
    with pytest.raises(UnsupportedModelError, match="transformers has no class for 'no_such_moe'"):
        estimate(model, make_sequences(), make_settings())


def renamed(old, new):
    """The tensors of GLM with other names of something."""
    tensors = TRUNK | experts("model.layers.1.mlp", COUNT, HIDDEN, WIDTH)
    return {name.replace(old, new): shape for name, shape in tensors.items()}


BARE = {**GLM, "num_nextn_predict_layers": 0}
NEW = {**GLM, "model_type": "new_moe", "n_routed_experts": None, "num_nextn_predict_layers": 0}
# Configuration, tensors, and what is said of them.
REFUSALS = {
    "a part counts them": (
        {**NEW, "llm_config": {"num_experts": COUNT}}, {}, r"has experts \(llm_config\)"
    ),
    "nobody counts them": (
        NEW, renamed(".mlp.", ".moe."), r"has experts \(model\.layers\.1\.moe\.experts\.0\."
    ),
    "in no block": (
        {**NEW, "num_experts": COUNT}, renamed("mlp.experts.", "experts."),
        r"layers\.1\.experts\.0\.gate_proj\.weight lies directly in its layer",
    ),
    "other projections": (
        BARE, renamed("_proj", "_projection"),
        r"layer 1 are not named as in .* has .*\.0\.gate_projection\.weight, which is another",
    ),
    "as MLX saves it": (
        BARE,
        {"model.layers.1.mlp.switch_mlp.up_proj.weight": ("I32", (COUNT, WIDTH, HIDDEN // 8))},
        r"has model\.layers\.1\.mlp\.switch_mlp\.up_proj\.weight, which is MLX's layout; prune",
    ),
    "a packed router": (
        {**BARE, "quantization_config": {"load_in_4bit": True}},
        renamed("", "") | {"model.layers.1.mlp.gate.weight": ("U8", (COUNT * HIDDEN // 2, 1))},
        r"The router of layer 1 is quantised \(model\.layers\.1\.mlp\.gate\.weight\)",
    ),
    "a router in AWQ": (
        {**BARE, "quantization_config": {"quant_method": "awq"}},
        renamed("mlp.gate.", "norm.") | awq("model.layers.1.mlp.gate", (COUNT, HIDDEN)),
        r"The router of layer 1 is quantised \(model\.layers\.1\.mlp\.gate\.q\w+\), .* leaves",
    ),
    "a router in 8 bits": (
        {**BARE, "quantization_config": {"load_in_8bit": True}},
        renamed("", "") | int8("model.layers.1.mlp.gate", (COUNT, HIDDEN)),
        r"The router of layer 1 is quantised \(model\.layers\.1\.mlp\.gate\.weight\), .* leaves",
    ),
    "a router in FP8": (
        {**BARE, "quantization_config": {"quant_method": "fp8"}},
        renamed("", "") | {"model.layers.1.mlp.gate.weight": ("F8_E4M3", (COUNT, HIDDEN)),
                           "model.layers.1.mlp.gate.weight_scale_inv": ("F32", (1, 1))},
        r"The router of layer 1 is quantised \(model\.layers\.1\.mlp\.gate\.weight_scale_inv\)",
    ),
}  # fmt: skip


ERNIE = {
    "model_type": "ernie4_5_moe", "num_hidden_layers": 2, "hidden_size": HIDDEN, "moe_k": TOP_K,
    "moe_num_experts": COUNT, "moe_intermediate_size": WIDTH, "moe_layer_start_index": 1,
    "moe_layer_end_index": 1, "moe_layer_interval": 1, "moe_num_shared_experts": 1,
}  # fmt: skip
MIXTRAL = {"num_local_experts": COUNT, "num_experts_per_tok": TOP_K, "num_hidden_layers": 1}
# Configuration, tensors and what is said of names: complete checkpoints of other programs, and one
# of transformers of which a shard is missing, which holds shared experts and a head's.
ELSEWHERE = {
    "Paddle's": (
        ERNIE,
        {
            "ernie.embed_tokens.weight": (VOCAB, HIDDEN),
            "ernie.layers.1.mlp.shared_experts.up_gate_proj.weight": (HIDDEN, 2 * WIDTH),
            "ernie.layers.1.mlp.gate.weight": ("F32", (HIDDEN, COUNT)),
            "ernie.layers.1.mlp.moe_statics.e_score_correction_bias": ("F32", (1, COUNT)),
        }
        | {
            f"ernie.layers.1.mlp.experts.{n}.{part}.weight": shape
            for n in range(COUNT)
            for part, shape in (("up_gate_proj", (HIDDEN, 64)), ("down_proj", (WIDTH, HIDDEN)))
        },
        r"ernie\.layers\.1\.mlp\.experts\.0\.up_gate_proj\.weight, .* Paddle's layout.* -PT, or",
    ),
    "Mistral's": (
        {"model_type": "mixtral", **MIXTRAL},
        {"norm.weight": (HIDDEN,), "layers.0.feed_forward.experts.0.w1.weight": (WIDTH, HIDDEN)},
        r"has layers\.0\.feed_forward\.experts\.0\.w1\.weight, which is another layout; use the",
    ),
    "OpenAI's": (
        {"model_type": "gpt_oss", **MIXTRAL},
        {"block.0.mlp.mlp1_weight": (COUNT, 2 * WIDTH, HIDDEN)},
        r"has block\.0\.mlp\.mlp1_weight, which is another layout; use the checkpoint published",
    ),
    "a shard's": (
        BARE,
        {
            "model.layers.1.mlp.shared_experts.up_proj.weight": (WIDTH, HIDDEN),
            "mtp.layers.0.mlp.experts.0.up_proj.weight": (WIDTH, HIDDEN),
            "model.layers.1.mlp.gate.weight": (COUNT, HIDDEN),
        },
        r"lacks the expert 0's down projection \(24 such tensors missing\); is a shard missing",
    ),
}


@pytest.mark.parametrize("whose", ELSEWHERE)
def test_names_of_another_program_are_told_from_a_missing_shard(tmp_path, whose):
    config, tensors, message = ELSEWHERE[whose]
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        load_model_index(str(hollow(tmp_path, config, tensors)))


def test_a_layer_pruned_alone_needs_its_own_count(tmp_path):
    # As checkpoints that peers pruned layer by layer.
    config = {**BARE}
    tensors = TRUNK | experts("model.layers.1.mlp", COUNT - 2, HIDDEN, WIDTH)
    says = "holds 6 experts and its router a row for each, but .* says 8.* add per_layer_num_exp"
    with pytest.raises(CheckpointError, match=says):
        load_model_index(str(hollow(tmp_path, config, tensors)))
    config |= {"num_hidden_layers": 3, "per_layer_num_experts": [0, 6, 8]}
    tensors |= experts("model.layers.2.mlp", COUNT, HIDDEN, WIDTH)
    model = load_model_index(str(hollow(tmp_path, config, tensors)))
    assert [layer.num_experts for layer in model.layers] == [6, 8]


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_what_is_in_the_way(tmp_path, name):
    config, tensors, message = REFUSALS[name]
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        load_model_index(str(hollow(tmp_path, config, TRUNK | tensors)))
    assert "dense" not in str(caught.value)


def test_the_key_of_kimi_linear_says_how_many_experts_a_token_gets(tmp_path):
    config = {**NEW, "num_experts": COUNT, "num_experts_per_token": 3, "num_experts_per_tok": None}
    model = load_model_index(str(hollow(tmp_path, config, renamed("", ""))))
    assert [layer.top_k for layer in model.layers] == [3]


def test_a_git_lfs_pointer_is_no_truncated_file(tmp_path):
    hollow(tmp_path, GLM, {})
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(CheckpointError, match=r"is a Git LFS pointer .* `git lfs pull`"):
        load_model_index(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("weights.safetensors", r"holds weights\.safetensors, .* rename the file to model\.safet"),
        ("model-00001-of-00002.safetensors", "fetch the index"),
    ],
)
def test_one_file_of_another_name_says_how_it_is_read(tmp_path, name, says):
    glm(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(CheckpointError, match=says):
        load_model_index(str(tmp_path))
