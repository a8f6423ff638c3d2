"""Checkpoints whose experts are quantised: pruning moves bytes, so it needs to compute nothing."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.checkpoint import open_checkpoint
from analysis.drain import drain
from analysis.errors import UnsupportedModelError
from analysis.model import load_model_index
from analysis.stats.weights import measure_weights
from families.configs import CASES
from families.published import as_published
from pruning.plan import PruningPlan, keep_all, model_ref
from pruning.surgery.export import export_checkpoint


def tensors_of(path):
    shards = open_checkpoint(path).shards
    return {name: t for shard in shards for name, t in load_file(path / shard.name).items()}


def to_mxfp4(tensors):
    """gpt-oss as on the hub: per row, blocks of 32 numbers in 16 bytes and a scale for each."""
    seeded = torch.Generator().manual_seed(1)
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, _, rows = tensor.shape
            for role, shape in (("blocks", (experts, rows, 1, 16)), ("scales", (experts, rows, 1))):
                drawn = torch.randint(0, 256, shape, generator=seeded, dtype=torch.uint8)
                out[f"{name}_{role}"] = drawn
        else:
            out[name] = tensor.to(torch.bfloat16)
    return out


def to_fp8(tensors):
    """DeepSeek-V3 as on the hub: matrices in float8 with one scale per 128 x 128 numbers."""
    out = {}
    for name, tensor in tensors.items():
        if ".experts." in name and name.endswith(".weight"):
            scale = tensor.abs().max().reshape(1, 1)
            out[name] = (tensor / scale).to(torch.float8_e4m3fn)
            out[f"{name}_scale_inv"] = scale
        else:
            out[name] = tensor
    return out


def to_packed(tensors):
    """Kimi-K2.5 as on the hub: eight numbers of four bits in an integer, a scale for 32 of them."""
    seeded = torch.Generator().manual_seed(1)
    out = {}
    for name, tensor in as_published("kimi_k25", tensors).items():
        if ".experts." in name and name.endswith(".weight"):
            rows, columns = tensor.shape
            drawn = torch.randint(-(2**31), 2**31, (rows, columns // 8), generator=seeded)
            out[f"{name}_packed"] = drawn.to(torch.int32)
            out[f"{name}_scale"] = torch.rand(rows, 1, generator=seeded).to(torch.bfloat16)
            out[f"{name}_shape"] = torch.tensor([rows, columns], dtype=torch.int32)
        else:
            out[name] = tensor
    return out


@pytest.fixture
def quantised(built, tmp_path):
    def make(case_name, convert, method):
        case = next(case for case in CASES if case.name == case_name)
        source, path = built(case).paths["experts"], tmp_path / "quantised"
        path.mkdir()
        shutil.copy(source / "config.json", path)
        config = json.loads((path / "config.json").read_text())
        config.get("text_config", config)["quantization_config"] = {"quant_method": method}
        (path / "config.json").write_text(json.dumps(config))
        save_file(convert(tensors_of(source)), path / "model.safetensors", {"format": "pt"})
        return case, path

    return make


def same_bytes(first, second):
    return first.dtype == second.dtype and torch.equal(
        first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
    )


def export(case, path, out):
    described = load_model_index(str(path))
    ids = (1, 2, case.experts - 1)
    plan = PruningPlan(model_ref(described), dict.fromkeys(case.sparse, ids))
    drain(export_checkpoint(described, plan, out))
    after, before = (
        json.loads((folder / "config.json").read_text()).get("text_config")
        or json.loads((folder / "config.json").read_text())
        for folder in (out, path)
    )
    assert after["quantization_config"] == before["quantization_config"]
    return ids, tensors_of(path), tensors_of(out)


def test_blocks_and_scales_are_cut_with_their_experts(quantised, tmp_path):
    case, path = quantised("gpt_oss", to_mxfp4, "mxfp4")
    ids, before, after = export(case, path, tmp_path / "out")
    assert after.keys() == before.keys()
    cut = 0
    for name, tensor in after.items():
        depends = ".mlp.experts." in name or ".mlp.router." in name
        wanted = before[name][list(ids)] if depends else before[name]
        assert same_bytes(tensor, wanted), name
        cut += depends
    # Of each layer: two stacks of blocks, scales and biases, and the router's weight and bias.
    assert cut == len(case.sparse) * (2 * 3 + 2)


FP8 = ("deepseek_v3", to_fp8, "fp8")
PACKED = ("kimi_k25", to_packed, "compressed-tensors")


@pytest.mark.parametrize(
    ("how", "trunk", "roles"),
    [
        (FP8, "model.layers", ("weight", "weight_scale_inv")),
        (
            *(PACKED, "language_model.model.layers"),
            ("weight_packed", "weight_scale", "weight_shape"),
        ),
    ],
    ids=["fp8", "packed"],
)
def test_scales_go_with_the_matrices_of_their_expert(quantised, tmp_path, how, trunk, roles):
    case, path = quantised(*how)
    ids, before, after = export(case, path, tmp_path / "out")
    for layer in case.sparse:
        block = f"{trunk}.{layer}.mlp"
        for new, old in enumerate(ids):
            for part in ("gate", "up", "down"):
                for role in roles:
                    tensor = after.pop(f"{block}.experts.{new}.{part}_proj.{role}")
                    wanted = before[f"{block}.experts.{old}.{part}_proj.{role}"]
                    assert same_bytes(tensor, wanted)
        for name in ("weight", "e_score_correction_bias"):
            wanted = before[f"{block}.gate.{name}"][list(ids)]
            assert same_bytes(after.pop(f"{block}.gate.{name}"), wanted)
    assert not any(".experts." in name for name in after)
    assert all(same_bytes(tensor, before[name]) for name, tensor in after.items())


@pytest.mark.parametrize(
    ("case_name", "convert"),
    [("gpt_oss", to_mxfp4), FP8[:2], PACKED[:2]],
    ids=["mxfp4", "fp8", "packed"],
)
def test_norms_of_quantised_experts_are_refused(quantised, tmp_path, case_name, convert):
    _, path = quantised(case_name, convert, "any")
    described = load_model_index(str(path))
    with pytest.raises(UnsupportedModelError, match=r"[Dd]equanti"):
        drain(measure_weights(described))
    drain(export_checkpoint(described, keep_all(described), tmp_path / "out"))
    for file in path.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()
