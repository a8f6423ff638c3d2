"""FP8 exported in bfloat16, against exports of a plain checkpoint that torch rounded."""

import json

import pytest
import torch
from exports import edit_tensors, export, failed, keeping, shards_of, tensors_of, uneven, verified

from analysis.drain import drain
from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from analysis.numbers.elements import bfloat16_bits
from builders.fp8 import write_fp8_pair
from builders.repairs import repaired, token_sequences
from builders.tokens import random_ids
from pruning.plan.plan import PruningPlan, model_ref
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.evaluation import EvaluateRequest, SensitivityRequest
from pruning.tasks.evaluation import evaluate_run
from pruning.tasks.sensitivity import sensitivity_run

KEPT = (0, 2, 5)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def pair(request, tmp_path_factory):
    """In FP8, with scales of either type, and in bfloat16."""
    folder = tmp_path_factory.mktemp("pair")
    paths = write_fp8_pair(folder, torch.bfloat16, request.param)
    return tuple(load_model_index(str(path)) for path in paths)


def are_alike(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("pad", [False, True], ids=["cut", "padded"])
def test_an_export_holds_the_tensors_of_the_plain_one(pair, tmp_path, pad):
    exported = []
    for number, model in enumerate(pair):
        plan = uneven(model) if pad else keeping(model, KEPT)
        out = tmp_path / str(number)
        export(model, plan, out, pad=pad, dequantise=not number, max_shard_bytes=60_000)
        exported.append(tensors_of(out))
    are_alike(*exported)
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config.get("dtype", config.get("torch_dtype")) == "bfloat16"
    report = verified(tmp_path / "0", source=pair[0].checkpoint.path)
    assert report.level == "logits"
    (counts,) = (check.detail for check in report.checks if check.name == "source")
    total, written = len(pair[0].checkpoint.tensors), exported[0]
    in_bf16, cut = (
        sum("proj" in name for name in written),
        sum(".gate." in name for name in written),
    )
    rest = f"{len(written) - in_bf16 - cut} copied, {cut} cut, {in_bf16} in BF16"
    whole = f"source's {total} tensors is accounted for: {rest}, {total - len(written)} dropped"
    assert pad or whole in counts
    assert pad or report.max_abs_diff == 0


def test_what_was_exported_is_a_plain_source(pair, tmp_path):
    export(pair[0], KEPT, tmp_path / "out", dequantise=True)
    again = load_model_index(str(tmp_path / "out"))
    assert (again.quantisation, again.dtype) == ("", "BF16")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "with FP8 written in bfloat16" in card
    with pytest.raises(ExportError, match="is not quantised; --dequantise is for checkpoints in"):
        export(again, (0, 1, 2), tmp_path / "refused", dequantise=True)
    neurons = {layer.index: {0: (0, 1, 2)} for layer in pair[0].layers}
    plan = PruningPlan(model_ref(pair[0]), {}, granularity="neuron", kept_neurons=neurons)
    with pytest.raises(ExportError, match="A plan that removes neurons cuts FP8 as it is"):
        export(pair[0], plan, tmp_path / "refused", dequantise=True)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("pair", [torch.bfloat16], ids=["bf16"], indirect=True)
def test_a_repair_is_that_of_the_plain_one(pair, tmp_path):
    text, exported = token_sequences(120, 16), []
    for number, model in enumerate(pair):
        stats, out = tmp_path / f"stats-{number}", tmp_path / str(number)
        plan, record = repaired(model, keeping(model, KEPT), stats, text, "bfloat16")
        assert record.files
        if not number:
            with pytest.raises(ExportError, match="so the whole export has to be: add --dequant"):
                export(model, plan, out)
        export(model, plan, out, dequantise=not number)
        report = verified(out, source=model.checkpoint.path, directories=(stats,))
        assert report.level == "logits"
        exported.append(tensors_of(out))
    are_alike(*exported)


@pytest.mark.parametrize("pair", [torch.float32], ids=["f32"], indirect=True)
def test_a_repair_of_weights_loaded_in_float32_is_exported_in_bfloat16(pair, tmp_path):
    model, stats, text = pair[0], tmp_path / "stats", token_sequences(120, 16)
    plan, record = repaired(model, keeping(model, KEPT), stats, text, "float32")
    assert record.files
    export(model, plan, tmp_path / "out", dequantise=True)
    report = verified(tmp_path / "out", source=model.checkpoint.path, directories=(stats,))
    assert report.level == "logits"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_measurements_are_those_of_the_plain_one(pair, tmp_path, stream):
    """What plans cost, and the sensitivity of layers."""
    text, outcomes = str(random_ids(tmp_path / "text.jsonl", (4, 9), vocab=51)), []
    for number, model in enumerate(pair):
        common = {"model": str(model.checkpoint.path), "stats_dir": tmp_path / str(number)}
        common |= {"corpora": (text,), "samples": 4, "dtype": "bfloat16", "stream_layers": stream}
        plan = keeping(model, KEPT).to_dict()
        (record,) = drain(evaluate_run(EvaluateRequest(**common, plans=(plan,))))
        drain(sensitivity_run(SensitivityRequest(**common, criterion="random", levels=2)))
        store = SensitivityStore([tmp_path / str(number)])
        (curves,) = store.records()
        known = store.points(curves)
        values = [known.values(plan.removed, known.samples()).tolist() for plan in curves.plans]
        outcomes.append((record.metrics, dict(zip(curves.plans, values, strict=True))))
    (metrics, points), (plain_metrics, plain_points) = outcomes
    assert metrics == plain_metrics
    assert len(points) >= 2 * len(pair[0].layers)
    assert points == plain_points


def test_a_changed_number_is_found(pair, tmp_path):
    export(pair[0], KEPT, tmp_path / "out", dequantise=True)
    name = "model.layers.1.mlp.experts.1.down_proj.weight"
    edit_tensors(shards_of(tmp_path / "out")[0], lambda held: held | {name: held[name] * 2})
    found = failed(tmp_path / "out", level="bytes", source=pair[0].checkpoint.path)["tensors"]
    assert found.startswith(f"{name} is not BF16 of the source's ")


def test_rounding_is_torchs():
    bits = torch.arange(0, 1 << 32, 4093, dtype=torch.int64)
    halfway = torch.arange(0, 1 << 16) << 16 | 0x8000
    values = torch.cat((bits, halfway)).to(torch.uint32).view(torch.float32)
    wanted = values.to(torch.bfloat16)
    rounded = torch.from_numpy(bfloat16_bits(values.numpy())).view(torch.bfloat16)
    assert torch.equal(rounded.isnan(), wanted.isnan())
    assert torch.equal(rounded[~rounded.isnan()], wanted[~wanted.isnan()])
