"""Virtual pruning against physical pruning: bit for bit, and without a trace afterwards."""

import pytest
import torch
from accelerate import cpu_offload
from oracles import TOKENS, logits_of, physically_pruned
from torch import nn
from transformers import AutoModelForCausalLM

from analysis.errors import PlanError, UnsupportedModelError
from analysis.families import FAMILIES
from builders import MODEL_TYPES, NUM_EXPERTS, SPARSE_LAYERS, tiny_model
from pruning.masking import masked
from pruning.plan import ModelRef, PruningPlan

REF = ModelRef("tiny", "00" * 32)


def plan_of(model_type, keeps):
    """Keep so many experts in each sparse layer, always other ones; never simply the first."""
    kept = {}
    for layer, keep in zip(SPARSE_LAYERS[model_type], keeps, strict=True):
        seeded = torch.Generator().manual_seed(layer + 1)
        ids = torch.randperm(NUM_EXPERTS[model_type], generator=seeded)
        kept[layer] = tuple(sorted(ids[:keep].tolist()))
    return PruningPlan(REF, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keeps", [(2, 2, 2), (4, 4, 4), (5, 5, 5), (2, 5, 3)])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_masking_is_bit_for_bit_physical_pruning(model_type, keeps, dtype):
    model, plan = tiny_model(model_type, dtype=dtype), plan_of(model_type, keeps)
    before = logits_of(model)
    with masked(model, FAMILIES[model_type], plan):
        inside = logits_of(model)
    assert torch.equal(inside, logits_of(physically_pruned(model, plan.kept)))
    assert not torch.equal(inside, before)
    assert torch.equal(logits_of(model), before)


def test_everything_is_restored_after_an_exception():
    model, plan = tiny_model("olmoe"), plan_of("olmoe", (2, 3, 4))
    before = logits_of(model)
    with pytest.raises(ZeroDivisionError), masked(model, FAMILIES["olmoe"], plan):
        raise ZeroDivisionError
    assert torch.equal(logits_of(model), before)
    gate = model.model.layers[1].mlp.gate
    assert isinstance(gate.weight, nn.Parameter)
    assert (gate.num_experts, gate.top_k) == (7, 2)
    assert "forward" not in gate.__dict__
    assert set(dict(gate.named_parameters())) == {"weight"}


def test_masking_twice_at_once_is_refused():
    model, plan = tiny_model("olmoe"), plan_of("olmoe", (2, 3, 4))
    with masked(model, FAMILIES["olmoe"], plan):
        first = logits_of(model)
        with pytest.raises(RuntimeError, match="masked already; leave that block"):
            masked(model, FAMILIES["olmoe"], plan).__enter__()
        assert torch.equal(logits_of(model), first)
    with masked(model, FAMILIES["olmoe"], plan):
        assert torch.equal(logits_of(model), first)


def test_masking_with_router_logits_in_the_configuration():
    model = tiny_model("olmoe", output_router_logits=True)
    plan = plan_of("olmoe", (3, 3, 3))
    with masked(model, FAMILIES["olmoe"], plan):
        assert model(TOKENS).router_logits is None
    assert model.config.output_router_logits is True


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_masking_is_exact_for_layers_that_accelerate_offloads(place, checkpoint, tmp_path):
    source = checkpoint("qwen3_moe")
    plan = plan_of("qwen3_moe", (3, 4, 2))
    wanted = logits_of(physically_pruned(source.model, plan.kept))
    if place == "disk":
        held = ("embed_tokens", "norm", "rotary_emb", "layers.0", "layers.1")
        device_map = {"lm_head": "cpu", **{f"model.{name}": "cpu" for name in held}}
        device_map |= {"model.layers.2": "disk", "model.layers.3": "disk"}
        offloaded = AutoModelForCausalLM.from_pretrained(
            source.path, device_map=device_map, offload_folder=tmp_path
        )
    else:
        offloaded = cpu_offload(AutoModelForCausalLM.from_pretrained(source.path), "cpu")
    assert offloaded.model.layers[2].mlp.gate.weight.device.type == "meta"
    before = logits_of(offloaded)
    with masked(offloaded, FAMILIES["qwen3_moe"], plan):
        assert torch.equal(logits_of(offloaded), wanted)
    assert torch.equal(logits_of(offloaded), before)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({1: (0, 1)}, "layer 1, which has no router"),  # dense
        ({9: (0, 1)}, "layer 9, which has no router"),
        ({2: (0, 6)}, r"expert 6 in layer 2, which has 6 experts \(0\.\.5\)"),
    ],
)
def test_a_plan_that_does_not_fit_the_loaded_model_is_refused(kept, message):
    model = tiny_model("qwen3_moe")
    with pytest.raises(PlanError, match=message):
        masked(model, FAMILIES["qwen3_moe"], PruningPlan(REF, kept)).__enter__()
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_an_unknown_router_tensor_is_refused():
    model = tiny_model("olmoe")
    model.model.layers[1].mlp.gate.register_buffer("e_score_correction_bias", torch.zeros(7))
    with pytest.raises(UnsupportedModelError, match="layer 1 holds 'e_score_correction_bias'"):
        masked(model, FAMILIES["olmoe"], plan_of("olmoe", (3, 3, 3))).__enter__()
