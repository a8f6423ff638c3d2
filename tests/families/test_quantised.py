"""Checkpoints whose experts are quantised: pruning moves bytes, so it needs to compute nothing."""

import json
from dataclasses import replace

import pytest
import torch
from exports import export, same_bytes, tensors_of, verified
from safetensors.torch import save_file

from analysis.calibration.config_outline import outline_model
from analysis.calibration.weights import measure_weights
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import PlanError, UnsupportedModelError
from analysis.model.opening import load_model_index
from analysis.ranking.neurons import read_neurons
from analysis.stats.store import StatsStore
from builders import edit_json
from builders.mxfp4 import to_mxfp4
from builders.repairs import repaired
from builders.repairs import token_sequences as random_tokens
from families.configs import BY_NAME
from families.published import as_published
from families.settings import WIDTH
from families.tiny_models import tiny_model
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.planning.make import neuron_units_of
from pruning.requests.plan import SpecRequest
from pruning.study import Study


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


def to_fp4(tensors):
    """DeepSeek-V4 as on the hub: two numbers of an expert in a byte, a power of two for 32."""
    seeded = torch.Generator().manual_seed(1)
    out = {}
    for name, tensor in as_published("deepseek_v4", tensors).items():
        if ".experts." in name:
            rows, columns = tensor.shape
            drawn = torch.randint(-128, 128, (rows, columns // 2), generator=seeded)
            out[name] = drawn.to(torch.int8)
            out[name.replace("weight", "scale")] = torch.full((rows, columns // 32), 1 / 16).to(
                torch.float8_e8m0fnu
            )
        else:
            out[name] = tensor if "hc_" in name else tensor.to(torch.bfloat16)
            out[name] = tensor.int() if name.endswith("tid2eid") else out[name]
    return out


@pytest.fixture
def quantised(built, tmp_path):
    def make(case_name, convert, method):
        case = BY_NAME[case_name]
        source, path = built(case).paths["experts"], tmp_path / "quantised"
        path.mkdir()
        config = json.loads((source / "config.json").read_text())
        config.get("text_config", config)["quantization_config"] = {"quant_method": method}
        (path / "config.json").write_text(json.dumps(config))
        save_file(convert(tensors_of(source)), path / "model.safetensors", {"format": "pt"})
        return case, path

    return make


def exported(case, path, out):
    """Ids that stay in every layer, and the tensors before and after."""
    ids = (1, 2, case.experts - 1)
    export(path, ids, out)
    after, before = (json.loads((folder / "config.json").read_text()) for folder in (out, path))
    after, before = (config.get("text_config") or config for config in (after, before))
    assert after["quantization_config"] == before["quantization_config"]
    return ids, tensors_of(path), tensors_of(out)


def test_blocks_and_scales_are_cut_with_their_experts(quantised, tmp_path):
    case, path = quantised("gpt_oss", to_mxfp4, "mxfp4")
    ids, before, after = exported(case, path, tmp_path / "out")
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
    ids, before, after = exported(case, path, tmp_path / "out")
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


def test_deepseek_v4_as_it_is_published(tmp_path):
    sizes = {"hidden_size": 32, "moe_intermediate_size": 32}
    case = BY_NAME["deepseek_v4"]
    loaded, source = tiny_model(replace(case, settings={**case.settings, **sizes})), tmp_path / "in"
    loaded.save_pretrained(source, save_original_format=True)
    save_file(to_fp4(tensors_of(source)), source / "model.safetensors", {"format": "pt"})
    fp8 = {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    edit_json(source / "config.json", quantization_config=fp8, expert_dtype="fp4")
    described = load_model_index(str(source))
    # Those that scale streams are not told from those of quantised weights.
    weights = [weight for name, weight in loaded.named_parameters() if not name.endswith("scale")]
    assert described.num_params == sum(weight.numel() for weight in weights) + 2 * case.experts
    ids, _, after = exported(case, source, tmp_path / "out")
    assert after["layers.3.ffn.experts.2.w1.weight"].dtype == torch.int8
    assert after["layers.0.ffn.gate.tid2eid"].max() == len(ids) - 1
    # From the configuration alone, the same of every expert.
    outline = outline_model(str(source / "config.json")).checkpoint.tensors
    held = {f"model.{name}": tensor for name, tensor in described.checkpoint.tensors.items()}
    for name in (name for name in held if ".experts." in name):
        assert (outline[name].dtype, outline[name].shape) == (held[name].dtype, held[name].shape)
    # Dequantised by transformers, under the published names.
    assert verified(tmp_path / "out", source=source).max_abs_diff == 0


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
    export(described, keep_all(described), tmp_path / "out")
    for file in path.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_neurons_of_packed_experts_are_counted_but_neither_measured_nor_cut(quantised, tmp_path):
    """The shapes of packed matrices do not tell how many there are."""
    case, path = quantised("gpt_oss", to_mxfp4, "mxfp4")
    described, store = load_model_index(str(path)), StatsStore(tmp_path / "stats")
    table = drain(read_neurons(get_criterion("random"), store, described)).stats
    assert len(table) == len(case.sparse) * case.experts * WIDTH
    with pytest.raises(UnsupportedModelError, match=r"[Dd]equanti"):
        drain(read_neurons(get_criterion("neuron-norms"), store, described))
    asked = {"model": str(path), "criterion": "random", "granularity": "neuron", "sparsity": "50%"}
    request = SpecRequest(**asked)
    ranking = drain(Study.of(request, described, store).rank(request.plan))
    with pytest.raises(PlanError, match="neurons cannot be cut out of that"):
        neuron_units_of(ranking, request.plan)


@pytest.mark.parametrize(
    ("case_name", "convert", "method"),
    [
        ("gpt_oss", to_mxfp4, "mxfp4"),
        ("kimi_k25", to_packed, "compressed-tensors"),
        ("deepseek_v4", to_fp4, "fp8"),
    ],
)
def test_no_repair_of_them_is_begun(quantised, tmp_path, case_name, convert, method):
    case, path = quantised(case_name, convert, method)
    model = load_model_index(str(path))
    kept = dict.fromkeys(case.sparse, (1, 2, case.experts - 1))
    rows = random_tokens(rows=4, length=8)
    with pytest.raises(
        UnsupportedModelError, match=r"cannot be repaired: .* is quantised"
    ) as error:
        repaired(model, PruningPlan(model_ref(model), kept), tmp_path / "stats", rows)
    assert "repair a copy in BF16" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "stats").exists()
