"""Published models by their configurations: processes that serve a plan, parameters and bytes.

By hand, and as published: the tensors' dtypes of the repositories (DeepSeek-R1, GLM-4.5-Air,
Qwen3-30B-A3B) and the total size of openai/gpt-oss-20b's index.
"""

import json
from collections import Counter

import pytest
from published_models import DEEPSEEK, DEEPSEEK_R1, GLM_AIR, GPT_OSS, QWEN3
from transformers import Qwen3NextConfig

from analysis.calibration.config_outline import outline_model
from analysis.errors import CheckpointError, PlanError
from analysis.model.heads import prediction_heads
from analysis.model.loadable import cut_blocks, unloadable
from analysis.model.opening import load_model_index
from analysis.model.outline import without_weights
from builders import tiny_checkpoint
from builders.fp8 import write_fp8_pair
from pruning.plan.constraints import Parallel, parse_parallel
from pruning.plan.sizes import size_report
from pruning.planning.count_plan import count_plan
from pruning.spec.spec import spec_of


@pytest.fixture(scope="module")
def outlined(tmp_path_factory):
    """`outlined(config, **changes)`: the model of a configuration alone; each is made once."""
    made = {}

    def get(config, **changes):
        text = json.dumps({**config, **changes})
        if text not in made:
            folder = tmp_path_factory.mktemp("outlined")
            (folder / "config.json").write_text(text)
            made[text] = outline_model(str(folder))
        return made[text]

    return get


def counts(model, serve_on, **budget):
    return count_plan(spec_of(serve_on=serve_on, **budget), model)


def test_experts_are_rounded_as_a_multiple_of_the_processes(outlined):
    # Qwen3-30B-A3B: 128 experts a layer, 32 heads, 4 key-value heads, experts of 768 neurons.
    model = outlined(QWEN3)
    # 40% is 51 of 128; 77 stay, and the next multiple of 8 is 80.
    plan = counts(model, "tp=8,ep=8", sparsity="40%")
    assert set(plan.allocation.keep) == {80}
    multiple = count_plan(spec_of(sparsity="40%", multiple_of=8), model)
    assert plan.allocation == multiple.allocation
    words = "For tp=8,ep=8 each layer keeps a multiple of 8 experts; 32 attention heads divide by 8"
    assert f"{words}." in plan.notes
    assert not any("tp=" in note for note in multiple.notes)
    # 4 key-value heads lie on 4 processes each; 768 neurons make 16 slices.
    assert set(counts(model, "tp=16", sparsity="40%").allocation.keep) == {77}
    both = counts(model, "ep=8", sparsity="40%", multiple_of=12)  # of 24
    assert set(both.allocation.keep) == {96}


def test_a_multiple_besides_that_leaves_nothing_is_said(outlined):
    # 96 is a multiple of both, and 128 experts have none besides that lets one go but 96.
    model = outlined(QWEN3)
    assert set(counts(model, "ep=32", sparsity="25%", multiple_of=3).allocation.keep) == {96}
    both = r"ep=64 with --multiple-of, 192 together, lets no expert go: .* leave one of them out"
    with pytest.raises(PlanError, match=both):
        counts(model, "ep=64", sparsity="25%", multiple_of=3)


def test_key_value_heads_divide_or_are_replicated(outlined):
    grouped = outlined({**QWEN3, "num_attention_heads": 48, "num_key_value_heads": 4})
    with pytest.raises(PlanError, match=r"4 key-value heads .* by 6; tp can be 1, 2, 4\."):
        counts(grouped, "tp=6", sparsity="50%")
    # Latent attention has one, whatever config.json says.
    latent = outlined({**DEEPSEEK, "num_key_value_heads": 3})
    assert counts(latent, "tp=16", sparsity="50%")


def test_a_slice_has_whole_fp8_blocks(outlined):
    # DeepSeek-R1: 128 heads, experts of 2048 neurons in blocks of 128: at most 16 slices.
    model = outlined(DEEPSEEK_R1)
    assert set(counts(model, "tp=16", sparsity="50%").allocation.keep) == {128}
    cut = r"experts of 2048 neurons cannot be cut into 32 slices of whole FP8 blocks \(128\)"
    with pytest.raises(PlanError, match=rf"{cut}; give ep=32"):
        counts(model, "tp=32", sparsity="50%")
    assert set(counts(model, "tp=32,ep=32", sparsity="50%").allocation.keep) == {128}
    # SGLang: four groups of eight experts' slices.
    assert set(counts(model, "tp=32,ep=4", sparsity="50%").allocation.keep) == {128}
    assert parse_parallel("tp=32, ep=4").slices == 8


def test_neurons_are_rounded_to_slices_blocks_and_the_widths_of_exports(tmp_path):
    neurons = {"granularity": "neuron", "criterion": "neuron-norms", "sparsity": "50%"}

    def multiple(model, **fields):
        return spec_of(**neurons, **fields).constraints_for(model).multiple_of

    fp8, plain = map(load_model_index, map(str, write_fp8_pair(tmp_path, block=(8, 8))))
    rows, columns = fp8.stated_block
    assert (rows, columns) == (8, 8)
    for fields, of_plain, of_fp8 in (
        ({}, 1, 1),
        ({"serve_on": "tp=1"}, 8, 8),  # exports round widths up to 8
        ({"serve_on": "tp=2"}, 8, 16),
        # Experts stay whole, and of 7 in each layer 6 are left.
        ({"serve_on": "tp=2,ep=2", "drop": {1: (0,), 2: (0,)}}, 8, 8),
        ({"serve_on": "tp=2", "multiple_of": 3}, 24, 48),
        ({"serve_on": "tp=2", "width_multiple_of": 5}, 10, 80),
    ):
        assert (multiple(plain, **fields), multiple(fp8, **fields)) == (of_plain, of_fp8), fields


def test_layers_that_no_budget_changes_must_divide_as_they_are(tmp_path):
    model = load_model_index(str(tiny_checkpoint(tmp_path / "tiny", "qwen3_moe").path))
    # 6 experts in layers 0, 2 and 3.
    assert set(counts(model, "ep=3", sparsity="50%").allocation.keep) == {3}
    with pytest.raises(PlanError, match=r"layer 2 keeps 6 experts, which 4 .*--protect"):
        counts(model, "ep=4", sparsity="20%", protect="2")
    by_neuron = {"granularity": "neuron", "criterion": "neuron-norms", "sparsity": "50%"}
    spec = spec_of(**by_neuron, serve_on="ep=4", drop={2: (0, 1)})
    with pytest.raises(PlanError, match="layer 0 keeps 6 experts, which 4 processes"):
        spec.constraints_for(model)


@pytest.mark.parametrize(
    "text", ["", "tp", "tp=", "tp=0", "tp=-1", "tp=1.5", "pp=2", "tp=²", "tp=1,"]
)
def test_what_are_no_processes_is_refused(text):
    with pytest.raises(PlanError, match=r"no number of processes; write tp=8,ep=8"):
        parse_parallel(text)
    assert parse_parallel("ep=8") == Parallel(1, 8)


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
    assert not unloadable(model)
    assert "kv_a_proj_with_mqa" in cut_blocks(model)
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
