"""MoEModel and families: experts found by name, and refusals that say what would work."""

import json
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from exports import edit_tensors

from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.families.base import MoELayer, SlotKind
from analysis.families.listing import FAMILIES, family_of
from analysis.model.opening import load_model_index, resolve_model
from builders import edit_json, tiny_checkpoint


@contextmanager
def refused(error, match):
    """Refused in one line; yields what was raised."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def inside(trunk, block, name):
    """The name of a tensor in the block of layer 3; the block may be the layer itself."""
    return ".".join(filter(None, (trunk, "3", block, name)))


class TestFamilies:
    """What every family promises; a new one is measured by this."""

    @pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
    def family(self, request):
        return request.param

    def test_an_expert_tensor_can_be_renumbered(self, family):
        # Scales of quantised experts follow their expert.
        for (projection, stem), trunk, role in product(
            family.projections.items(), family.trunks, ("weight", "weight_scale_inv")
        ):
            name = f"{trunk}.12.{family.disk_block}.experts.37.{stem}.{role}"
            slot = family.locate(name)
            assert (slot.layer, slot.kind, slot.expert) == (12, SlotKind.EXPERT, 37)
            assert (slot.projection, slot.role) == (projection, role)
            assert slot.template.format(expert=37) == name
            assert slot.template.format(expert=0) == name.replace(".37.", ".0.")

    def test_tensors_of_experts_are_known_as_files_and_as_modules_name_them(self, family):
        for block, stacked, on_disk in (
            (family.module_block, family.stacked, False),
            (family.disk_block, family.stacked_on_disk, True),
        ):
            for projection, name in stacked.items():
                slot = family.locate(inside(family.trunks[-1], block, name))
                found = (slot.layer, slot.kind, slot.axis, slot.projection)
                assert found == (3, SlotKind.STACKED, 0, projection)
            for tensor in family.router_tensors:
                name = (on_disk and tensor.on_disk) or tensor.name
                slot = family.locate(inside(family.trunks[0], block, name))
                found = (slot.layer, slot.kind, slot.role, slot.axis)
                assert found == (3, SlotKind.ROUTER, tensor.name, tensor.axis)
        for prefix in ("mtp.", "model.vision.", "model.language_"):
            name = inside(f"{prefix}layers", family.disk_block, family.router_tensors[0].name)
            assert family.locate(name) is None

    def test_tensors_without_routed_experts_are_left_alone(self, family):
        for name in (
            "self_attn.q_proj.weight",
            "mlp.shared_expert.up_proj.weight",
            "mlp.shared_experts.down_proj.weight",
            "mlp.shared_expert_gate.weight",
            "mlp.shared_mlp.up_proj.weight",
            "shared_mlp.input_linear.weight",
            "mixer.shared_experts.up_proj.weight",
            "mixer.fc1_latent_proj.weight",
        ):
            assert family.locate(f"{family.trunks[0]}.0.{name}") is None, name
            assert family.routed_layer(f"{family.trunks[0]}.0.{name}") is None, name

    def test_a_new_count_is_written_to_every_key_that_is_present(self, family):
        counts = dict.fromkeys(family.count_keys, 7)
        config = {"model_type": family.model_type, **counts}
        inner = counts
        for key in reversed(family.config_path):
            config = {"model_type": family.model_type, "hidden_size": 8, key: inner}
            inner = config
        changed = family.config_with_count(config, 5)
        assert family.num_experts(family.text_config(changed)) == 5
        assert "7" not in json.dumps(changed)
        assert json.dumps(config).count("7") == len(counts)
        assert changed.keys() == config.keys()

    def test_a_count_is_found_under_each_of_its_names(self, family):
        for key in family.count_keys:
            assert family.num_experts({key: 11}) == 11


def test_a_composite_configuration_without_its_text_part_says_so():
    with pytest.raises(CheckpointError, match=r"this Aria model has no text_config"):
        FAMILIES["aria"].layers({"model_type": "aria"})


@pytest.mark.parametrize(
    ("model_type", "changes", "sparse"),
    [
        ("deepseek_v2", {"first_k_dense_replace": 2}, [2, 3, 4]),
        ("deepseek_v2", {}, [0, 1, 2, 3, 4]),
        ("deepseek_v3", {"n_group": 1, "topk_group": 1}, [3, 4]),  # three are dense by default
        ("glm4_moe", {}, [1, 2, 3, 4]),
        ("ernie4_5_moe", {}, [1, 2, 3, 4]),
        ("ernie4_5_moe", {"moe_layer_interval": 2, "moe_layer_end_index": 3}, [1, 3]),
        ("ernie4_5_moe", {"moe_layer_start_index": 2, "moe_layer_end_index": -1}, [2, 3, 4]),
        ("hy_v3", {}, [1, 2, 3, 4]),
        ("hy_v3", {"first_k_dense_replace": 3}, [3, 4]),
        ("hy_v3", {"mlp_layer_types": ["sparse", *["dense"] * 3, "sparse"]}, [0, 4]),
        ("laguna", {}, [1, 2, 3, 4]),
        ("laguna", {"mlp_only_layers": [], "decoder_sparse_step": 2}, [1, 3]),
        ("axk1", {"moe_layer_freq": 2, "n_group": 1, "topk_group": 1}, [2, 4]),
        ("axk2", {"n_group": None}, [1, 2, 3, 4]),
        ("cohere2_moe", {}, [0, 1, 2, 3, 4]),
        ("exaone_moe", {}, [1, 2, 3, 4]),
        ("flint", {}, [2, 3, 4]),
        ("glm4_moe_lite", {}, [1, 2, 3, 4]),
        ("glm_moe_dsa", {}, [3, 4]),
        ("hy_v4", {"mlp_layer_types": [*["sparse"] * 4, "dense"]}, [0, 1, 2, 3]),
        ("mellum", {}, [0, 1, 2, 3, 4]),
        ("mimo_v2_flash", {"moe_layer_freq": [0, 1, 1, 1, 1]}, [1, 2, 3, 4]),
        ("solar_open", {"first_k_dense_replace": 2}, [0, 1, 2, 3, 4]),  # which it ignores
        ("afmoe", {}, [1, 2, 3, 4]),
        ("kimi_linear", {}, [1, 2, 3, 4]),
        ("bailing_hybrid", {"n_group": 1, "topk_group": 1}, [2, 3, 4]),
        ("jamba", {}, [1, 3]),
        ("jamba", {"expert_layer_period": 3, "expert_layer_offset": 0}, [0, 3]),
        ("lfm2_moe", {}, [2, 3, 4]),
        ("lfm2_moe", {"num_dense_layers": 0}, [0, 1, 2, 3, 4]),
        ("nemotron_h", {"hybrid_override_pattern": "ME*E-"}, [1, 3]),
        ("nemotron_h", {"layers_block_type": ["moe", "mamba", "moe"]}, [0, 2]),
        ("qwen3_5_moe_text", {"decoder_sparse_step": 2}, [0, 1, 2, 3, 4]),  # which it ignores
        ("qwen3_moe", {}, [0, 1, 2, 3, 4]),
        ("qwen3_moe", {"decoder_sparse_step": 2}, [1, 3]),  # (index + 1) % 2 == 0
        ("qwen3_moe", {"decoder_sparse_step": 1, "mlp_only_layers": [0, 3]}, [1, 2, 4]),
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [3]),
        ("qwen3_moe", {"mlp_only_layers": None}, [0, 1, 2, 3, 4]),
    ],
)
def test_sparse_layers_are_those_of_the_family(model_type, changes, sparse):
    family = FAMILIES[model_type]
    config = {"num_hidden_layers": 5, family.count_keys[0]: 6, family.top_k_key: 2, **changes}
    assert [layer.index for layer in family.layers(config)] == sparse


def test_a_list_of_kinds_that_ends_too_early_is_refused():
    config = {"num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 2}
    with refused(CheckpointError, r"mlp_layer_types = \['sparse'\]; .* one kind per layer"):
        FAMILIES["laguna"].layers({**config, "mlp_layer_types": ["sparse"]})


def test_a_key_with_two_names_is_read_and_written_under_those_that_are_there():
    family, width = FAMILIES["hy_v3"], "moe_intermediate_size"
    for names in ((width,), ("expert_hidden_dim",), (width, "expert_hidden_dim")):
        config = dict.fromkeys(names, 8)
        assert family.text_config(config)[width] == 8
        assert family.edited(config, **{width: 6}) == dict.fromkeys(names, 6)
    assert family.edited({}, **{width: 6}) == {width: 6}
    with refused(CheckpointError, f"{width} = 8 and expert_hidden_dim = 9, which are one number"):
        family.text_config({width: 8, "expert_hidden_dim": 9})


def test_the_keys_of_published_configurations_are_read():
    kimi = {"num_hidden_layers": 27, "num_experts": 256, "num_experts_per_token": 8}
    kimi |= {"num_expert_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    found = FAMILIES["kimi_linear"].layers(kimi)
    assert found == tuple(MoELayer(index, 256, 8) for index in range(1, 27))
    ling = {"num_hidden_layers": 24, "num_experts": 256, "num_experts_per_tok": 8}
    ling |= {"n_group": 8, "topk_group": 4, "first_k_dense_replace": 1}
    found = FAMILIES["bailing_hybrid"].layers(ling)
    assert found == tuple(MoELayer(index, 256, 8, 8, 2) for index in range(1, 24))
    # The same as transformers saves it.
    saved = {"num_experts_per_token": 8, "num_expert_group": 8, "num_experts_per_tok": None}
    assert FAMILIES["bailing_hybrid"].layers({**ling, **saved, "n_group": None}) == found


NORM = {"model.norm.weight": (4,)}
# A configuration, shapes of the checkpoint if they are known, and what is said.
NOT_SUPPORTED = {
    "refused": (
        {"model_type": "dbrx"},
        r"'dbrx' is not supported.*, mixtral, nemotron_h, olmoe, ",
        None,
    ),
    "dense": ({"model_type": "llama"}, "This llama model is dense.* nothing to prune[.]$", NORM),
    "experts of a part": (
        {"model_type": "new_vl", "text_config": {"num_experts": 4}},
        "'new_vl' is not in the table",
        None,
    ),
    "a key of its own": (  # as SmallThinker's: of the configuration alone nothing else is known
        {"model_type": "smallthinker", "moe_num_primary_experts": 64},
        r"has experts \(moe_num_primary",
        None,
    ),
    "a key of its own, without experts": (
        {"model_type": "smallthinker", "moe_num_primary_experts": 64},
        "This smallthinker model is dense",
        NORM,
    ),
    "a count of 0": ({"model_type": "new_lm", "num_experts": 0}, "This new_lm model is den", NORM),
    "a wrapper around a dense model": (
        {"model_type": "mistral3", "text_config": {"model_type": "mistral"}},
        "This mistral3 model is dense",
        None,
    ),
}


@pytest.mark.parametrize(("config", "says", "shapes"), NOT_SUPPORTED.values(), ids=NOT_SUPPORTED)
def test_a_type_that_is_not_supported_is_told_from_a_dense_one(config, says, shapes):
    with refused(UnsupportedModelError, says):
        family_of(config, *filter(None, [shapes]))


BAD_CONFIG = {
    "two expert counts": ({"num_local_experts": 9}, "num_experts = 7, num_local_experts = 9"),
    "no expert count": ({"num_experts": None}, "none of num_experts, num_local_experts"),
    "no top_k": ({"num_experts_per_tok": None}, r"config\.json has no num_experts_per_tok"),
    "no depth": ({"num_hidden_layers": None}, r"config\.json has no num_hidden_layers"),
    "a depth in words": ({"num_hidden_layers": "three"}, "num_hidden_layers = 'three'"),
    "no experts at all": ({"num_experts": 0}, "num_experts = 0; it must be a whole number"),
    "a count per layer": ({"num_experts": [7, 7, 7]}, r"num_experts = \[7, 7, 7\]"),
    "more selected than held": ({"num_experts_per_tok": 8}, "per_tok = 8 .*, but the model has 7"),
    "fewer tensors": ({"num_experts": 9}, "Layer 0 holds 7 experts and its router .* says 9;"),
    "more tensors": ({"num_experts": 5}, r"0 holds an expert 6, .* says 5 experts \(0\.\.4\)"),
    "fewer layers": ({"num_hidden_layers": 4}, "Layer 3 lacks"),
    "a quantisation in words": ({"quantization_config": "x"}, "config.json is 'x'; it needs an"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_CONFIG.values(), ids=BAD_CONFIG)
def test_a_configuration_that_cannot_be_gives_one_clear_line(tmp_path, changes, message):
    tiny_checkpoint(tmp_path, "olmoe")
    edit_json(tmp_path / "config.json", **changes)
    with refused(CheckpointError, message):
        load_model_index(str(tmp_path))


def without(*names):
    return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


EXPERTS, ROUTER = "model.layers.1.mlp.experts", "model.layers.2.mlp.gate.weight"
BAD_TENSORS = {
    "no matrix": (False, without(f"{EXPERTS}.4.up_proj.weight"), r"lacks the expert 4's up .*\(1 "),
    "no router": (False, without(ROUTER), "Layer 2 has no router tensor"),
    "a router has a row less": (
        False,
        lambda tensors: tensors | {ROUTER: torch.ones(6, 16)},
        rf"{ROUTER} has 6 rows, but config\.json says 7 experts",
    ),
    "no stack": (True, without(f"{EXPERTS}.down_proj"), "1 lacks the stacked down projection"),
    "a stack is short": (
        True,
        lambda tensors: tensors | {f"{EXPERTS}.down_proj": torch.ones(5, 16, 24)},
        r"experts\.down_proj holds 5 experts, but config\.json says 7",
    ),
}


@pytest.mark.parametrize(("fused", "change", "message"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_tensors_that_do_not_fit_the_configuration_are_named(tmp_path, fused, change, message):
    tiny_checkpoint(tmp_path, "olmoe", fused=fused, shards=1)
    edit_tensors(tmp_path / "model.safetensors", change)
    with refused(CheckpointError, message):
        load_model_index(str(tmp_path))


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "nowhere", "a/b/c"])
def test_a_name_of_neither_folder_nor_hub_id_is_refused(name):
    with refused(CheckpointError, rf"^{name} .*give the folder of a checkpoint, a hub id"):
        resolve_model(name)


def test_a_folder_is_preferred_and_gives_the_model_its_name(tmp_path):
    tiny_checkpoint(tmp_path / "my-model", "olmoe")
    assert resolve_model(str(tmp_path / "my-model")) == tmp_path / "my-model"
    assert load_model_index(str(tmp_path / "my-model")).name == "my-model"
    assert load_model_index(str(tmp_path / "my-model") + "/").name == "my-model"


def test_counts_given_per_layer_are_kept_as_lists():
    hunyuan = FAMILIES["hunyuan_v1_moe"]
    config = {"num_hidden_layers": 2, "num_experts": [8, 8], "moe_topk": [2, 2]}
    assert hunyuan.layers(config) == (MoELayer(0, 8, 2), MoELayer(1, 8, 2))
    assert hunyuan.config_with_count(config, 6)["num_experts"] == [6, 6]
    with pytest.raises(CheckpointError, match=r"num_experts = \[8, 6\], but only one number"):
        hunyuan.layers({**config, "num_experts": [8, 6]})
    # transformers reads a number a layer of this key.
    assert hunyuan.layers({**config, "moe_topk": [2, 1]}) == (MoELayer(0, 8, 2), MoELayer(1, 8, 1))
    with pytest.raises(CheckpointError, match=r"moe_topk = \[2, 1, 1\], but only one number"):
        hunyuan.layers({**config, "moe_topk": [2, 1, 1]})
    with pytest.raises(CheckpointError, match="moe_topk = 9 experts per token"):
        hunyuan.layers({**config, "moe_topk": [2, 9]})


def test_phimoe_always_routes_to_two_experts():
    config = {"num_hidden_layers": 1, "num_local_experts": 6, "num_experts_per_tok": 4}
    assert FAMILIES["phimoe"].layers(config) == (MoELayer(0, 6, 2),)


def test_qwen3_moe_writes_both_names_of_the_count():
    family = FAMILIES["qwen3_moe"]
    assert family.config_with_count({"num_experts": 8}, 6) == {
        "num_experts": 6,
        "num_local_experts": 6,
    }
    assert FAMILIES["mixtral"].config_with_count({"num_local_experts": 8}, 6) == {
        "num_local_experts": 6
    }


def test_layer_names_are_whole_words():
    # A longer name that begins or ends like one of ours is another tensor.
    olmoe = FAMILIES["olmoe"]
    assert olmoe.locate("model.layers.0.mlp.gate.weight_scale") is None
    assert olmoe.locate("model.layers.0.mlp.gates.weight") is None
    assert olmoe.locate("xmodel.layers.0.mlp.gate.weight") is None
