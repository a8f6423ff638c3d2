"""Fewer bits: weights against llama.cpp's own quantisers and numpy, bytes against both."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from oracles import logits_of, physically_pruned
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analysis.errors import PlanError
from analysis.families.listing import FAMILIES
from analysis.model.opening import load_model_index
from builders import MODEL_TYPES, SPARSE_LAYERS, tiny_model
from families import tiny_models
from families.configs import BY_NAME
from pruning.engine.masking import masked
from pruning.engine.quantised import quantised
from pruning.plan.bits import BITS, FORMATS, GROUP, OWN, bits_words
from pruning.plan.plan import PruningPlan, fit_plan, keep_all
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.sizes import BYTES, ModelPart, size_report, weight_bytes
from pruning.requests.evaluation import EvaluateRequest
from pruning.spec.base import validated
from tests.pruning.test_masking import REF, plan_of

ENGINE = {name: form.engine for name, form in FORMATS.items() if form.engine}
# With halves, equal magnitudes and zeros, where rules differ.
WEIGHTS = st.one_of(
    st.floats(-4, 4, width=16),
    st.sampled_from([0.0, 0.5, -0.5, 0.75, 1.75, 2.5, -3.5, 5.0, 6.0, -7.0, 127.0, -8.0, 8.0]),
)


def with_numpy(row, bits):
    """One group, weight by weight, in float32."""
    f = np.float32
    row = row.astype(f)
    if bits in ("8", "mxfp4"):
        raise NotImplementedError  # see llama.cpp's own
    if bits in ("3", "2"):
        low, most = row.min(), f(2 ** int(bits) - 1)
        scale = f((row.max() - low) / most)
        inverse = f(1 / scale) if scale else f(0)
        codes = [min(most, np.trunc(f(f((x - low) * inverse) + f(0.5)))) for x in row]
        stored = f(np.float16(scale)), f(np.float16(low))
        return np.array([f(f(code * stored[0]) + stored[1]) for code in codes], f)
    half = 2 ** (int(bits) - 1)
    extreme = max(row, key=abs)  # the first of several
    scale = f(extreme / f(-half))
    inverse = f(1 / scale) if scale else f(0)
    sums = [f(float(x) * float(inverse) + half + 0.5) for x in row]
    codes = [min(2 * half - 1, max(0, int(sum_))) for sum_ in sums]
    return np.array([f((code - half) * f(np.float16(scale))) for code in codes], f)


@given(arrays.arrays(np.float32, (3, 2 * GROUP), elements=WEIGHTS))
def test_weights_are_those_of_llama_cpp_bit_for_bit(weights):
    for bits, engine in ENGINE.items():
        kind = GGMLQuantizationType[engine]
        stored = quants.quantize(weights, kind)
        expected = quants.dequantize(stored, kind)
        np.testing.assert_array_equal(quantised(torch.from_numpy(weights), bits).numpy(), expected)
        assert stored.nbytes == len(weights) * FORMATS[bits].row_bytes(weights.shape[1])


@given(arrays.arrays(np.float32, st.tuples(st.just(2), st.integers(1, 75)), elements=WEIGHTS))
def test_weights_are_those_of_numpy_also_in_a_short_last_group(weights):
    for bits in ("6", "5", "4", "3", "2"):
        expected = [
            np.concatenate(
                [
                    with_numpy(row[start : start + GROUP], bits)
                    for start in range(0, len(row), GROUP)
                ]
            )
            for row in weights
        ]
        np.testing.assert_array_equal(quantised(torch.from_numpy(weights), bits).numpy(), expected)


def test_bytes_count_codes_and_scales():
    # 40 weights: a group of 32 and one of 8. Q4_0: 16 + 2 and 4 + 2; 3 bits: 12 + 4 and 3 + 4.
    assert FORMATS["4"].row_bytes(40) == 18 + 6
    assert FORMATS["3"].row_bytes(40) == 16 + 7
    assert FORMATS["mxfp4"].row_bytes(32) == 17
    per_weight = {name: form.per_weight for name, form in FORMATS.items()}
    assert per_weight == {
        "8": 8.5, "6": 6.5, "5": 5.5, "4": 4.5, "mxfp4": 4.25, "3": 4.0, "2": 3.0
    }  # fmt: skip


def all_quantised(model, plan, bits):
    """The model, pruned and with its experts' weights rounded in place, matrix by matrix."""
    pruned = physically_pruned(model, plan.kept)
    for module in pruned.modules():
        if not hasattr(module, "has_gate"):
            continue
        for name in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj"):
            for matrix in getattr(module, name).data:
                rows = matrix.T if module.is_transposed else matrix
                rows.copy_(quantised(rows.contiguous(), bits))
    return pruned


