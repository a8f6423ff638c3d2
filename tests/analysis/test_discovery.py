"""Discovery: architectures that nobody listed, understood from their checkpoint or refused."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from calibrations import LENGTHS, calibrated, make_sequences, table_of
from transformers import AutoModelForCausalLM, ExaoneMoeConfig

from analysis.calibration.weights import measure_weights
from analysis.drain import drain
from analysis.errors import UnsupportedModelError
from analysis.families.base import SlotKind
from analysis.families.discovery import discover
from analysis.families.listing import FAMILIES
from analysis.model.opening import load_model_index
from builders import tiny_checkpoint
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, model_ref
from pruning.surgery.export import export_checkpoint
from pruning.surgery.manifest import read_manifest

CONFIG = {
    "model_type": "new_moe",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
BLOCK = "model.layers.1.mlp"


def tensors(**changes):
    """Shapes of a checkpoint whose layer 1 has five experts; None removes one."""
    shapes = {
        "model.embed_tokens.weight": (32, 16),
        "model.layers.0.mlp.up_proj.weight": (8, 16),
        f"{BLOCK}.gate.weight": (5, 16),
        **{
            f"{BLOCK}.experts.{expert}.{name}.weight": shape
            for expert in range(5)
            for name, shape in (
                ("gate_proj", (8, 16)),
                ("up_proj", (8, 16)),
                ("down_proj", (16, 8)),
            )
        },
        **changes,
    }
    return {name: shape for name, shape in shapes.items() if shape is not None}


def stacked(first, last):
    """The same with stacked experts of these shapes."""
    plain = {name: shape for name, shape in tensors().items() if ".experts." not in name}
    return {**plain, f"{BLOCK}.experts.gate_up_proj": first, f"{BLOCK}.experts.down_proj": last}


@pytest.mark.parametrize("fused", [False, True], ids=["per-expert", "fused"])
@pytest.mark.parametrize("model_type", ["olmoe", "qwen3_moe"])
def test_the_common_layout_is_located_as_by_its_family(tmp_path, model_type, fused):
    tiny_checkpoint(tmp_path, model_type, fused=fused)
    known = load_model_index(str(tmp_path))
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "new_moe"}))
    found = load_model_index(str(tmp_path))
    assert (found.family.discovered, known.family.discovered) == (True, False)
    assert (found.layers, found.located) == (known.layers, known.located)
    assert (found.depth, found.dtype) == (known.depth, known.dtype)
    assert found.family.assumptions


def test_the_usual_biases_and_shared_experts_are_understood():
    shapes = tensors(
        **{
            f"{BLOCK}.e_score_correction_bias": (5,),
            f"{BLOCK}.shared_experts.up_proj.weight": (8, 16),
            "mtp.layers.0.mlp.experts.0.up_proj.weight": (8, 16),
        }
    )
    family = discover(CONFIG, shapes)
    slot = family.locate(f"{BLOCK}.e_score_correction_bias")
    assert (slot.kind, slot.layer) == (SlotKind.ROUTER, 1)
    assert family.locate(f"{BLOCK}.shared_experts.up_proj.weight") is None
    assert family.locate("mtp.layers.0.mlp.experts.0.up_proj.weight") is None
    assert family.shared is not None
    assert [layer.index for layer in family.layers(CONFIG)] == [1]


def test_layers_beyond_the_depth_are_not_counted_as_layers_with_experts():
    # As Ling-flash-2.0, whose prediction head is such a layer.
    head = {n.replace("layers.1", "layers.2"): s for n, s in tensors().items() if "layers.1" in n}
    said = discover(CONFIG, tensors(**head)).assumptions
    assert "layers with experts are those that hold some (1)" in said


def test_a_composite_is_understood_by_its_text_part():
    text = {key: value for key, value in CONFIG.items() if key != "model_type"}
    config = {"model_type": "new_vl", "text_config": text, "vision_config": {}}
    shapes = {
        name.replace("model.", "model.language_model."): shape for name, shape in tensors().items()
    }
    family = discover(config, shapes)
    assert family.layers(config) == replace(family).layers(config)
    assert family.trunks == ("model.language_model.layers",)
    assert family.config_with_count(config, 3)["text_config"]["num_experts"] == 3


@pytest.mark.parametrize(
    ("first", "last", "transposed"),
    [((5, 24, 16), (5, 16, 12), False), ((5, 16, 24), (5, 12, 16), True)],
)
def test_shapes_tell_the_orientation_of_stacked_experts(first, last, transposed):
    assert discover(CONFIG, stacked(first, last)).is_transposed is transposed


UP = "mlp.experts.0.up_proj.weight"
# A tensor more, or one with another shape; None removes it.
REFUSALS = {
    f"{BLOCK}.gate.weight": (None, "one router matrix .* has none"),
    f"{BLOCK}.router.weight": ((5, 16), "one router matrix .* has 2"),
    f"{BLOCK}.per_expert_scale": ((5,), r"mlp\.per_expert_scale may depend on the experts"),
    f"{BLOCK}.gate.temperature": ((1,), r"mlp\.gate\.temperature may depend"),
    f"{BLOCK}.experts.scale": ((1,), r"mlp\.experts\.scale may depend"),
    f"{BLOCK}.chunk_{UP[4:]}": ((8, 16), r"mlp\.chunk_experts\.0\.up_proj\.weight may depend"),
    "model.layers.1.moe.router.expert_bias": ((5,), "expert_bias has an entry for each of 5"),
    f"model.layers.1.vision_{UP}": ((8, 16), "one block .* has 2: mlp, vision_mlp"),
    f"vision.layers.0.{UP}": ((8, 16), "one stack .* has 2: model.layers, vision.layers"),
    f"{BLOCK}.experts.0.fourth_proj.weight": ((8, 16), "experts hold down_proj, fourth_proj"),
    "h.0.a.b.experts.0.w.weight": ((8, 16), r"h\.0\.a\.b\.experts\.0\.w\.weight is no"),
}
LAYOUTS = [
    *((tensors(**{name: shape}), message) for name, (shape, message) in REFUSALS.items()),
    (tensors(**{f"{BLOCK}.gate.weight": (7, 16)}), r"the shape \(7, 16\), but there are 5 experts"),
    (stacked((5, 24, 24), (5, 16, 16)), "can be read two ways"),
]


def test_a_norm_as_long_as_there_are_experts_is_no_routers():
    beside = {"self_attn.q_norm.weight": (5,), "shared_experts.up_proj.weight": (5, 16)}
    shapes = tensors(**{f"model.layers.1.{name}": shape for name, shape in beside.items()})
    assert discover(CONFIG, shapes).discovered


@pytest.mark.parametrize(("shapes", "message"), LAYOUTS, ids=[*REFUSALS, "rows", "stacked"])
def test_another_layout_is_refused_with_the_reason(shapes, message):
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        discover(CONFIG, shapes)
    assert str(caught.value).startswith("The model type 'new_moe' is not in the table")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": None}, "one key of experts per token .* has none"),
        ({"moe_topk": 2}, "has 2: moe_topk, num_experts_per_tok"),
        # A list, as Skywork-MoE and ERNIE-4.5-VL have, is not taken for 0.
        ({"num_experts": [5]}, r"num_experts = \[5\] is no number of experts"),
    ],
)
def test_counts_that_are_not_told_are_refused(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        discover({**CONFIG, **changes}, tensors())


@pytest.fixture
def _exaone_unlisted():
    with patch.dict(FAMILIES):  # which keeps their order, of which a page is written
        del FAMILIES["exaone_moe"]
        yield


@pytest.mark.usefixtures("_exaone_unlisted")
def test_an_unlisted_model_is_measured_and_masked_and_exported_bit_for_bit(tmp_path):
    # Its correction bias lies beside the router on disk and inside it in the loaded model.
    config = ExaoneMoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=40, moe_intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        num_experts=8, num_experts_per_tok=2, num_shared_experts=1, n_group=2, topk_group=1,
        first_k_dense_replace=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" not in name and "inv_freq" not in name:
                tensor.normal_(std=0.3)
    model.save_pretrained(tmp_path / "source")
    found = load_model_index(str(tmp_path / "source"))
    assert found.family.discovered
    run = calibrated(found, tmp_path / "stats", make_sequences(vocabulary=64))
    assert table_of(run)["num_tokens"].sum() == 2 * sum(LENGTHS)
    assert len(drain(measure_weights(found))) == 8 * 3
    plan = PruningPlan(model_ref(found), {1: (0, 3, 4, 6)})
    drain(export_checkpoint(found, plan, tmp_path / "out"))
    assert read_manifest(tmp_path / "out").assumptions == found.family.assumptions
    assert "discovered from the checkpoint" in (tmp_path / "out" / "README.md").read_text()
    pruned = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(3, 35)[None]
    with torch.no_grad(), masked(model, found.family, plan):
        inside = model(ids, use_cache=False).logits
    with torch.no_grad():
        assert torch.equal(pruned(ids, use_cache=False).logits, inside)
        assert not torch.equal(model(ids, use_cache=False).logits, inside)
