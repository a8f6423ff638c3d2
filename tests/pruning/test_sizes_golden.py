"""Sizes of published models from config.json alone, against arXiv:2606.15716, Table 3 (GiB)."""

import json

import pytest
from published_models import DEEPSEEK, ERNIE, MIXTRAL, OLMOE, QWEN3

from pruning.outline import outline_model
from pruning.plan import PruningPlan, model_ref
from pruning.schedules import uniform
from pruning.sizes import size_report

GIB = 2**30


def mlp(hidden, width):
    """Weights of gate, up and down."""
    return 3 * hidden * width


# Weights of each model, added up by hand: embeddings and head, last norm, dense layers, then per
# sparse layer attention with its norms, the two norms around, experts with router, shared ones.
BY_HAND = {
    "olmoe": 2 * 50_304 * 2048 + 2048
    + 16 * (4 * 2048**2 + 2 * 2048 + 2 * 2048 + 64 * (mlp(2048, 1024) + 2048)),
    # MLA: queries of 128 + 64 for 16 heads, one latent of 512 with 64 rotary ones, its norm, keys
    # and values of 128 each from the latent, output.
    "deepseek_v2": 2 * 102_400 * 2048 + 2048
    + 27 * (2048 * 16 * 192 + 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048 + 2 * 2048)
    + mlp(2048, 10_944)
    + 26 * (64 * (mlp(2048, 1408) + 2048) + mlp(2048, 2 * 1408)),
    "ernie4_5_moe": 103_424 * 2560 + 2560
    + 28 * (2 * 2560 * 2560 + 2 * 2560 * 512 + 2 * 2560)
    + mlp(2560, 12_288)
    + 27 * (64 * (mlp(2560, 1536) + 2560 + 1) + mlp(2560, 2 * 1536)),  # + 1: correction bias
    "qwen3_moe": 2 * 151_936 * 2048 + 2048
    + 48 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 128 + 2 * 2048)
    + 48 * 128 * (mlp(2048, 768) + 2048),
    "mixtral": 2 * 32_000 * 4096 + 4096
    + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 4096 + 8 * (mlp(4096, 14_336) + 4096)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params", "before", "after", "layers"),
    [
        (OLMOE, 6.919e9, 12.89, 6.89, 16),
        (DEEPSEEK, 15.706e9, 29.27, 15.86, 26),
        (ERNIE, 21.825e9, 40.66, 21.67, 27),
        (QWEN3, 30.532e9, 56.92, 29.93, 48),
    ],
    ids=["OLMoE", "DeepSeek-V2-Lite", "ERNIE-4.5-21B", "Qwen3-30B"],
)
def test_sizes_of_published_models(tmp_path, config, params, before, after, layers):
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = outline_model(str(tmp_path))
    keep = uniform(model.layers, "50%").keep
    plan = PruningPlan(
        model_ref(model),
        {layer.index: tuple(range(n)) for layer, n in zip(model.layers, keep, strict=True)},
    )
    report = size_report(model, plan)
    assert report.params_before == BY_HAND[config["model_type"]]
    assert report.params_before == pytest.approx(params, rel=1e-4)
    # The paper measured loaded memory, which is a little more than the weights.
    for size, published in zip(report.loaded("bfloat16"), (before, after), strict=True):
        assert size / GIB == pytest.approx(published, rel=2.5e-3)
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    each = 2 * mlp(config["hidden_size"], width)  # a multiplication and an addition per weight
    assert report.expert_flops == layers * model.layers[0].top_k * each


def test_the_size_of_mixtral_adds_up_by_hand(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    assert size_report(outline_model(str(tmp_path))).params_before == BY_HAND["mixtral"]
