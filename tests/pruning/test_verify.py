"""Verification: good exports pass every level, each kind of damage is named, also beyond hashes."""

import json
import shutil
import threading
from collections import namedtuple
from dataclasses import replace

import psutil
import pytest
import torch
from exports import accept_changes, edit_tensors, export, failed, shards_of, tensors_of, verified
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analysis.checkpoint.index import INDEX_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from builders import edit_json, put, tiny_checkpoint
from builders.mxfp4 import to_mxfp4
from families.configs import BY_NAME
from families.tiny_models import redraw, tiny_config
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.surgery.forward_checks import check_logits, random_tokens
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.surgery.running import run_whole
from pruning.surgery.verify import Level, verify_export
from pruning.surgery.verify_costs import Sides


@pytest.fixture
def exported(checkpoint, tmp_path):
    """(source, export) of an OLMoE with experts 1, 3, 4 kept."""
    source, out = checkpoint("olmoe").path, tmp_path / "out"
    export(source, (1, 3, 4), out)
    return source, out


def test_what_a_good_export_holds(exported):
    _, out = exported
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


def test_the_level_is_the_highest_that_memory_allows(exported, monkeypatch):
    memory, model = namedtuple("memory", "available"), load_model_index(str(exported[0]))
    # Four bytes for each parameter and a quarter more; the bytes on disk and a quarter more.
    beside = 1 << 29
    logits = int(4 * model.checkpoint.num_params * 1.25) + beside
    load = int(sum(shard.stat().st_size for shard in shards_of(exported[1])) * 1.25) + beside
    for available, level, reason in (
        (logits, Level.LOGITS, "the highest level"),
        (logits - 1, Level.LOAD, "the level 'logits' needs"),
        (load, Level.LOAD, "the level 'logits' needs"),
        (load - 1, Level.BYTES, "the level 'load' needs"),
    ):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=available: memory(free))
        report = drain(verify_export(exported[1], source=exported[0]))
        assert report.ok and report.level is level
        assert reason in report.reason


def test_the_level_reached_and_why(exported):
    report = drain(verify_export(exported[1]))
    assert (report.level, report.max_abs_diff) == (Level.LOAD, None)
    assert "no source was given" in report.reason
    report = drain(verify_export(exported[1], level="bytes", source=exported[0]))
    assert (report.level, report.reason) == (Level.BYTES, "as asked for")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "logits"}, "give its directory"),
        ({"level": "bites"}, "Did you mean 'bytes'"),
        ({"tokens": 0}, "run at least 1"),
    ],
)
def test_requests_that_make_no_sense_are_refused(exported, options, message):
    with pytest.raises(ExportError, match=message):
        drain(verify_export(exported[1], **options))


@pytest.mark.parametrize(("tokens", "run"), [(1, 1), (33, 64)])
def test_so_many_tokens_are_run_or_a_few_more(exported, tokens, run):
    report = verified(exported[1], source=exported[0], tokens=tokens)
    (logits,) = (check for check in report.checks if check.name == "logits")
    assert f"on {run} random tokens" in logits.detail


def test_what_is_called_unfinished_is_not_a_finished_export(exported):
    exported[1].rename(exported[1].with_name("out.partial"))
    found = failed(exported[1].with_name("out.partial"))
    assert "is an unfinished export, by its name" in found["manifest"]


NORM = "model.norm.weight"


def edit_manifest(change):
    def edit(out):
        raw = json.loads((out / MANIFEST_NAME).read_text())
        change(raw)
        (out / MANIFEST_NAME).write_text(json.dumps(raw))

    return edit


def write_manifest(content):
    return lambda out: (out / MANIFEST_NAME).write_text(content)


def change_config(**changes):
    return lambda out: edit_json(out / "config.json", **changes)


def forget_the_norm(out):
    placed = json.loads((out / INDEX_NAME).read_text())["weight_map"]
    edit_json(out / INDEX_NAME, weight_map={n: at for n, at in placed.items() if n != NORM})


def add_a_tensor(out):
    name, shard = "model.surplus.weight", shards_of(out)[0]
    index = json.loads((out / INDEX_NAME).read_text())
    edit_tensors(shard, lambda held: held | {name: torch.zeros(3)})
    index["weight_map"][name] = shard.name
    index["metadata"]["total_size"] += 12
    (out / INDEX_NAME).write_text(json.dumps(index))


def plan_for_other_layers(out):
    manifest = read_manifest(out)
    kept = {9 if layer == 1 else layer: ids for layer, ids in manifest.plan.kept.items()}
    changed = replace(manifest, plan=replace(manifest.plan, kept=kept))
    (out / MANIFEST_NAME).write_text(changed.to_json())


