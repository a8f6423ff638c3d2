"""Virtual pruning: against other definitions of it, and without a trace afterwards.

That it is physical pruning bit for bit, `tests/families/test_conformance.py` says of every family.
"""

import pytest
import torch
from oracles import TOKENS, logits_of, physically_pruned
from torch import nn
from transformers import AutoModelForCausalLM

from analysis.errors import PlanError, UnsupportedModelError
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from builders import MODEL_TYPES, NUM_EXPERTS, SPARSE_LAYERS, tiny_model
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan

REF = ModelRef("tiny", "00" * 32)


def plan_of(model_type, keeps):
    """Keep so many experts in each sparse layer, always other ones; never simply the first."""
    kept = {}
    for layer, keep in zip(SPARSE_LAYERS[model_type], keeps, strict=True):
        seeded = torch.Generator().manual_seed(layer + 1)
        ids = torch.randperm(NUM_EXPERTS[model_type], generator=seeded)
        kept[layer] = tuple(sorted(ids[:keep].tolist()))
    return PruningPlan(REF, kept)


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


def test_masking_is_exact_for_layers_that_accelerate_puts_on_disk(checkpoint, tmp_path):
    source = checkpoint("qwen3_moe")
    plan = plan_of("qwen3_moe", (3, 4, 2))
    wanted = logits_of(physically_pruned(source.model, plan.kept))
    held = ("embed_tokens", "norm", "rotary_emb", "layers.0", "layers.1")
    device_map = {"lm_head": "cpu", **{f"model.{name}": "cpu" for name in held}}
    device_map |= {"model.layers.2": "disk", "model.layers.3": "disk"}
    offloaded = AutoModelForCausalLM.from_pretrained(
        source.path, device_map=device_map, offload_folder=tmp_path
    )
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


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_masking_agrees_with_minus_infinity_logits(model_type):
    # A second oracle: the router's definition written out, with removed experts at -inf.
    plan = plan_of(model_type, (3, 3, 3))
    model, reference = tiny_model(model_type), tiny_model(model_type)

    def hook_for(ids):
        def hook(gate, args, _output):
            logits = args[0].reshape(-1, gate.weight.shape[1]) @ gate.weight.T
            hidden = torch.full_like(logits, -torch.inf)
            hidden[:, list(ids)] = logits[:, list(ids)]
            values, picked = hidden.softmax(-1).topk(gate.top_k)
            if model_type != "olmoe":  # both renormalise; OLMoE's default is not to
                values = values / values.sum(-1, keepdim=True)
            return logits, values, picked

        return hook

    for layer, ids in plan.kept.items():
        reference.model.layers[layer].mlp.gate.register_forward_hook(hook_for(ids))
    with masked(model, FAMILIES[model_type], plan):
        # Softmax over fewer columns adds in another order, hence no equality of bits.
        torch.testing.assert_close(logits_of(model), logits_of(reference), atol=1e-5, rtol=1e-5)


def test_an_exception_inside_the_router_restores_its_tensors():
    model, plan = tiny_model("olmoe"), plan_of("olmoe", (2, 3, 4))
    with masked(model, FAMILIES["olmoe"], plan), pytest.raises(RuntimeError):
        model.model.layers[0].mlp.gate(torch.zeros(2, 5, dtype=torch.float64))
    assert model.model.layers[0].mlp.gate.weight.shape == (7, 16)


def test_layers_that_are_absent_or_whole_stay_as_they_are():
    model = tiny_model("olmoe")
    before = logits_of(model)
    with masked(model, FAMILIES["olmoe"], PruningPlan(REF, {1: tuple(range(7))})):
        assert torch.equal(logits_of(model), before)


def test_gradients_reach_the_kept_rows_of_the_router_only():
    model = tiny_model("mixtral")
    with masked(model, FAMILIES["mixtral"], PruningPlan(REF, {1: (1, 4, 5)})):
        model(TOKENS).logits.square().sum().backward()
    rows = model.model.layers[1].mlp.gate.weight.grad.abs().sum(dim=1) > 0
    assert rows.nonzero().flatten().tolist() == [1, 4, 5]
