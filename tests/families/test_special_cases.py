"""What only some families have: groups of experts, parts for other media, dense models."""

import json
import shutil

import pandas as pd
import pytest
import torch
from exports import edit_tensors, export, keeping_neurons, shards_of, tensors_of
from safetensors.torch import save_file

from analysis.calibration.weights import measure_weights
from analysis.drain import drain
from analysis.errors import PlanError, UnsupportedModelError, UserError
from analysis.families.base import SlotKind
from analysis.families.listing import FAMILIES, family_of
from analysis.model.heads import beside_text
from analysis.model.opening import load_model_index
from builders import edit_json
from families.built import stock_load
from families.configs import BY_NAME, cases_where
from families.physical import logits_of, physically_pruned
from families.published import as_published
from families.tiny_models import tiny_config, tiny_model
from pruning import load_pruned
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.widths import WidthChoice, WidthMode

GROUPED = cases_where(lambda case: case.groups > 1)


@pytest.mark.parametrize("case", GROUPED)
@pytest.mark.parametrize(
    "kept",
    [
        (0, 1, 2, 4, 5, 8, 9, 10),  # 3 + 2 + 3
        (0, 1, 2, 3, 4, 5, 6, 7),  # a whole group gone
        (0, 1, 4, 5, 8, 9, 10),  # not divisible
    ],
)
def test_groups_of_different_sizes_are_refused(built, tmp_path, case, kept):
    # The pruned model would part its experts into groups anew, by position, and compute otherwise.
    source = built(case)
    described = source.described()
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, kept))
    with pytest.raises(UserError, match="group"):
        export(described, plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = logits_of(source.model)
    with pytest.raises(UserError, match="group"):
        masked(source.model, described.family, plan).__enter__()
    assert torch.equal(logits_of(source.model), before)


def test_groups_judged_by_two_need_two_experts(built, tmp_path):
    case = BY_NAME["deepseek_v3-groups"]
    described = built(case).described()
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, (0, 4, 8)))
    with pytest.raises(UserError, match="group"):
        export(described, plan, tmp_path / "out")


@pytest.mark.parametrize("case", cases_where(lambda case: case.composite))
def test_parts_for_other_media_are_copied(built, tmp_path, case):
    described = built(case).described()
    size = case.experts // case.groups
    kept = tuple(expert for expert in range(case.experts) if expert % size)
    export(described, PruningPlan(model_ref(described), dict.fromkeys(case.sparse, kept)), tmp_path)
    before, after = map(tensors_of, (described.checkpoint.path, tmp_path))
    text = ("language_model", "lm_head", "model.embed_tokens", "model.layers.", "model.norm.")
    beside = {name for name in before if not any(word in name for word in text)}
    assert beside
    assert beside == beside_text(described)
    assert all(torch.equal(after[name], before[name]) for name in beside)
    configs = (
        json.loads((path / "config.json").read_text())
        for path in (described.checkpoint.path, tmp_path)
    )
    parts = [
        {key: part for key, part in config.items() if key.endswith("_config") and "text" not in key}
        for config in configs
    ]
    assert parts[0]
    assert parts[0] == parts[1]


def test_published_experts_of_qwen3_vl_lie_the_other_way_round(built, tmp_path):
    # (experts, in, out); transformers turns them when it loads, and saves what it has loaded.
    source = built(BY_NAME["qwen3_vl_moe"])
    path, own = tmp_path / "published", source.described()
    shutil.copytree(own.checkpoint.path, path)
    for shard in shards_of(path):
        edit_tensors(shard, lambda held: as_published("qwen3_vl_moe", held))
    published = load_model_index(str(path))
    assert (own.family.is_transposed, published.family.is_transposed) == (False, True)
    tables = [drain(measure_weights(model)) for model in (own, published)]
    pd.testing.assert_frame_equal(*tables, rtol=1e-6)
    neurons = {
        layer.index: {expert: tuple(range(9 - expert)) for expert in range(layer.num_experts)}
        for layer in published.layers
    }
    plan = keeping_neurons(published, neurons)
    for mode in (WidthMode.PER_LAYER, WidthMode.UNIFORM):
        with pytest.raises(PlanError, match="16 neurons would make square matrices"):
            export(published, plan, tmp_path / "out", widths=WidthChoice(mode))
    widths = WidthChoice(WidthMode.PER_LAYER, multiple_of=4)  # 12 neurons
    export(published, plan, tmp_path / "out", widths=widths)
    with masked(source.model, published.family, plan):
        wanted = logits_of(source.model)
    found = logits_of(load_pruned(tmp_path / "out"))
    assert (found - wanted).abs().max() <= 1e-5  # sums over fewer neurons
    assert not torch.allclose(wanted, logits_of(source.model), atol=1e-3)


def test_a_dense_model_of_a_family_with_experts(tmp_path):
    tiny_model(BY_NAME["gemma4_text"]).save_pretrained(tmp_path)
    edit_json(
        tmp_path / "config.json", enable_moe_block=False, num_experts=None, top_k_experts=None
    )
    with pytest.raises(UnsupportedModelError, match="Every layer of this Gemma 4"):
        load_model_index(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "changes"),
    [  # the published sizes: Granite 4.0 Micro, Jamba Reasoning 3B
        ("granitemoehybrid", {"num_local_experts": 0, "num_experts_per_tok": 0}),
        ("jamba", {"num_experts": 1, "num_experts_per_tok": 1}),
    ],
)
def test_a_dense_size_of_a_family_counts_no_experts_to_choose_among(tmp_path, name, changes):
    config = {**tiny_config(BY_NAME[name]).to_dict(), **changes}
    assert not FAMILIES[name].layers(config)


def test_scales_of_activations_have_an_entry_per_expert():
    # As in FP8 checkpoints of Mistral 4, quantised by transformers' static scheme.
    name = "language_model.model.layers.3.mlp.experts.down_proj_activation_scale"
    slot = FAMILIES["mistral3"].locate(name)
    assert (slot.layer, slot.kind, slot.axis) == (3, SlotKind.STACKED, 0)


def test_dense_layers_as_published_configurations_list_them():
    text = {"num_hidden_layers": 3, "num_local_experts": 8, "num_experts_per_tok": 4}
    config = {"model_type": "minimax_m3_vl", "text_config": {**text, "moe_layer_freq": [0, 1, 1]}}
    assert [layer.index for layer in family_of(config).layers(config)] == [1, 2]


def test_kimi_as_it_is_published(built, tmp_path):
    # transformers saves three kinds of names otherwise than those that it reads from the hub.
    source = built(BY_NAME["kimi_k25"])
    path = tmp_path / "source"
    path.mkdir()
    tensors = as_published("kimi_k25", tensors_of(source.paths["experts"]))
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = (source.paths["experts"] / "config.json").read_text()
    (path / "config.json").write_text(config.replace('"deepseek_v3"', '"kimi_k2"'))
    described = load_model_index(str(path))
    plan = PruningPlan(model_ref(described), dict.fromkeys(source.case.sparse, (0, 3, 4, 6)))
    export(described, plan, tmp_path / "out")
    exported, info = stock_load(source.case, tmp_path / "out")
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted = logits_of(physically_pruned(source.model, source.case, plan.kept))
    assert torch.equal(logits_of(exported), wanted)
    assert '"kimi_k2"' in (tmp_path / "out" / "config.json").read_text()
