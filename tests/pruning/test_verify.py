"""Verification: good exports pass every level, and each kind of damage is named."""

import json
import shutil
import threading
from collections import namedtuple

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.checkpoint import open_checkpoint
from analysis.drain import drain
from analysis.errors import CheckpointError, ExportError
from analysis.model import load_model_index
from builders import MODEL_TYPES
from pruning.plan import PruningPlan, model_ref
from pruning.surgery.export import export_checkpoint
from pruning.surgery.manifest import MANIFEST_NAME, file_record
from pruning.surgery.verify import Level, verify_export


@pytest.fixture
def exported(checkpoint, tmp_path):
    """(source, export) of an OLMoE with experts 1, 3, 4, 6 kept."""
    return make_export(checkpoint("olmoe").path, tmp_path / "out")


def make_export(source, out, kept=(1, 3, 4)):
    model = load_model_index(str(source))
    plan = PruningPlan(model_ref(model), {layer.index: kept for layer in model.layers})
    drain(export_checkpoint(model, plan, out))
    return source, out


def failed(out, **options):
    """name -> detail of the checks that fail."""
    report = drain(verify_export(out, **options))
    assert not report.ok
    assert all("\n" not in check.detail for check in report.checks)
    return {check.name: check.detail for check in report.checks if not check.ok}


def shards_of(out):
    return sorted(out.glob("*.safetensors"))


def accept_changes(out):
    """Make the manifest agree with the files, as somebody who covers up would."""
    raw = json.loads((out / MANIFEST_NAME).read_text())
    for shard in raw["shards"]:
        record = file_record((out / shard["name"]).read_bytes())
        shard |= {"bytes": record.bytes, "sha256": record.sha256}
        shard["tensors"] = list(load_file(out / shard["name"]))
    for name in raw["files"]:
        record = file_record((out / name).read_bytes())
        raw["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}
    (out / MANIFEST_NAME).write_text(json.dumps(raw))


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_good_export_passes_all_levels(checkpoint, tmp_path, model_type, fused, dtype):
    source, out = make_export(
        checkpoint(model_type, fused=fused, dtype=dtype).path, tmp_path / "out"
    )
    report = drain(verify_export(out, source=source))
    assert report.ok, report.checks
    assert report.level is Level.LOGITS
    assert report.max_abs_diff <= 1e-5
    names = [check.name for check in report.checks]
    levels = ["manifest", "shards", "sizes", "sha256", "files", "headers", "experts"]
    assert names == [*levels, "source", "tensors", "load", "logits"]


def test_every_source_tensor_is_accounted_for(exported):
    source, out = exported
    report = drain(verify_export(out, level="bytes", source=source))
    (check,) = (check for check in report.checks if check.name == "source")
    # 3 layers x 3 projections of 7 experts, of which 3 stay; 3 routers are cut.
    total = len(load_model_index(str(source)).checkpoint.tensors)
    dropped = 3 * 3 * (7 - 3)
    assert f"source's {total} tensors" in check.detail
    assert f"{total - dropped - 3} copied, 3 cut, {dropped} dropped" in check.detail


@pytest.mark.parametrize(
    ("available", "level", "reason"),
    [
        (1 << 40, Level.LOGITS, "the highest level"),
        (1 << 29, Level.BYTES, "the level 'load' needs"),
        ((1 << 29) + 100_000, Level.LOAD, "the level 'logits' needs"),
    ],
)
def test_the_level_is_the_highest_that_memory_allows(
    exported, monkeypatch, available, level, reason
):
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(available))
    report = drain(verify_export(exported[1], source=exported[0]))
    assert report.ok
    assert report.level is level
    assert reason in report.reason


