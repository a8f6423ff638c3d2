"""Experts that lack a scale or a bias that others have: named, refused, and dropped first."""

import shutil

import pytest
import torch
from exports import accept_changes, export, failed, tensors_of, verified
from safetensors.torch import load_file, save_file

from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from builders import edit_json, tiny_checkpoint
from pruning.surgery.source_checks import source_notes

MOST, FEW = {2, 5}, {0, 1, 2, 3, 4}


def quantised(path, lacks, part="input_scale"):
    """A model in the layout of NVFP4; `lacks`: (layer, projection) -> experts without a part."""
    tiny_checkpoint(path, "qwen3_moe", shards=1)
    edit_json(path / "config.json", quantization_config={"quant_method": "modelopt"})
    held = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        held[name] = tensor
        if ".experts." not in name:
            continue
        stem = name.removesuffix(".weight")
        rows, columns = tensor.shape
        held[name] = torch.zeros(rows, columns // 2, dtype=torch.uint8)
        held |= {
            f"{stem}.weight_scale": torch.ones(rows, columns // 8),
            f"{stem}.weight_scale_2": torch.tensor(1.0),
            f"{stem}.input_scale": torch.tensor(1.0),
        }
        words = stem.split(".")  # model.layers.0.mlp.experts.2.down_proj
        if int(words[5]) in lacks.get((int(words[2]), words[6]), ()):
            del held[f"{stem}.{part}"]
    save_file(held, path / "model.safetensors", {"format": "pt"})
    return load_model_index(str(path))


@pytest.mark.parametrize("part", ["input_scale", "weight_scale", "weight_scale_2"])
def test_experts_without_a_part_are_named_with_the_way_out(part, tmp_path):
    model = quantised(tmp_path / "m", {(0, "down_proj"): MOST, (3, "up_proj"): {1}}, part)
    (note,) = source_notes(model)
    assert f"xperts 2,5 of layer 0 lack {part} of down_proj, which 4 others have" in note
    assert f"expert 1 of layer 3 lacks {part} of up_proj, which 5 others have" in note
    assert "--drop 0:2,5 --drop 3:1" in note
    # Only what a plan keeps matters.
    assert source_notes(model, {0: (0, 1), 2: (0, 1), 3: (0, 2)}) == []
    assert "--drop 0:5," in source_notes(model, {0: (0, 5), 2: (0, 1), 3: (0, 2)})[0]


def test_an_export_refuses_them_and_takes_a_plan_without_them(tmp_path):
    model = quantised(tmp_path / "m", {(0, "down_proj"): MOST})
    with pytest.raises(ExportError, match=r"lacks input_scale of down_proj.*--drop 0:2,"):
        export(model, (0, 1, 2, 3), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(model, (0, 1, 3, 4), tmp_path / "out")
    verified(tmp_path / "out", source=tmp_path / "m", level="bytes")


def test_a_part_that_few_experts_have_is_lacked_by_the_rest(tmp_path):
    model = quantised(tmp_path / "m", {(0, "down_proj"): FEW})
    assert "xperts 0-4 of layer 0 lack input_scale" in source_notes(model)[0]
    # All of a layer without it is another scheme: activations are scaled as they come.
    whole = quantised(tmp_path / "n", {(0, "down_proj"): set(range(6))})
    assert source_notes(whole) == []


def test_of_many_parts_three_are_listed_and_the_others_counted(tmp_path):
    lacks = {(layer, f"{part}_proj"): {4} for layer in (0, 2) for part in ("gate", "up", "down")}
    (note,) = source_notes(quantised(tmp_path / "m", lacks))
    assert note.count("lacks input_scale") == 3
    assert "; and 3 more such parts; export refuses" in note
    del lacks[2, "down_proj"]
    (note,) = source_notes(quantised(tmp_path / "n", lacks))
    assert note.count("lacks input_scale") == 3
    assert "; and 2 more such parts; export refuses" in note


def test_experts_that_are_not_quantised_are_compared_among_themselves(tmp_path):
    model = quantised(tmp_path / "m", {})
    held = tensors_of(tmp_path / "m")
    stem = "model.layers.0.mlp.experts.4.down_proj"
    for part in ("weight_scale", "weight_scale_2", "input_scale"):
        del held[f"{stem}.{part}"]
    held[f"{stem}.weight"] = torch.zeros(16, 24)
    save_file(held, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    assert source_notes(load_model_index(str(tmp_path / "m"))) == source_notes(model) == []


def test_verify_sees_a_part_that_an_export_lacks(tmp_path):
    model = quantised(tmp_path / "m", {})
    out = tmp_path / "out"
    export(model, (0, 1, 3, 4), out)
    shutil.copytree(out, tmp_path / "good")
    held = tensors_of(out)
    del held["model.layers.2.mlp.experts.1.gate_proj.input_scale"]
    save_file(held, out / "model.safetensors", {"format": "pt"})
    accept_changes(out)
    detail = failed(out, level="bytes")["experts"]
    assert detail == "expert 1 of layer 2 lacks input_scale of gate_proj, which 3 others have"
    assert failed(tmp_path / "good", level="bytes") == {}
