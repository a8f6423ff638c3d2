"""Which tensors an export refuses because nobody knows how to cut them, and which it copies."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.errors import ExportError
from analysis.model import load_model_index
from pruning.surgery.shards import check_located


@pytest.fixture
def with_tensor(checkpoint, tmp_path):
    """`with_tensor("olmoe", name)`: a model with one more tensor."""

    def get(model_type, name, **changes):
        source = checkpoint(model_type, shards=1).path
        shutil.copytree(source, tmp_path / "model")
        tensors = load_file(source / "model.safetensors")
        extra = {name: torch.zeros(7)}
        save_file(tensors | extra, tmp_path / "model" / "model.safetensors", {"format": "pt"})
        config = json.loads((source / "config.json").read_text())
        (tmp_path / "model" / "config.json").write_text(json.dumps(config | changes))
        return load_model_index(str(tmp_path / "model"))

    return get


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.0.extra_experts.weight", 0),
        ("model.layers.0.mlp.bias", 0),
        ("model.layers.1.mlp.experts.6.scale", 1),
        ("model.layers.1.mlp.gate.e_score_correction_bias", 1),
        ("model.layers.1.mlp.e_score_correction_bias", 1),
        ("model.layers.1.second_mlp.experts.0.up_proj.weight", 1),
        ("model.layers.1.lora_experts_up.weight", 1),
        ("model.layers.2.mlp.experts.0.scale", 2),
        ("model.layers.2.mixer.experts_up.weight", 2),
        ("model.layers.2.shared.experts.weight", 2),
    ],
)
def test_what_sounds_like_experts_of_a_sparse_layer_is_refused(with_tensor, name, layer):
    model = with_tensor("olmoe", name)
    with pytest.raises(ExportError, match=f"^{name} belongs to the experts of layer {layer}, but"):
        check_located(model)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.extra.weight",
        "model.layers.1.shared_experts_norm.weight",
        "model.layers.3.mlp.experts.0.scale",  # beyond the three layers of the trunk: a head
        "model.layers.3.extra_experts.weight",
        "model.layers.late.experts.weight",
        "vision.layers.1.experts.weight",
        "1.experts.weight",
        "experts.weight",
    ],
)
def test_what_lies_elsewhere_is_copied(with_tensor, name):
    check_located(with_tensor("olmoe", name))


def test_a_dense_layer_has_biases_and_no_experts(with_tensor):
    # Layer 1 of this model is dense.
    check_located(with_tensor("qwen3_moe", "model.layers.1.mlp.bias"))


@pytest.mark.parametrize("part", ["mlp.experts.0.scale", "extra_experts.weight"])
def test_experts_in_a_dense_layer_are_refused(with_tensor, part):
    model = with_tensor("qwen3_moe", f"model.layers.1.{part}")
    with pytest.raises(ExportError, match=r"belongs to experts, but .* makes layer 1 dense"):
        check_located(model)