def test_memory_that_is_just_enough_or_not(exported, monkeypatch):
    memory, model = namedtuple("memory", "available"), load_model_index(str(exported[0]))
    # Four bytes for each parameter and a quarter more; the bytes on disk and a quarter more.
    beside = 1 << 29
    logits = int(4 * model.checkpoint.num_params * 1.25) + beside
    load = int(sum(shard.stat().st_size for shard in shards_of(exported[1])) * 1.25) + beside
    for available, level in (
        (logits, Level.LOGITS),
        (logits - 1, Level.LOAD),
        (load, Level.LOAD),
        (load - 1, Level.BYTES),
    ):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=available: memory(free))
        assert drain(verify_export(exported[1], source=exported[0])).level is level


def test_without_a_source_the_level_is_load(exported):
    report = drain(verify_export(exported[1]))
    assert report.level is Level.LOAD
    assert "no source was given" in report.reason
    assert report.max_abs_diff is None


def test_a_level_that_was_asked_for_is_the_one_reached(exported):
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


def test_what_is_no_directory_is_refused(tmp_path):
    with pytest.raises(ExportError, match="absent is not a directory"):
        drain(verify_export(tmp_path / "absent"))


def test_a_source_that_cannot_be_read_is_refused(exported, tmp_path):
    with pytest.raises(CheckpointError, match="is not a directory"):
        drain(verify_export(exported[1], source=tmp_path / "absent"))


@pytest.mark.parametrize(("tokens", "run"), [(1, 1), (33, 64), (64, 64)])
def test_so_many_tokens_are_run_or_a_few_more(exported, tokens, run):
    report = drain(verify_export(exported[1], source=exported[0], tokens=tokens))
    assert report.ok
    (logits,) = (check for check in report.checks if check.name == "logits")
    assert f"on {run} random tokens" in logits.detail


def test_no_manifest_means_no_finished_export(exported):
    (exported[1] / MANIFEST_NAME).unlink()
    assert "not a finished export" in failed(exported[1])["manifest"]


def test_what_is_called_unfinished_is_not_a_finished_export(exported):
    exported[1].rename(exported[1].with_name("out.partial"))
    found = failed(exported[1].with_name("out.partial"))
    assert "is an unfinished export, by its name" in found["manifest"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "schema_version 1"),
        ('{"schema_version": 1}', "is damaged"),
    ],
)
def test_a_damaged_manifest_fails(exported, content, message):
    (exported[1] / MANIFEST_NAME).write_text(content)
    assert message in failed(exported[1])["manifest"]


def test_a_changed_plan_in_the_manifest_fails(exported):
    plan = json.loads((exported[1] / MANIFEST_NAME).read_text())["plan"]
    plan["kept"]["1"] = [0, 1, 2]
    edit_json(exported[1] / MANIFEST_NAME, plan=plan)
    assert "plan_digest" in failed(exported[1])["manifest"]


@pytest.mark.parametrize("field", ["copied", "cut", "dropped"])
def test_a_changed_number_of_tensors_in_the_manifest_is_named(exported, field):
    source, out = exported
    shards = json.loads((out / MANIFEST_NAME).read_text())["shards"]
    shards[1][field] += 1
    edit_json(out / MANIFEST_NAME, shards=shards)
    found = failed(out, source=source)
    assert set(found) == {"source"}
    assert found["source"].startswith(shards[1]["name"])
    assert str(shards[1][field]) in found["source"]


def test_other_changed_facts_of_the_manifest_are_named(exported):
    source, out = exported
    whole = json.loads((out / MANIFEST_NAME).read_text())
    edit_json(out / MANIFEST_NAME, dropped_shards=["other.safetensors"])
    assert "names other.safetensors" in failed(out, source=source)["source"]
    edit_json(out / MANIFEST_NAME, **{**whole, "uniform_counts": False})
    assert "uniform_counts" in failed(out)["manifest"]
    files = {**whole["files"], "config.json": {**whole["files"]["config.json"], "bytes": 7}}
    edit_json(out / MANIFEST_NAME, uniform_counts=True, files=files)
    assert "config.json has" in failed(out)["files"]