@pytest.mark.parametrize("bits", ["4", "2"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_masked_model_computes_what_the_quantised_pruned_one_does(model_type, bits):
    model, family = tiny_model(model_type), FAMILIES[model_type]
    plan = plan_of(model_type, (2, 4, 2)[: len(SPARSE_LAYERS[model_type])])
    before = logits_of(model)
    with masked(model, family, replace(plan, bits=bits)):
        inside = logits_of(model)
    assert torch.equal(inside, logits_of(all_quantised(model, plan, bits)))
    with masked(model, family, plan):
        assert not torch.equal(inside, logits_of(model))
    assert torch.equal(logits_of(model), before)


def test_groups_of_a_plan_of_neurons_count_those_that_stay():
    model, kept = tiny_model("olmoe"), (0, 2, 5)
    neurons = {1: {0: kept}}
    whole = plan_of("olmoe", (7, 7, 7))
    plan = PruningPlan(REF, whole.kept, granularity="neuron", kept_neurons=neurons, bits="4")
    with masked(model, FAMILIES["olmoe"], plan):
        inside = logits_of(model)
    experts = model.model.layers[1].mlp.experts
    down = experts.down_proj.data[0].clone()
    everywhere = all_quantised(model, whole, "4")
    changed = everywhere.model.layers[1].mlp.experts.down_proj.data[0]
    changed.zero_()
    changed[:, kept] = quantised(down[:, kept], "4")
    torch.testing.assert_close(inside, logits_of(everywhere))


def test_bits_belong_to_the_plan():
    plan = plan_of("olmoe", (2, 2, 2))
    simulated = replace(plan, bits="4")
    assert simulated.digest != plan.digest != replace(plan, bits="3").digest
    assert plan_from_dict(simulated.to_dict()) == simulated
    assert "bits" not in plan.to_dict()
    with pytest.raises(PlanError, match="'bits' is '7'"):
        plan_from_dict({**plan.to_dict(), "bits": "7"})


def rounded_on_disk(source, target, layer_bits):
    """Copy a checkpoint with each layer's experts rounded, group by group; bytes that they take."""
    shutil.copytree(source, target)
    tensors, nbytes = load_file(target / "model.safetensors"), 0
    for name, tensor in tensors.items():
        at = re.search(r"layers\.(\d+)\..*experts\.(\d+\.)?(gate|up|down|gate_up)_proj", name)
        if not at or tensor.ndim < 2 or name.endswith("bias"):
            nbytes += tensor.numel() * 4 if at else 0
            continue
        bits = layer_bits.get(int(at[1]))
        # Fused: (experts, inputs, outputs); else a matrix (outputs, inputs) for each expert.
        matrices = tensor.mT.reshape(-1, tensor.shape[1]) if tensor.ndim == 3 else tensor
        if bits is None:
            nbytes += tensor.numel() * 4
            continue
        rows = [
            [with_numpy(row[at : at + GROUP], bits) for at in range(0, len(row), GROUP)]
            for row in matrices.numpy()
        ]
        code, scales = (int(bits), 2 if bits == "5" else 4)
        nbytes += sum(-(-len(group) * code // 8) + scales for row in rows for group in row)
        new = torch.tensor(np.array([np.concatenate(row) for row in rows]))
        tensors[name] = new.reshape(tensor.mT.shape).mT.contiguous() if tensor.ndim == 3 else new
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return nbytes


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager"
    )


def logits_in_float64(model):
    with torch.no_grad():
        return model(torch.arange(24)[None], use_cache=False).logits


@pytest.mark.parametrize("name", ["olmoe", "gpt_oss"])  # a tensor for each expert; fused
def test_layers_have_bits_of_their_own(name, tmp_path):
    case = BY_NAME[name]
    tiny_models.tiny_model(case).save_pretrained(tmp_path / "source")
    first, second = case.sparse[:2]
    layer_bits = {second: "2", first: "5"}
    nbytes = rounded_on_disk(tmp_path / "source", tmp_path / "rounded", layer_bits)
    described = load_model_index(str(tmp_path / "source"))
    plan = fit_plan(replace(keep_all(described), layer_bits=layer_bits), described)
    model = loaded(tmp_path / "source")
    with masked(model, FAMILIES[case.model_type], plan):
        inside = logits_in_float64(model)
    assert torch.equal(inside, logits_in_float64(loaded(tmp_path / "rounded")))
    assert not torch.equal(inside, logits_in_float64(model))
    report = size_report(described, plan)
    assert report.after[ModelPart.EXPERTS][BYTES] == nbytes
    # Of a whole: the bytes that each layer saves alone.
    full = weight_bytes(described, replace(keep_all(described), layer_bits={first: "5"}))
    other = weight_bytes(described, replace(keep_all(described), layer_bits={second: "2"}))
    head = described.tied_embedding.nbytes if described.tied_embedding else 0
    assert report.bytes_after == full + other - described.checkpoint.nbytes - head
    words = plan_from_dict(json.loads(plan.to_json()))
    assert words == plan and words.digest == plan.digest
    assert plan.bits_by_layer == dict.fromkeys(case.sparse, OWN) | layer_bits


def test_bits_of_layers_belong_to_the_plan():
    model = load_model_index("demo")
    plan, layers = keep_all(model), [layer.index for layer in model.layers]
    mixed = replace(plan, layer_bits={layers[1]: "4", layers[0]: "8"})
    assert [*mixed.layer_bits] == layers[:2] and mixed.in_own_bits == plan
    other = replace(plan, layer_bits={layers[0]: "4", layers[1]: "8"})
    assert len({one.digest for one in (plan, mixed, other, replace(plan, bits="4"))}) == 4
    # One format of all layers is the plan's.
    alike = fit_plan(replace(plan, layer_bits=dict.fromkeys(layers, "4")), model)
    assert (alike.bits, alike.layer_bits) == ("4", {})
    raw = mixed.to_dict()
    for wrong, message in (
        ({"bits": "4"}, "give one for all layers"),
        ({"layer_bits": {"0": "16"}}, "Leave out a layer that stays as it is"),
        ({"layer_bits": {"0": ["4"]}}, "has \\['4'\\] for layer 0"),
        ({"layer_bits": {"x": "4"}}, "names 'x'"),
        ({"layer_bits": ["4"]}, "no object"),
    ):
        with pytest.raises(PlanError, match=message):
            plan_from_dict({**raw, **wrong})
    with pytest.raises(PlanError, match="names layer 99"):
        fit_plan(replace(plan, layer_bits={99: "4"}), model)


def test_a_list_of_bits():
    asked = {"model": "demo", "corpora": ["demo-code"]}
    # YAML reads 16 as a number.
    several = validated(EvaluateRequest, {**asked, "bits": [16, "4", "mxfp4", "4"]})
    assert several.bits == ("16", "4", "mxfp4")
    assert (OWN, *FORMATS) == BITS
    assert [bits_words(bits) for bits in ("", "16", "4", "mxfp4")] == [
        "",
        "",
        ", 4 bits",
        ", MXFP4",
    ]
