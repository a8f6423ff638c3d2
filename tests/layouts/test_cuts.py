"""Published layouts cut to a few thin layers with the real number of experts, and random numbers.

Those whose names or structure the tiny models of `families` do not have: prediction heads, towers,
FP8, MXFP4, packed integers, discovered types. Each is exported, verified and loaded, and every
tensor of the export is compared with the bytes that it should be.
"""

import json
from dataclasses import replace

import pytest
import torch
from exports import export, failed, same_bytes, tensors_of, verified

from analysis.model.opening import load_model_index
from layouts.composites import COMPOSITES
from layouts.cuts import CUTS
from layouts.expectations import half_of, wanted_of, with_count, without_added
from layouts.hollow_models import header_of, write_random
from layouts.packed import PACKED
from layouts.published import LAYOUTS
from pruning.plan.heads import HeadChoice
from pruning.plan.plan import PruningPlan, model_ref
from pruning.surgery.manifest import read_manifest

THIN = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "vocab_size": 128,
    "shared_expert_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "first_k_dense_replace": 1, "mrope_section": [1, 1, 2],
    # of speech
    "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "output_dim": 64, "downsample_hidden_size": 8, "decoder_dim": 32, "codebook_size": 32,
}  # fmt: skip
# FP8 has scales for blocks of 128 x 128, and transformers wants matrices that divide into them.
BLOCKS = THIN | {
    "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "kv_lora_rank": 64,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "head_dim": 64,
    "index_head_dim": 128,
}  # fmt: skip
VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
    "patch_size": 4, "num_position_embeddings": 16, "image_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2,
}  # fmt: skip
QUICK = ("GLM-4.5-Air",)
# With heads whose weights can be ranked.
WITH_HEADS = ("GLM-4.5-Air", "GLM-4.7-Flash", "Qwen3-Next-80B-A3B-Instruct", "Qwen3.5-35B-A3B")


def thin(config, layers, sizes):
    """A configuration of a few thin layers; what routes stays."""
    made = {}
    for key, value in config.items():
        if key == "vision_config":
            same = value.keys() & VISION.keys()
            pairs = {name for name in same if isinstance(value[name], list)}
            made[key] = value | {name: VISION[name] for name in same}
            made[key] |= {name: [VISION[name]] * 2 for name in pairs}
            if value.get("deepstack_visual_indexes"):
                made[key]["deepstack_visual_indexes"] = [0]
        elif isinstance(value, dict):
            made[key] = thin(value, layers, sizes)
        elif key == "num_hidden_layers":
            made[key] = layers
        elif isinstance(value, list) and len(value) == config.get("num_hidden_layers"):
            made[key] = value[:layers]
        elif key == "q_lora_rank":
            made[key] = value and sizes["kv_lora_rank"] * 2
        elif key == "num_key_value_heads" and "kv_lora_rank" in config:
            made[key] = sizes["num_attention_heads"]  # latent attention has no groups of heads
        else:
            made[key] = sizes.get(key, value)
    return made


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CUTS],
    scope="module",
)
def cut(request, tmp_path_factory):
    """A thin layout, its header and folder, and the level of verification."""
    layout, (layers, level) = (LAYOUTS | COMPOSITES | PACKED)[request.param], CUTS[request.param]
    config = thin(layout.config, layers, BLOCKS if layout.stored else THIN)
    layout = replace(layout, config=config)
    layout = replace(layout, sparse=range(layout.text.get("first_k_dense_replace", 0), layers))
    folder = tmp_path_factory.mktemp("cut") / request.param
    header = header_of(layout, folder)
    write_random(header, folder)
    return layout, header, folder, level


def check_tensors(wanted, source, out):
    """The export holds what it should and nothing else, byte by byte."""
    before, after = tensors_of(source), tensors_of(out)
    assert after.keys() == wanted.keys()
    for name, want in wanted.items():
        tensor = before[want.source]
        if want.rows:
            rows = torch.tensor(want.rows)
            tensor = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
            tensor = tensor.index_select(want.axis, rows).view(before[want.source].dtype)
        assert same_bytes(after[name], tensor), name


def test_export_verify_and_load(cut, tmp_path):
    layout, header, source, level = cut
    model = load_model_index(str(source))
    ids = half_of(layout)
    kept = dict.fromkeys(layout.sparse, ids)
    out = tmp_path / "out"
    export(model, PruningPlan(model_ref(model), kept), out)
    report = verified(out, level=level, source=source, tokens=24)
    assert report.level == level
    check_tensors(wanted_of(layout, header, kept), source, out)
    again = load_model_index(str(out))
    found = [(layer.index, layer.num_experts, layer.top_k) for layer in again.layers]
    assert found == [(index, len(ids), layout.top_k) for index in layout.sparse]
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, out))
    listed = with_count(before, layout.experts, len(ids))
    assert without_added(after, before, len(ids)) == listed


@pytest.mark.slow
@pytest.mark.parametrize("cut", WITH_HEADS, indirect=True)
def test_heads_are_cut_as_the_trunk_is(cut, tmp_path):
    layout, header, source, _ = cut
    model = load_model_index(str(source))
    ids = half_of(layout)
    kept = dict.fromkeys(layout.sparse, ids)
    out = tmp_path / "out"
    export(model, PruningPlan(model_ref(model), kept), out, heads=HeadChoice.PRUNE)
    assert not failed(out, source=source, level="bytes")
    ((_, layers),) = read_manifest(out).heads.kept.items()
    (of_head,) = layers.values()
    assert len(of_head) == len(ids)
    check_tensors(wanted_of(layout, header, kept | {-1: of_head}, heads=True), source, out)
