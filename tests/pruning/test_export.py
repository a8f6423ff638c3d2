"""Exports that succeed: what they compute and what their files hold."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exports import export, tensors_of, verified
from reads import bytes_read, counts_reads
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from analysis.checkpoint.opening import open_checkpoint
from analysis.model.opening import load_model_index
from builders import tiny_model
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.plan.sizes import neuron_plan_sizes, size_report
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest


def plan_of(model, keep):
    """Keep so many experts in each layer, always other ones; never simply the first."""
    kept = {}
    for layer in model.layers:
        seeded = torch.Generator().manual_seed(layer.index + 1)
        ids = torch.randperm(layer.num_experts, generator=seeded)[:keep]
        kept[layer.index] = tuple(sorted(ids.tolist()))
    return PruningPlan(model_ref(model), kept)


@pytest.mark.parametrize("widths", [None, *map(WidthChoice, WidthMode)], ids=str)
def test_a_plan_that_removes_nothing_exports_the_bytes_of_its_source(tmp_path, widths):
    model = load_model_index("demo")
    assert model.tied_embedding  # which any other export writes again
    plan = replace(keep_all(model), granularity="neuron" if widths else "expert")
    sizes = size_report(model, plan)
    assert (sizes.bytes_after, sizes.copied) == (sizes.bytes_before, 0)
    if widths:
        assert set(neuron_plan_sizes(model, plan)["disk"]) == {sizes.bytes_before}
    export(model, plan, tmp_path / "out", widths=widths)
    for name in ("model.safetensors", "config.json"):
        written = (tmp_path / "out" / name).read_bytes()
        assert written == (model.checkpoint.path / name).read_bytes()
    verified(tmp_path / "out", source=model.checkpoint.path, level="bytes")


def pruned(path, out, keep, **options):
    model = load_model_index(str(path))
    plan = plan_of(model, keep)
    return plan, export(model, plan, out, **options)


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("olmoe", {"num_experts"}),
        ("qwen3_moe", {"num_experts", "num_local_experts"}),
        ("mixtral", {"num_local_experts"}),
    ],
)
def test_only_counts_change_in_the_configuration(checkpoint, tmp_path, model_type, keys):
    source, out = checkpoint(model_type).path, tmp_path / "out"
    pruned(source, out, 4)
    before = json.loads((source / "config.json").read_text())
    after = json.loads((out / "config.json").read_text())
    assert {key: after[key] for key in keys} == dict.fromkeys(keys, 4)
    assert after["output_router_logits"] is False
    changed = {key for key in after if before.get(key) != after[key]}
    assert changed <= keys | {"output_router_logits"}
    assert before.keys() <= after.keys()
    assert [key for key in after if key in before] == list(before)


def test_a_configuration_of_transformers_4_keeps_its_keys(checkpoint, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(checkpoint("qwen3_moe").path, source)
    config = json.loads((source / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")
    config |= {"rope_theta": 1e6, "torch_dtype": config.pop("dtype"), "output_router_logits": True}
    config.pop("rope_parameters")
    (source / "config.json").write_text(json.dumps(config))
    pruned(source, out, 3)
    after = json.loads((out / "config.json").read_text())
    changed = {"num_experts": 3, "num_local_experts": 3, "output_router_logits": False}
    assert after == {**config, **changed}
    exported = AutoModelForCausalLM.from_pretrained(out)
    assert exported.model.layers[0].mlp.experts.num_experts == 3


def test_index_and_headers_agree_and_every_shard_loads(checkpoint, tmp_path):
    source, out = checkpoint("olmoe").path, tmp_path / "out"
    _, manifest = pruned(source, out, 3)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    held = {}
    for shard in manifest.shards:
        with safe_open(out / shard.name, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            held |= dict.fromkeys(file.keys(), shard.name)
        assert (out / shard.name).stat().st_size == shard.bytes
    assert index["weight_map"] == held
    total = sum(entry.nbytes for entry in open_checkpoint(out).tensors.values())
    assert index["metadata"]["total_size"] == total
    assert index["metadata"]["total_parameters"] == total // 4


def test_tied_embeddings_stay_tied_and_are_written_once(checkpoint, tmp_path):
    source, out = checkpoint("qwen3_moe").path, tmp_path / "out"
    pruned(source, out, 3)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    held = tensors_of(out)
    assert "lm_head.weight" not in held
    exported = AutoModelForCausalLM.from_pretrained(out)
    assert exported.lm_head.weight is exported.model.embed_tokens.weight
    assert torch.equal(exported.lm_head.weight, tensors_of(source)["model.embed_tokens.weight"])


def resave(source, target, arrange):
    """Copy a checkpoint; `arrange(tensors)` gives file name -> tensors."""
    target.mkdir()
    shutil.copy(source / "config.json", target)
    files = arrange(tensors_of(source))
    weight_map = {}
    for name, tensors in files.items():
        save_file(tensors, target / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    return target


def test_a_shard_with_other_numbers_gets_a_new_header(checkpoint, tmp_path):
    """One shard holds expert 5 of all layers alone: it stays whole and gets another number."""

    def arrange(tensors):
        alone = {name: t for name, t in tensors.items() if ".experts.5." in name}
        rest = {name: t for name, t in tensors.items() if name not in alone}
        return {"model-a.safetensors": alone, "model-b.safetensors": rest}

    source = resave(checkpoint("olmoe").path, tmp_path / "source", arrange)
    first, _ = export(source, (1, 2, 5), tmp_path / "out").shards
    assert (first.copied, first.cut, first.dropped) == (9, 0, 0)
    before, after = tensors_of(source / first.name), tensors_of(tmp_path / "out" / first.name)
    assert after.keys() == {name.replace(".experts.5.", ".experts.2.") for name in before}
    for name, tensor in before.items():
        assert torch.equal(after[name.replace(".experts.5.", ".experts.2.")], tensor)


@counts_reads
def test_every_byte_is_read_once(tmp_path):
    source = tmp_path / "source"
    # Embeddings are copied whole, and experts in pieces.
    sizes = {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 8000}
    tiny_model("olmoe", **sizes).save_pretrained(source, max_shard_size="5MB")
    model = load_model_index(str(source))
    before = bytes_read()
    manifest = export(model, plan_of(model, 3), tmp_path / "out")
    count = bytes_read() - before
    assert any(not shard.cut and not shard.dropped for shard in manifest.shards)
    assert open_checkpoint(tmp_path / "out").nbytes <= count <= 1.05 * manifest.nbytes


def test_shards_that_are_links_are_read_and_written_as_files(checkpoint, tmp_path):
    # As in the cache of the hub, where a snapshot holds links to blobs.
    source, linked = checkpoint("olmoe").path, tmp_path / "linked"
    linked.mkdir()
    for file in source.iterdir():
        (linked / file.name).symlink_to(file)
    pruned(source, tmp_path / "out", 3)
    _, manifest = pruned(linked, tmp_path / "of-links", 3)
    for shard in manifest.shards:
        written = tmp_path / "of-links" / shard.name
        assert not written.is_symlink()
        assert written.read_bytes() == (tmp_path / "out" / shard.name).read_bytes()


def test_tensors_that_belong_to_no_expert_are_copied(checkpoint, tmp_path):
    shapes = {
        **{"model.layers.0.self_attn.empty": (0, 16), "model.none": (3, 0)},  # without elements
        "vision.layers.0.mlp.experts.6.gate_proj.weight": (24, 16),  # outside of the trunk
        "model.layers.3.mlp.up_proj.weight": (16, 24),
        "mtp.layers.0.mlp.up_proj.weight": (7, 16),
    }
    extra = {name: torch.rand(shape) for name, shape in shapes.items()}
    source = resave(
        checkpoint("olmoe").path,
        tmp_path / "source",
        lambda tensors: {"model-a.safetensors": tensors | extra},
    )
    pruned(source, tmp_path / "out", 3)
    after = tensors_of(tmp_path / "out")
    assert all(torch.equal(after[name], tensor) for name, tensor in extra.items())


def test_the_manifest_tells_all_and_no_path(checkpoint, tmp_path):
    source, out = checkpoint("olmoe").path, tmp_path / "out"
    model = load_model_index(str(source))
    plan = plan_of(model, 3)
    manifest = export(model, plan, out, hash_source=True)
    assert read_manifest(out) == manifest
    assert manifest.plan == plan
    assert manifest.source.identity == model.identity
    shards = sorted(source.glob("*.safetensors"))
    content = b"".join(shard.read_bytes() for shard in shards)
    assert manifest.source.content_sha256 == hashlib.sha256(content).hexdigest()
    raw = json.loads((out / MANIFEST_NAME).read_text())
    assert raw["plan_digest"] == plan.digest
    assert raw["schema_version"] == 1
    assert "transformers" in raw["libraries"]
    assert str(source.parent) not in (out / MANIFEST_NAME).read_text()
    plain = export(model, plan, tmp_path / "plain")
    assert plain.source.content_sha256 == ""
    assert plain.shards == manifest.shards


def test_paths_are_accepted_relative_to_the_working_directory(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pruned(checkpoint("olmoe").path, Path("out"), 3)
    assert (tmp_path / "out" / MANIFEST_NAME).is_file()
