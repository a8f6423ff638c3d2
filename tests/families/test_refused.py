"""Refusals by name: what they say of transformers is so in the version that is installed."""

from importlib import import_module
from importlib.metadata import version
from inspect import getsource

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from transformers.core_model_loading import revert_weight_conversion

from analysis.errors import UnsupportedModelError
from analysis.families.listing import FAMILIES, family_of
from analysis.families.refused import REFUSED

UNSEEN = [name for name, reason in REFUSED.items() if "do not go through" in reason]
STEP = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "moe_intermediate_size": 12,
    "n_routed_experts": 7, "num_experts_per_tok": 2, "share_expert_dim": 8,
    "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip


def modeling_of(model_type):
    """The module of transformers that a model type is written in; skips the test without it."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"transformers {version('transformers')} has no {model_type}")
    package = CONFIG_MAPPING[model_type].__module__.rpartition(".")[0]
    return import_module(f"{package}.modeling_{package.rpartition('.')[2]}")


@pytest.mark.parametrize("model_type", REFUSED)
def test_the_reason_is_what_is_said(model_type):
    assert model_type not in FAMILIES
    with pytest.raises(UnsupportedModelError) as caught:
        family_of({"model_type": model_type, "num_experts": 8})
    assert f"{model_type!r} is not supported: {REFUSED[model_type]}. " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model_type", UNSEEN)
def test_no_experts_of_it_go_through_the_interface(model_type):
    assert "@use_experts_implementation" not in getsource(modeling_of(model_type))


def named(model_type, **settings):
    """Names and shapes of a checkpoint that transformers would save."""
    config = AutoConfig.for_model(model_type, **settings)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    saved = revert_weight_conversion(model, model.state_dict())
    return model, {name: tuple(tensor.shape) for name, tensor in saved.items()}


def test_step_is_as_its_refusal_says():
    modeling_of("step3p7")
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 1, "image_size": 4, "patch_size": 2}
    model, shapes = named("step3p7", text_config=STEP, vision_config=vision)
    assert not model._can_set_experts_implementation()
    stacked = [name for name, shape in shapes.items() if len(shape) == 3 and "layers.1" in name]
    parts = ("down_proj", "gate_proj", "up_proj")
    assert sorted(stacked) == [f"model.layers.1.moe.{part}.weight" for part in parts]
    assert "model.layers.0.mlp.gate_proj.weight" in shapes
    text = CONFIG_MAPPING["step3p5"]
    autos = (AutoModelForCausalLM, AutoModelForImageTextToText)
    assert not any(text in auto._model_mapping for auto in autos)


def test_ernie_vl_is_as_its_refusal_says():
    _, shapes = named("ernie4_5_vl_moe")
    block = "model.layers.1.mlp"
    widths = {shapes[f"{block}.experts.{n}.gate_proj.weight"][0] for n in (0, 64)}
    assert len(widths) == 2
    assert {f"{block}.gate.weight", f"{block}.gate.weight_1"} <= shapes.keys()
    assert f"{block}.experts.128.gate_proj.weight" not in shapes