def test_one_flipped_bit_fails(exported):
    shard = shards_of(exported[1])[1]
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    assert failed(exported[1]) == {
        "sha256": f"{shard.name} was changed after the export: its SHA-256 differs"
    }


def test_truncation_fails(exported):
    shard = shards_of(exported[1])[0]
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-64])
    found = failed(exported[1])
    assert found["sizes"] == f"{shard.name} has {size - 64} bytes instead of {size}"
    assert f"{shard.name} is truncated" in found["headers"]


def test_a_missing_shard_fails(exported):
    shard = shards_of(exported[1])[2]
    shard.unlink()
    found = failed(exported[1])
    assert found["shards"] == f"{shard.name} is missing"
    assert shard.name in found["headers"]


def test_an_extra_shard_fails(exported):
    shutil.copy(shards_of(exported[1])[0], exported[1] / "extra.safetensors")
    assert failed(exported[1]) == {"shards": "extra.safetensors is no part of the export"}


def test_an_edited_configuration_fails_and_an_edited_card_does_not(exported):
    (exported[1] / "README.md").write_text("# A better card")
    assert drain(verify_export(exported[1], level="bytes")).ok
    edit_json(exported[1] / "config.json", num_experts_per_tok=1)
    assert failed(exported[1])["files"].startswith("config.json was changed")


def test_a_missing_companion_fails(exported):
    (exported[1] / "generation_config.json").unlink()
    assert failed(exported[1]) == {"files": "generation_config.json is missing"}


def rename_tensors(out, changes):
    """Rename tensors in their shards and in the index."""
    index = json.loads((out / "model.safetensors.index.json").read_text())
    for shard in shards_of(out):
        tensors = {name: tensor.clone() for name, tensor in load_file(shard).items()}
        renamed = {changes.get(name, name): tensor for name, tensor in tensors.items()}
        save_file(renamed, shard, metadata={"format": "pt"})
    placed = {changes.get(name, name): shard for name, shard in index["weight_map"].items()}
    edit_json(out / "model.safetensors.index.json", weight_map=placed)


def test_a_gap_in_the_ids_fails_even_when_the_manifest_was_adjusted(exported):
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


def test_a_count_that_is_not_that_of_the_weights_fails(exported):
    edit_json(exported[1] / "config.json", num_experts=4)
    accept_changes(exported[1])
    assert "lacks the expert 3's" in failed(exported[1])["experts"]


def test_an_index_that_forgets_a_tensor_fails(exported):
    path = exported[1] / "model.safetensors.index.json"
    weight_map = json.loads(path.read_text())["weight_map"]
    del weight_map["model.norm.weight"]
    edit_json(path, weight_map=weight_map)
    accept_changes(exported[1])
    assert failed(exported[1])["headers"].endswith("does not list model.norm.weight")


def test_an_export_of_another_plan_fails(exported, tmp_path):
    # Weights of another export beside the manifest of this one: all hashes adjusted.
    source, out = exported
    _, other = make_export(source, tmp_path / "other", kept=(0, 1, 2, 3))
    for file in other.iterdir():
        if file.name != MANIFEST_NAME:
            shutil.copy(file, out)
    accept_changes(out)
    assert failed(out)["experts"] == (
        "layer 0 holds 4 experts, but the plan keeps 3; layer 1 holds 4 experts, but the plan "
        "keeps 3; layer 2 holds 4 experts, but the plan keeps 3"
    )


def test_another_source_fails(exported, checkpoint):
    other = checkpoint("olmoe", seed=5).path
    found = failed(exported[1], source=other)
    assert "seed=5" in found["source"]
    assert "is not what was exported" in found["source"]


def swap_experts(out):
    """Exchange experts 0 and 1 of layer 2; all bytes add up and the manifest is adjusted."""
    head = "model.layers.2.mlp.experts."
    changes = {}
    for p in ("gate", "up", "down"):
        changes |= {
            f"{head}0.{p}_proj.weight": f"{head}1.{p}_proj.weight",
            f"{head}1.{p}_proj.weight": f"{head}0.{p}_proj.weight",
        }
    rename_tensors(out, changes)
    accept_changes(out)