def not_finite(out):
    edit_tensors(shards_of(out)[-1], lambda held: held | {NORM: torch.full((16,), torch.nan)})


# What is done to an export -> the check that fails and what it says.
DAMAGES = [
    (lambda out: (out / MANIFEST_NAME).unlink(), "manifest", "not a finished export"),
    (write_manifest("{"), "manifest", "cannot be read"),
    (write_manifest("[]"), "manifest", "states no schema_version"),
    (write_manifest('{"schema_version": 1}'), "manifest", "is damaged"),
    (edit_manifest(put("plan", "kept", "1", to=[0, 1, 2])), "manifest", "plan_digest"),
    (edit_manifest(put("uniform_counts", to=False)), "manifest", "uniform_c"),
    (
        edit_manifest(lambda raw: raw["shards"][3]["tensors"].remove(NORM)),
        "headers",
        f"model-00004-of-00004.safetensors does not hold the tensors of the manifest: {NORM}",
    ),
    (edit_manifest(put("files", "config.json", "bytes", to=7)), "files", "config.json has"),
    (change_config(num_experts_per_tok=1), "files", "config.json was changed"),
    (
        lambda out: (out / "generation_config.json").unlink(),
        "files",
        "generation_config.json is missing",
    ),
]
# The same where the manifest was made to agree.
COVERED_UP = [
    (change_config(num_experts=4), "experts", "Layer 0 holds 3 experts"),
    (
        plan_for_other_layers,
        "experts",
        "layer 1 holds 3 experts, but the plan keeps 0; layer 9 holds 0 experts, but the plan ",
    ),
    (forget_the_norm, "headers", f"does not list {NORM}"),
    (add_a_tensor, "load", "transformers reports 1 unexpected keys: model.surplus.weight"),
    (not_finite, "load", "are not all finite"),
    (change_config(vocab_size=90), "load", "cannot load the export"),
]


@pytest.mark.parametrize(
    ("damage", "check", "message", "covered_up"),
    [*((*damage, False) for damage in DAMAGES), *((*damage, True) for damage in COVERED_UP)],
)
def test_damage_is_named(exported, damage, check, message, covered_up):
    _, out = exported
    damage(out)
    if covered_up:
        accept_changes(out)
    found = failed(out)
    assert list(found) == [check]
    assert message in found[check]


def test_an_edited_card_is_no_damage(exported):
    (exported[1] / "README.md").write_text("# A better card")
    assert drain(verify_export(exported[1], level="bytes")).ok


def test_damage_to_shards_is_named(exported):
    _, out = exported
    first, second, third = shards_of(out)[:3]
    whole = second.read_bytes()
    second.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    changed = f"{second.name} was changed after the export: its SHA-256 differs"
    assert failed(out) == {"sha256": changed}
    second.write_bytes(whole[:-64])
    found = failed(out)
    assert found["sizes"] == f"{second.name} has {len(whole) - 64} bytes instead of {len(whole)}"
    assert f"{second.name} is truncated" in found["headers"]
    second.write_bytes(whole)
    shutil.copy(first, out / "extra.safetensors")
    assert failed(out) == {"shards": "extra.safetensors is no part of the export"}
    (out / "extra.safetensors").unlink()
    third.unlink()
    found = failed(out)
    for check in ("shards", "sizes", "sha256"):
        assert found[check] == f"{third.name} is missing"
    assert third.name in found["headers"]


def rename_tensors(out, changes):
    """Rename tensors in their shards and in the index."""
    index = json.loads((out / INDEX_NAME).read_text())
    for shard in shards_of(out):
        edit_tensors(shard, lambda held: {changes.get(name, name): t for name, t in held.items()})
    placed = {changes.get(name, name): shard for name, shard in index["weight_map"].items()}
    edit_json(out / INDEX_NAME, weight_map=placed)


def test_a_gap_in_the_ids_fails(exported):
    # transformers would load this without a word.
    source, out = exported
    head = "model.layers.1.mlp.experts."
    changes = {
        f"{head}2.{p}_proj.weight": f"{head}5.{p}_proj.weight" for p in ("gate", "up", "down")
    }
    rename_tensors(out, changes)
    accept_changes(out)
    found = failed(out, source=source)
    assert set(found) == {"experts", "source"}
    assert "Layer 1 holds an expert 5, but config.json says 3 experts (0..2)" in found["experts"]
    assert f"{head}2.down_proj.weight" in found["source"]


