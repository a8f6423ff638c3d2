"""Exports of quantised checkpoints verified up to the logits, and what is not loaded at all."""

import pytest
import torch
from exports import edit_json, export, verified
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analysis.drain import drain
from analysis.errors import ExportError
from analysis.model import load_model_index
from builders import tiny_checkpoint
from families.configs import BY_NAME, redraw, tiny_config
from pruning.plan import PruningPlan, model_ref
from pruning.surgery.verify import verify_export

GPT_OSS = BY_NAME["gpt_oss"]
KEPT = {"uniform": ((1, 3, 4), (0, 2, 5)), "mixed": ((1, 3, 4), (0, 2, 3, 5))}


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory):
    """A gpt-oss whose experts are blocks of 32 numbers of four bits with an exponent each."""
    path = tmp_path_factory.mktemp("mxfp4")
    config = tiny_config(GPT_OSS)
    config.hidden_size, config.intermediate_size = 32, 64
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        redraw(model)
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    seeded = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = tensors.pop(name).shape
        shape = (experts, outer, inner // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=seeded, dtype=torch.uint8)
        scales = torch.randint(122, 126, shape, generator=seeded, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    quantise(path, quant_method="mxfp4", modules_to_not_convert=["self_attn", "router", "lm_head"])
    return path


def quantise(path, **settings):
    edit_json(path / "config.json", quantization_config=settings)


def export_kept(source, out, kept):
    described = load_model_index(str(source))
    layers = [layer.index for layer in described.layers]
    export(described, PruningPlan(model_ref(described), dict(zip(layers, kept, strict=True))), out)


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_four_bits_up_to_equal_logits(mxfp4, tmp_path, kept):
    export_kept(mxfp4, tmp_path / "out", kept)
    report = verified(tmp_path / "out", source=mxfp4)
    assert (report.level, report.max_abs_diff) == ("logits", 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq are not loaded"),
        ({"model_type": "unheard_of"}, "transformers has no class for 'unheard_of'"),
    ],
)
def test_what_cannot_be_loaded_is_compared_byte_by_byte(tmp_path, change, why):
    source = tmp_path / "source"
    tiny_checkpoint(source, "olmoe")
    edit_json(source / "config.json", **change)
    export(source, (1, 3, 4), tmp_path / "out")
    report = verified(tmp_path / "out", source=source)
    assert report.level == "bytes"
    assert why in report.reason
    assert [check.name for check in report.checks][-2:] == ["source", "tensors"]
    with pytest.raises(ExportError, match=f"The level 'load' is not possible: .*{why}"):
        drain(verify_export(tmp_path / "out", level="load"))
