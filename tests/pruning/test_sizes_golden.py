"""Sizes of published models, from shapes alone, against arXiv:2606.15716, Table 3 (GiB)."""

from math import prod
from pathlib import Path

import pytest

from analysis.checkpoint import Checkpoint, Shard, TensorEntry
from analysis.model import describe_model
from pruning.plan import PruningPlan, model_ref
from pruning.schedules import uniform
from pruning.sizes import size_report

# Architectures as the hub's config.json gives them.
OLMOE = {"layers": 16, "experts": 64, "top_k": 8, "hidden": 2048, "width": 1024, "vocab": 50_304}
QWEN3 = {"layers": 48, "experts": 128, "top_k": 8, "hidden": 2048, "width": 768, "vocab": 151_936}


def shapes_of(size, heads_width, kv_width, norms):
    """name -> shape of every tensor."""
    d, width = size["hidden"], size["width"]
    shapes = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (size["vocab"], d))
    shapes["model.norm.weight"] = (d,)
    for layer in range(size["layers"]):
        head = f"model.layers.{layer}."
        for expert in range(size["experts"]):
            for name in ("gate", "up", "down"):
                shape = (d, width) if name == "down" else (width, d)
                shapes[f"{head}mlp.experts.{expert}.{name}_proj.weight"] = shape
        shapes[f"{head}mlp.gate.weight"] = (size["experts"], d)
        shapes[f"{head}self_attn.q_proj.weight"] = (heads_width, d)
        shapes[f"{head}self_attn.o_proj.weight"] = (d, heads_width)
        for name in "kv":
            shapes[f"{head}self_attn.{name}_proj.weight"] = (kv_width, d)
        for name, length in zip("qk", norms, strict=True):
            shapes[f"{head}self_attn.{name}_norm.weight"] = (length,)
        for name in ("input", "post_attention"):
            shapes[f"{head}{name}_layernorm.weight"] = (d,)
    return shapes


def model_of(model_type, size, shapes):
    """A model of which only the headers exist, in bf16."""
    entries, position = [], 0
    for name, shape in shapes.items():
        end = position + 2 * prod(shape)
        entries.append(TensorEntry(name, "all", "BF16", shape, position, end))
        position = end
    config = {
        "model_type": model_type,
        "num_hidden_layers": size["layers"],
        "num_experts": size["experts"],
        "num_experts_per_tok": size["top_k"],
        "hidden_size": size["hidden"],
    }
    shard = Shard("all", position, b"", 0, {}, tuple(entries))
    checkpoint = Checkpoint(Path("nowhere"), config, (shard,))
    # A cached property, set so that nobody looks for the file.
    checkpoint.__dict__["identity"] = model_type
    return describe_model(checkpoint)


@pytest.mark.parametrize(
    ("model_type", "size", "shape", "params", "before", "after"),
    [
        ("olmoe", OLMOE, (2048, 2048, (2048, 2048)), 6.919e9, 12.89, 6.89),
        ("qwen3_moe", QWEN3, (4096, 512, (128, 128)), 30.532e9, 56.92, 29.93),
    ],
)
def test_sizes_of_published_models(model_type, size, shape, params, before, after):
    model = model_of(model_type, size, shapes_of(size, *shape))
    keep = uniform(model.layers, "50%").keep
    plan = PruningPlan(
        model_ref(model),
        {layer.index: tuple(range(n)) for layer, n in zip(model.layers, keep, strict=True)},
    )
    report = size_report(model, plan)
    assert report.params_before == pytest.approx(params, rel=1e-4)
    # The paper measured loaded memory, which is a little more than the weights.
    assert report.bytes_before / 2**30 == pytest.approx(before, rel=2.5e-3)
    assert report.bytes_after / 2**30 == pytest.approx(after, rel=2.5e-3)
