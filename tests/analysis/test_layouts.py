"""Layouts of published checkpoints: what is counted of them, and what is said."""

import json

import pytest
from exports import export
from hollow import experts, hollow

from analysis.calibration.memory import active_params
from analysis.errors import CheckpointError
from analysis.model import load_model_index
from pruning.heads import HeadChoice
from pruning.sizes import size_report

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


PACKED = {
    "awq": (awq, {"quant_method": "awq", "bits": 4}),
    "compressed-tensors": (
        compressed,
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"0": {"weights": {"num_bits": 4}}},
        },
    ),
}


@pytest.mark.parametrize("method", PACKED)
def test_packed_integers_count_as_the_weights_in_them(tmp_path, method):
    split, quantised = PACKED[method]
    model = glm(tmp_path / "packed", split, quantization_config=quantised)
    plain = glm(tmp_path / "plain")
    assert model.quantisation == method
    assert model.num_params == plain.num_params == plain.checkpoint.num_params
    assert active_params(model) == USED
    report, whole = size_report(model), size_report(plain)
    assert (report.params_before, report.active_before) == (
        whole.params_before,
        whole.active_before,
    )
    assert report.loaded("bfloat16") == whole.loaded("bfloat16")
