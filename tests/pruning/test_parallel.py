"""Processes that serve a plan: what they must divide, by hand for published models."""

import json

import pytest
from published_models import DEEPSEEK, DEEPSEEK_R1, QWEN3

from analysis.calibration.config_outline import outline_model
from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from builders import tiny_checkpoint
from builders.fp8 import write_fp8_pair
from pruning.plan.parallel import Parallel, parse_parallel
from pruning.planning.count_plan import count_plan
from pruning.spec.spec import spec_of


@pytest.fixture
def outlined(tmp_path):
    def make(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return outline_model(str(tmp_path))

    return make


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
