"""Sizes that follow from a configuration, against published counts of parameters and bytes.

Published: the tensors' dtypes of the repositories (DeepSeek-R1, GLM-4.5-Air, Qwen3-30B-A3B) and the
total size of openai/gpt-oss-20b's index.
"""

import json
from collections import Counter

import pytest
from published_models import DEEPSEEK_R1, GLM_AIR, GPT_OSS, QWEN3
from transformers import Qwen3NextConfig

from analysis.calibration.config_outline import outline_model
from analysis.errors import CheckpointError
from analysis.model.heads import prediction_heads
from analysis.model.outline import without_weights
from pruning.plan.sizes import size_report
from pruning.planning.count_plan import count_plan
from pruning.spec.spec import spec_of


@pytest.fixture
def outlined(tmp_path):
    def make(config, **changes):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        return outline_model(str(tmp_path))

    return make


def elements(model):
    found = Counter()
    for entry in model.checkpoint.tensors.values():
        found[entry.dtype] += entry.numel
    return dict(found)


def test_deepseek_r1(outlined):
    model = outlined(DEEPSEEK_R1)
    # 684.5 B elements, "685B": 671 B of the model and its head for multi-token prediction.
    fp8, bf16, f32 = 680_571_043_840, 3_918_786_560, 41_555_600
    assert elements(model) == {"F8_E4M3": fp8, "BF16": bf16, "F32": f32}
    assert model.checkpoint.nbytes == fp8 + 2 * bf16 + 4 * f32  # 641.29 GiB
    (head,) = prediction_heads(model)
    held = sum(model.num_weights(model.checkpoint.tensors[name]) for name in head.tensors)
    assert round((model.num_params - held) / 1e9) == 671
    assert round(size_report(model).active_before / 1e9, 1) == 37.6
    # (576, 7168) does not divide into blocks of 128: read by us, not by transformers alone.
    assert not model.unloadable
    assert "kv_a_proj_with_mqa" in model.cut_blocks
    half = count_plan(spec_of(sparsity="50%"), model)
    assert set(half.allocation.keep) == {128}
    # An expert: three matrices of a byte per weight and a scale of four per block.
    expert = 3 * (7168 * 2048 + 4 * 7168 * 2048 // 128**2)
    row = 2 * 7168 + 4
    gone = 58 * 128 * (expert + row) + sum(
        model.checkpoint.tensors[name].nbytes for name in head.tensors
    )
    assert half.report.bytes_before - half.report.bytes_after == gone


@pytest.mark.parametrize(
    ("config", "params", "nbytes"),
    [
        (QWEN3, 30_532_122_624, 2 * 30_532_122_624),
        # The bias of each of its 46 routers is in float32.
        (GLM_AIR, 110_468_824_832, 2 * (110_468_824_832 + 46 * 128)),
        (GPT_OSS, 20_914_757_184, 13_761_264_768),
    ],
)
def test_published_totals(outlined, config, params, nbytes):
    model = outlined(config)
    assert (model.num_params, model.checkpoint.nbytes) == (params, nbytes)


SMALL = {**QWEN3, "num_hidden_layers": 2, "num_experts": 16, "vocab_size": 1024}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_modules_that_are_not_converted(outlined):
    plain = outlined(SMALL).checkpoint
    leaves = ["lm_head", "model.layers.0.mlp.experts.1.up_proj", "model.layers.1.self_attn"]
    found = outlined(SMALL, quantization_config={**FP8, "modules_to_not_convert": leaves})
    dtypes = {name: entry.dtype for name, entry in found.checkpoint.tensors.items()}
    assert dtypes["model.layers.0.mlp.experts.1.up_proj.weight"] == "BF16"
    assert dtypes["model.layers.0.mlp.experts.11.up_proj.weight"] == "F8_E4M3"
    assert dtypes["model.layers.1.self_attn.q_proj.weight"] == "BF16"
    assert dtypes["model.layers.0.self_attn.q_proj.weight"] == "F8_E4M3"
    assert {dtypes[f"model.layers.{n}.mlp.gate.weight"] for n in (0, 1)} == {"BF16"}
    assert dtypes.keys() - plain.tensors.keys() == {
        f"{name}_scale_inv" for name, dtype in dtypes.items() if dtype == "F8_E4M3"
    }
    assert not without_weights(found).caveats


@pytest.mark.parametrize(
    "quantisation",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "fp8", "weight_block_size": None},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "mxfp4"},  # of experts that are not stacked and transposed
    ],
)
def test_a_quantisation_that_is_not_told_is_counted_as_none_and_said(outlined, quantisation):
    plain, found = outlined(SMALL), outlined(SMALL, quantization_config=quantisation)
    assert elements(found) == elements(plain)
    (caveat,) = without_weights(found).caveats
    assert f"as if the model were not quantised: config.json says {found.quantisation}" in caveat


def test_a_head_that_no_configuration_names_is_said(outlined):
    next_ = Qwen3NextConfig(num_hidden_layers=4, num_experts=8, num_experts_per_tok=2).to_dict()
    (caveat,) = without_weights(outlined(next_)).caveats
    assert "have a prediction head that config.json does not name" in caveat


def test_heads_that_a_configuration_only_counts_are_said(outlined):
    (caveat,) = without_weights(outlined(SMALL, mtp_num_hidden_layers=1)).caveats
    assert caveat == "Prediction heads (mtp_num_hidden_layers = 1) are not counted."
    with pytest.raises(CheckpointError, match="no model has more than"):
        outlined(DEEPSEEK_R1, num_hidden_layers=4, num_nextn_predict_layers=10**9)
