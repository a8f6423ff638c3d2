"""What verification finds beyond hashes: headers, index, logits, quantised sources."""

import json
from dataclasses import replace

import pytest
import torch
from exports import (
    accept_changes,
    edit_tensors,
    export,
    failed,
    shards_of,
    verified,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analysis.checkpoint.index import INDEX_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from builders import edit_json, tiny_checkpoint
from families.configs import BY_NAME
from families.tiny_models import redraw, tiny_config
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.surgery.forward_checks import Sides, check_logits, random_tokens
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.surgery.running import run_whole
from pruning.surgery.verify import verify_export


@pytest.fixture
def out(checkpoint, tmp_path):
    """An export of an OLMoE."""
    export(checkpoint("olmoe").path, (1, 3, 4), tmp_path / "out")
    return tmp_path / "out"


def test_what_a_good_export_holds(out):
    report = drain(verify_export(out, level="bytes"))
    manifest, held = read_manifest(out), open_checkpoint(out)
    count, nbytes = len(manifest.shards), sum(f.stat().st_size for f in out.glob("*.safetensors"))
    assert {check.name: check.detail for check in report.checks} == {
        "manifest": f"plan {manifest.plan.digest[:8]}, written by version {manifest.tool_version}",
        "shards": f"{count} shards, none missing, none extra",
        "sizes": f"{nbytes:,} bytes in all",
        "sha256": f"{count} shards as written",
        "files": f"{len(manifest.files)} other files as they were written",
        "headers": f"{len(held.tensors)} tensors, as manifest and index say",
        "experts": "ids 0..2 in each of 3 sparse layers, as config.json says",
    }


def test_a_manifest_that_names_other_tensors(out):
    shards = json.loads((out / MANIFEST_NAME).read_text())["shards"]
    gone = min(shards[1]["tensors"])
    shards[1]["tensors"].remove(gone)
    edit_json(out / MANIFEST_NAME, shards=shards)
    assert failed(out, level="bytes") == {
        "headers": f"{shards[1]['name']} does not hold the tensors of the manifest: {gone}"
    }


def test_an_index_with_another_size(out):
    index = json.loads((out / INDEX_NAME).read_text())
    index["metadata"]["total_size"] += 4
    (out / INDEX_NAME).write_text(json.dumps(index))
    accept_changes(out)
    held = open_checkpoint(out).nbytes
    assert failed(out, level="bytes") == {
        "headers": f"{INDEX_NAME} gives {held + 4} bytes in all instead of {held}"
    }
    del index["metadata"]
    (out / INDEX_NAME).write_text(json.dumps(index))
    accept_changes(out)
    assert failed(out, level="bytes") == {}


def test_a_tensor_that_no_class_knows_fails_at_load(out):
    name, index = "model.surplus.weight", json.loads((out / INDEX_NAME).read_text())
    shard = shards_of(out)[0]
    edit_tensors(shard, lambda held: held | {name: torch.zeros(3)})
    index["weight_map"][name] = shard.name
    index["metadata"]["total_size"] += 12
    (out / INDEX_NAME).write_text(json.dumps(index))
    accept_changes(out)
    assert failed(out, level="bytes") == {}
    assert failed(out, level="load") == {"load": f"transformers reports 1 unexpected keys: {name}"}


OLMOE = BY_NAME["olmoe"]


def compared(sides, ids):
    """The check of logits of whole models, and the largest difference."""
    return drain(check_logits(sides, ids, run_whole))


@pytest.mark.parametrize("mode", ["uniform", "per-layer"])
def test_neurons_are_compared_in_float64(neuron_source, width_export, mode):
    source = neuron_source(OLMOE)
    exported = load_model_index(str(width_export(OLMOE, mode).path))
    ids = random_tokens(source.described, 32)
    plan = fit_plan(source.plan, source.described)
    check, difference = compared(Sides(exported, source.described, plan), ids)
    # Logits of about 1 with 2^-53 of rounding; in float32 they would differ by 1e-7.
    assert check.ok and difference < 1e-12
    assert "on 32 random tokens in float64," in check.detail
    first = OLMOE.sparse[0]
    others = plan.kept_neurons | {first: plan.kept_neurons[first] | {1: (0,)}}
    plan = replace(plan, kept_neurons=others)
    check, difference = compared(Sides(exported, source.described, plan), ids)
    assert not check.ok and difference > 1e-5


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
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq cannot be loaded"),
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