def test_experts_that_changed_places_fail_beside_the_source_only(exported):
    source, out = exported
    swap_experts(out)
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


def change_value(out, name, index):
    """Make one number of a tensor another, and adjust the manifest."""
    shard = next(shard for shard in shards_of(out) if name in load_file(shard))
    tensors = {key: tensor.clone() for key, tensor in load_file(shard).items()}
    tensors[name][index] += 1
    save_file(tensors, shard, metadata={"format": "pt"})
    accept_changes(out)


@pytest.mark.parametrize(
    ("name", "index", "whose"),
    [
        # 16 columns of float32: row 2, column 5 begins at byte (2 * 16 + 5) * 4.
        ("model.layers.1.mlp.gate.weight", (2, 5), "the plan's cut"),
        ("model.embed_tokens.weight", (2, 5), "a copy"),
        ("model.layers.1.mlp.experts.2.gate_proj.weight", (2, 5), "a copy"),
    ],
)
def test_one_number_that_differs_is_named(exported, name, index, whose):
    source, out = exported
    change_value(out, name, index)
    found = failed(out, source=source)
    assert set(found) == {"tensors"}
    assert found["tensors"].startswith(f"{name} is not {whose} of the source's model.")
    byte = int(found["tensors"].split("byte ")[1].split()[0])
    assert 4 * (2 * 16 + 5) <= byte < 4 * (2 * 16 + 6)


def test_of_several_differences_the_first_on_disk_is_named(exported):
    source, out = exported
    names = [name for shard in shards_of(out) for name in load_file(shard)]
    for name in (names[-1], names[4], names[9]):
        change_value(out, name, 0)
    first = next(
        entry.name
        for entry in open_checkpoint(out).tensors.values()
        if entry.name in (names[-1], names[4], names[9])
    )
    found = failed(out, source=source)["tensors"]
    assert found.startswith(f"{first} is not")
    assert found.count(" is not ") == 1


@pytest.mark.parametrize("phase", ["hashing", "comparing"])
def test_a_verification_that_is_stopped_leaves_no_thread(exported, phase):
    source, out = exported
    task = verify_export(out, source=source)
    assert phase in (step.phase for step in task)
    task.close()
    assert not [thread.name for thread in threading.enumerate() if "verify" in thread.name]


def test_a_tensor_of_the_experts_that_is_unknown_fails(exported, tmp_path):
    # As if it had been exported by a version that copied such a tensor.
    source = tmp_path / "source"
    shutil.copytree(exported[0], source)
    shard, name = shards_of(source)[0], "model.layers.1.second.experts.0.weight"
    tensors = {key: tensor.clone() for key, tensor in load_file(shard).items()}
    save_file({**tensors, name: torch.zeros(2)}, shard, metadata={"format": "pt"})
    identity = load_model_index(str(source)).identity
    manifest = exported[1] / MANIFEST_NAME
    raw = json.loads(manifest.read_text())
    edit_json(manifest, source={**raw["source"], "identity": identity})
    found = failed(exported[1], source=source)
    assert f"{name} belongs to the experts of layer 1" in found["source"]


def test_weights_that_are_not_finite_fail_at_load(exported):
    shard = shards_of(exported[1])[-1]
    tensors = {name: tensor.clone() for name, tensor in load_file(shard).items()}
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, shard, metadata={"format": "pt"})
    accept_changes(exported[1])
    assert failed(exported[1])["load"].endswith("are not all finite")


def test_what_transformers_cannot_load_fails_at_load(exported):
    edit_json(exported[1] / "config.json", vocab_size=90)
    accept_changes(exported[1])
    assert "cannot load the export" in failed(exported[1])["load"]
