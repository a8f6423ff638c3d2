"""Exports of repaired plans: the repair's bytes in their places, the source's everywhere else."""

import json
from dataclasses import replace

import pytest
import torch
from exports import edit_tensors, export, failed, keeping_neurons, shards_of, tensors_of, uneven
from transformers import AutoModelForCausalLM

from analysis.drain import drain
from analysis.errors import ExportError, PlanError
from analysis.model import load_model_index
from builders.repairs import repaired
from families.configs import BY_NAME, tiny_model
from pruning.copies import plan_for_copy
from pruning.masking import masked
from pruning.plan import PruningPlan, model_ref, plan_from_dict
from pruning.surgery.card import CARD_NAME
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.surgery.verify import verify_export

# Per expert; stacked on disk; transposed with biases; groups and shared experts.
NAMES = ("olmoe", "granitemoe", "gpt_oss", "deepseek_v3-groups")


@pytest.fixture
def made(tmp_path):
    """A tiny model on disk, a repaired plan of it, and the folder of the repair."""

    def make(name, plan_of=uneven, **options):
        tiny_model(BY_NAME[name]).save_pretrained(tmp_path / "source", **options)
        model = load_model_index(str(tmp_path / "source"))
        plan, record = repaired(model, plan_of(model), tmp_path / "stats")
        assert record.files
        return model, plan

    return make


def verified(out, model, stats, **options):
    report = drain(
        verify_export(out, source=model.checkpoint.path, directories=(stats,), **options)
    )
    assert report.ok, [check for check in report.checks if not check.ok]
    return {check.name: check.detail for check in report.checks}


@pytest.mark.parametrize("name", NAMES)
def test_an_export_computes_what_the_masked_and_repaired_model_does(made, tmp_path, name):
    model, plan = made(name, max_shard_size="40KB")
    manifest = export(model, plan, tmp_path / "out")
    checks = verified(tmp_path / "out", model, tmp_path / "stats", level="logits")
    assert "repaired" in checks["source"]
    assert manifest.plan.repair == plan.repair
    assert manifest.plan.digest != plan.unrepaired.digest
    # Nothing but down projections differs from the export of the plan without its repair.
    export(model, plan.unrepaired, tmp_path / "plain")
    plain, new = tensors_of(tmp_path / "plain"), tensors_of(tmp_path / "out")
    assert plain.keys() == new.keys()
    changed = {key for key in plain if not torch.equal(plain[key], new[key])}
    slots = load_model_index(str(tmp_path / "out")).slots
    assert changed
    assert {(slots[key].projection, slots[key].role) for key in changed} == {("down", "weight")}
    assert sum(shard.repaired for shard in manifest.shards) >= len(changed)
    card = (tmp_path / "out" / CARD_NAME).read_text()
    assert "refitted in closed form on" in card


def test_plain_transformers_has_the_loss_of_the_repaired_model(made, tmp_path):
    model, plan = made("olmoe", lambda model: keeping(model, 3))
    export(model, plan, tmp_path / "out")
    ids = torch.arange(3, 51).reshape(3, 16)
    pruned = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    original = AutoModelForCausalLM.from_pretrained(model.checkpoint.path, dtype=torch.float32)
    with torch.no_grad():
        loss = pruned(ids, labels=ids).loss
        with masked(original, model.family, plan):
            assert torch.equal(original(ids, labels=ids).loss, loss)
        with masked(original, model.family, plan.unrepaired):
            assert not torch.equal(original(ids, labels=ids).loss, loss)


def keeping(model, count):
    kept = {layer.index: tuple(range(1, count + 1)) for layer in model.layers}
    return PruningPlan(model_ref(model), kept)


@pytest.mark.parametrize(
    ("name", "plan_of", "options"),
    [
        ("deepseek_v3-groups", uneven, {"pad": True}),
        ("olmoe", uneven, {"max_shard_bytes": 30_000}),
        (
            "olmoe",
            lambda model: keeping_neurons(
                model, {model.layers[0].index: {1: (0, 2, 5), 3: (1, 4)}}
            ),
            {},
        ),
    ],
    ids=["padded", "new shards", "neurons"],
)
def test_every_form_of_an_export_can_be_repaired(made, tmp_path, name, plan_of, options):
    model, plan = made(name, plan_of)
    export(model, plan, tmp_path / "out", **options)
    verified(tmp_path / "out", model, tmp_path / "stats", level="logits")


def test_a_changed_byte_is_found_whoever_it_is_of(made, tmp_path):
    model, plan = made("olmoe")
    export(model, plan, tmp_path / "out")
    (shard, *_), options = shards_of(tmp_path / "out"), {"directories": (tmp_path / "stats",)}
    slots = load_model_index(str(tmp_path / "out")).slots
    down = next(name for name, slot in slots.items() if slot.projection == "down")
    for name in (down, "model.norm.weight"):
        before = shard.read_bytes()

        def change(tensors, name=name):
            return {**tensors, name: tensors[name] + 1}

        edit_tensors(shard, change)
        found = failed(tmp_path / "out", source=model.checkpoint.path, level="bytes", **options)
        owner = "repair" if name == down else "source"
        assert f"{name} is not a copy of the {owner}'s" in found["tensors"]
        shard.write_bytes(before)


def test_without_the_repair_its_bytes_are_not_compared_and_that_is_said(made, tmp_path):
    model, plan = made("olmoe")
    export(model, plan, tmp_path / "out")
    source = model.checkpoint.path
    report = drain(verify_export(tmp_path / "out", source=source))
    (tensors,) = (check for check in report.checks if check.name == "tensors")
    assert report.ok
    assert "repaired ones were not compared" in tensors.detail
    assert report.level == "load"
    with pytest.raises(ExportError, match="needs the files of the repair"):
        drain(verify_export(tmp_path / "out", source=source, level="logits"))


def test_another_repair_is_refused_in_one_line(made, tmp_path):
    model, plan = made("olmoe")
    files = plan.repair.folder
    other = keeping(model, 4)
    with pytest.raises(ExportError, match="is of another plan"):
        export(model, replace(other, repair=plan.repair), tmp_path / "other")
    with pytest.raises(PlanError, match="the plan without its repair"):
        plan_for_copy(plan, model, model)
    with pytest.raises(ExportError, match="are not here"):
        export(model, plan_from_dict(plan.to_dict()), tmp_path / "lost")
    file = sorted(files.glob("*.safetensors"))[0]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ExportError, match="was changed"):
        export(model, plan, tmp_path / "changed")
    file.unlink()
    with pytest.raises(ExportError, match="lacks layer-"):
        export(model, plan, tmp_path / "lacking")
    assert not list(tmp_path.glob("*.partial"))


def test_a_manifest_names_the_files_of_the_repair_and_others_none(made, tmp_path):
    model, plan = made("olmoe")
    export(model, plan, tmp_path / "out")
    export(model, plan.unrepaired, tmp_path / "plain")
    assert read_manifest(tmp_path / "out").repair_files
    raw = json.loads((tmp_path / "plain" / MANIFEST_NAME).read_text())
    assert "repair_files" not in raw
    assert all("repaired" not in shard for shard in raw["shards"])