def test_an_export_of_another_plan_fails(exported, tmp_path):
    # Weights of another export beside the manifest of this one: all hashes adjusted.
    source, out = exported
    export(source, (0, 1, 2, 3), tmp_path / "other")
    for file in (tmp_path / "other").iterdir():
        if file.name != MANIFEST_NAME:
            shutil.copy(file, out)
    accept_changes(out)
    assert failed(out)["experts"] == (
        "layer 0 holds 4 experts, but the plan keeps 3; layer 1 holds 4 experts, but the plan "
        "keeps 3; layer 2 holds 4 experts, but the plan keeps 3"
    )


def test_another_source_is_not_called_changed_bytes(exported, checkpoint):
    other = checkpoint("olmoe", seed=1).path
    report = drain(verify_export(exported[1], source=other))
    assert not report.ok
    assert report.reason == "the source given does not lead to this export"
    shards_of(exported[1])[0].write_bytes(b"")
    assert drain(verify_export(exported[1], source=other)).reason.startswith("the bytes are not")


def test_experts_that_changed_places_fail_beside_the_source_only(exported):
    source, out = exported
    # Experts 0 and 1 of layer 2: all bytes add up and the manifest is adjusted.
    names = [
        [f"model.layers.2.mlp.experts.{expert}.{part}_proj.weight" for expert in (0, 1)]
        for part in ("gate", "up", "down")
    ]
    rename_tensors(out, {old: new for pair in names for old, new in (pair, pair[::-1])})
    accept_changes(out)
    assert drain(verify_export(out)).ok
    report = drain(verify_export(out, source=source))
    assert [check.name for check in report.checks if not check.ok] == ["tensors"]
    assert report.level is Level.BYTES
    # Expert 0 is the source's 1.
    detail = next(check.detail for check in report.checks if not check.ok)
    number = int(detail[len("model.layers.2.mlp.experts.")])
    assert number in (0, 1)
    name = "model.layers.2.mlp.experts.{}." + detail.split(".")[6]
    assert detail == (
        f"{name.format(number)}.weight is not a copy of the source's "
        f"{name.format((1, 3)[number])}.weight: byte 0 of the tensor is the first that differs"
    )


def test_of_several_differences_the_first_on_disk_is_named(exported):
    source, out = exported
    names = list(tensors_of(out))
    for name in (names[-1], names[4], names[9]):
        shard = next(shard for shard in shards_of(out) if name in tensors_of(shard))
        edit_tensors(shard, lambda held, name=name: held | {name: held[name] + 1})
    accept_changes(out)
    first = next(
        entry.name
        for entry in open_checkpoint(out).tensors.values()
        if entry.name in (names[-1], names[4], names[9])
    )
    found = failed(out, source=source)["tensors"]
    assert found.startswith(f"{first} is not")
    assert found.count(" is not ") == 1


def test_a_verification_that_is_stopped_leaves_no_thread(exported):
    source, out = exported
    task = verify_export(out, source=source)
    assert "verifying" in (step.phase for step in task)
    task.close()
    assert not [thread.name for thread in threading.enumerate() if "verify" in thread.name]


def test_a_tensor_of_the_experts_that_is_unknown_fails(exported, tmp_path):
    # As if it had been exported by a version that copied such a tensor.
    source = tmp_path / "source"
    shutil.copytree(exported[0], source)
    shard, name = shards_of(source)[0], "model.layers.1.second.experts.0.weight"
    edit_tensors(shard, lambda held: held | {name: torch.zeros(2)})
    identity = load_model_index(str(source)).identity
    manifest = exported[1] / MANIFEST_NAME
    raw = json.loads(manifest.read_text())
    edit_json(manifest, source={**raw["source"], "identity": identity})
    found = failed(exported[1], source=source)
    assert f"{name} belongs to the experts of layer 1" in found["source"]


def test_an_index_with_another_size(exported):
    _, out = exported
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


OLMOE, GPT_OSS = BY_NAME["olmoe"], BY_NAME["gpt_oss"]


def compared(sides, ids):
    """The check of logits of whole models, and the largest difference."""
    outcomes = [drain(run_whole(one, ids)) for one in sides.passes]
    return check_logits(sides, *outcomes)


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


KEPT = {"uniform": ((1, 3, 4), (0, 2, 5)), "mixed": ((1, 3, 4), (0, 2, 3, 5))}


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory):
    """A gpt-oss whose experts are in MXFP4."""
    path = tmp_path_factory.mktemp("mxfp4")
    config = tiny_config(GPT_OSS)
    config.hidden_size, config.intermediate_size = 32, 64
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        redraw(model)
    model.save_pretrained(path)
    tensors = to_mxfp4(load_file(path / "model.safetensors"))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    plain = ["self_attn", "router", "lm_head"]
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": plain}
    edit_json(path / "config.json", quantization_config=settings)
    return path


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
