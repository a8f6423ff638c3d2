"""Sizes of checkpoints before and after a plan: by hand, and against real exports."""

import shutil

import pytest
import torch
from exports import export
from safetensors.torch import load_file, save_file

from analysis.errors import PlanError
from analysis.model import load_model_index
from builders import MODEL_TYPES
from pruning.plan import PruningPlan, keep_all, model_ref
from pruning.sizes import SIZE_COLUMNS, Part, format_bytes, size_report, weight_bytes


def same_count(model, keep):
    """A plan that keeps `keep` experts a layer, not the first ones."""
    kept = {
        layer.index: tuple(range(layer.num_experts - keep, layer.num_experts))
        for layer in model.layers
    }
    return PruningPlan(model_ref(model), kept)


def test_sizes_by_hand(checkpoint):
    # d = 16, 3 layers of 7 experts of width 24, top-2, 2 heads of 8 and 1 key-value head, vocab 96.
    model = load_model_index(str(checkpoint("olmoe").path))
    report = size_report(model, same_count(model, 4))
    expert = 3 * 24 * 16
    attention = 3 * (2 * 16 * 16 + 2 * 8 * 16 + 16 + 8)  # q o, k v, and the norms of q and k
    params = {
        "routed experts": (3 * 7 * expert, 3 * 4 * expert),
        "routers": (3 * 7 * 16, 3 * 4 * 16),
        "shared and dense MLP": (0, 0),
        "attention": (attention, attention),
        "embeddings and head": (2 * 96 * 16,) * 2,
        "norms and other": (3 * 2 * 16 + 16,) * 2,
    }
    assert tuple(report.table.columns) == SIZE_COLUMNS
    for row in report.table.itertuples():
        assert (row.params_before, row.params_after) == params[row.part]
        assert (row.before, row.after) == tuple(4 * count for count in params[row.part])
    assert report.experts_removed == 3 * 3
    inactive = 3 * expert  # per expert of a layer, in the three layers
    assert report.active_before == report.params_before - (7 - 2) * inactive
    assert report.active_after == report.params_after - (4 - 2) * inactive
    # A token uses as many experts as before; only the router became shorter.
    assert report.active_before - report.active_after == 3 * 3 * 16


def test_dense_layers_are_a_part_of_their_own(checkpoint):
    report = size_report(load_model_index(str(checkpoint("qwen3_moe").path)))
    table = report.table.set_index("part")
    assert table.loc["shared and dense MLP", "params_before"] == 3 * 40 * 16
    assert table.loc["embeddings and head", "params_before"] == 96 * 16  # tied
    assert report.bytes_before == report.bytes_after


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sizes_are_the_bytes_that_export_writes(checkpoint, tmp_path, model_type, fused):
    model = load_model_index(str(checkpoint(model_type, fused=fused).path))
    plan = same_count(model, 3)
    manifest = export(model, plan, tmp_path / "out")
    written = load_model_index(str(tmp_path / "out"))
    report = size_report(model, plan)
    assert report.bytes_after == weight_bytes(model, plan) == written.checkpoint.nbytes
    assert report.params_after == written.checkpoint.num_params
    headers = sum(shard.data_start for shard in written.checkpoint.shards)
    assert manifest.nbytes == report.bytes_after + headers
    assert report.experts_after == written.num_experts


def test_a_plan_of_another_model_is_refused(checkpoint):
    model = load_model_index(str(checkpoint("olmoe").path))
    with pytest.raises(PlanError, match="was made for"):
        size_report(model, keep_all(load_model_index(str(checkpoint("mixtral").path))))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (17, "17 B"),
        (812 << 10, "812 KiB"),
        (10_900_000, "10.4 MiB"),
        (1 << 30, "1.00 GiB"),
        (13_838_323_712, "12.89 GiB"),  # OLMoE in bf16
    ],
)
def test_bytes_for_people(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.0.mamba.in_proj.weight", Part.ATTENTION),
        ("model.layers.0.linear_attn.conv1d.weight", Part.ATTENTION),
        ("backbone.layers.2.mixer.in_proj.weight", Part.ATTENTION),
        ("backbone.layers.2.mixer.A_log", Part.ATTENTION),
        ("backbone.layers.3.mixer.shared_experts.up_proj.weight", Part.MLP),
        ("backbone.layers.3.mixer.fc1_latent_proj.weight", Part.MLP),
        ("model.layers.1.shared_mlp.input_linear.weight", Part.MLP),
        ("model.layers.1.mlp.shared_expert_gate.weight", Part.MLP),
        ("language_model.model.embed_tokens.weight", Part.EMBEDDINGS),
        ("backbone.embeddings.weight", Part.EMBEDDINGS),
        ("model.language_model.norm.weight", Part.OTHER),
    ],
)
def test_parts_are_told_by_name_in_every_family(checkpoint, tmp_path, name, part):
    source = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe", shards=1).path, source)
    tensors = load_file(source / "model.safetensors")
    before = size_report(load_model_index(str(source))).table.set_index("part")["before"]
    extra = {name: torch.zeros(3, 5)}
    save_file({**tensors, **extra}, source / "model.safetensors", metadata={"format": "pt"})
    after = size_report(load_model_index(str(source))).table.set_index("part")["before"]
    assert (after - before).loc[lambda grown: grown != 0].to_dict() == {str(part): 60}
