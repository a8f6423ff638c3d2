"""Exports of repaired plans: the repair's bytes in their places, the source's everywhere else."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from exports import (
    accept_changes,
    edit_tensors,
    export,
    failed,
    keeping_neurons,
    tensors_of,
    uneven,
)
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.errors import ExportError, PlanError
from analysis.files.content import file_sha256
from analysis.model.opening import load_model_index
from builders.repairs import repaired, token_sequences
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.engine.masking import masked
from pruning.model import Model
from pruning.plan.copies import plan_for_copy
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.plan.plan_file import plan_from_dict
from pruning.records.repair import RepairStore
from pruning.records.repair_files import stored_repair, with_repair_files
from pruning.requests.model import ExportRequest
from pruning.surgery.card import CARD_NAME
from pruning.surgery.manifest import MANIFEST_NAME
from pruning.surgery.verify import verify_export
from pruning.tasks.export import export_run

# Per expert; stacked on disk; transposed with biases; groups and shared experts.
NAMES = ("olmoe", "granitemoe", "gpt_oss", "deepseek_v3-groups")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """The folder of a tiny model and of its repair, and the record; each is made once."""
    known = {}

    def get(name, plan_of, options):
        key = (name, plan_of, *options.items())
        if key not in known:
            folder = tmp_path_factory.mktemp("repaired")
            tiny_model(BY_NAME[name]).save_pretrained(folder / "source", **options)
            model, text = load_model_index(str(folder / "source")), token_sequences(120, 16)
            _, record = repaired(model, plan_of(model), folder / "stats", text)
            assert record.files
            known[key] = folder, record
        return known[key]

    return get


@pytest.fixture
def made(once, tmp_path):
    """A tiny model on disk and a repaired plan of it, whose files are in `stats`."""

    def make(name, plan_of=uneven, **options):
        folder, record = once(name, plan_of, options)
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        model = load_model_index(str(tmp_path / "source"))
        plan = replace(fit_plan(plan_of(model), model), repair=record.reference)
        return model, with_repair_files(plan, [tmp_path / "stats"])

    return make


def verified(out, model, stats, **options):
    report = drain(
        verify_export(out, source=model.checkpoint.path, directories=(stats,), **options)
    )
    assert report.ok, [check for check in report.checks if not check.ok]
    return {check.name: check.detail for check in report.checks}


def differing(out, model, stats):
    """The failed checks of an export's bytes, with the repair's files at hand."""
    return failed(out, source=model.checkpoint.path, level="bytes", directories=(stats,))


@pytest.mark.parametrize("name", NAMES)
def test_an_export_computes_what_the_masked_and_repaired_model_does(made, tmp_path, name):
    model, plan = made(name, max_shard_size="40KB")
    record = stored_repair(plan.repair)
    manifest = export(model, plan, tmp_path / "out")
    checks = verified(tmp_path / "out", model, tmp_path / "stats", level="logits")
    assert "repaired" in checks["source"]
    assert "masked and what stays repaired" in checks["logits"]
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
    assert f"on {record.reference.tokens:,} tokens of random" in card
    assert "on other text it may help less, or harm" in card
    for fit in record.layers:
        assert f"| {fit.layer} | {fit.left:.1%} |" in card
    assert "repaired" not in (tmp_path / "plain" / CARD_NAME).read_text()
    # The manifest names the files of the repair, that of another export none.
    assert manifest.repair_files
    raw = json.loads((tmp_path / "plain" / MANIFEST_NAME).read_text())
    assert "repair_files" not in raw
    assert all("repaired" not in shard for shard in raw["shards"])


def test_a_repair_is_written_in_the_type_of_a_transposed_source(tmp_path):
    tiny_model(BY_NAME["gpt_oss"]).to(torch.bfloat16).save_pretrained(tmp_path / "source")
    model = load_model_index(str(tmp_path / "source"))
    plan, _ = repaired(model, uneven(model), tmp_path / "stats")
    export(model, plan, tmp_path / "out")
    assert "repaired" in verified(tmp_path / "out", model, tmp_path / "stats")["source"]
    entries = open_checkpoint(tmp_path / "out").tensors.values()
    assert {entry.dtype for entry in entries} == {"BF16"}


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


@pytest.mark.parametrize("name", NAMES)
def test_one_changed_bit_is_found_whoever_it_is_of(made, tmp_path, name):
    model, plan = made(name)
    export(model, plan, tmp_path / "out")
    entries = open_checkpoint(tmp_path / "out").tensors
    slots = load_model_index(str(tmp_path / "out")).slots
    down = next(
        name for name, slot in slots.items() if (slot.projection, slot.role) == ("down", "weight")
    )
    for changed, owner in ((down, "repair"), ("model.norm.weight", "source")):
        entry = entries[changed]
        shard, place = tmp_path / "out" / entry.shard, entry.nbytes - 1
        before = shard.read_bytes()
        after = bytearray(before)
        after[entry.start + place] ^= 1
        shard.write_bytes(after)
        accept_changes(tmp_path / "out")
        problems = differing(tmp_path / "out", model, tmp_path / "stats")
        assert list(problems) == ["tensors"]
        assert problems["tensors"].startswith(f"{changed} is not a copy of the {owner}'s ")
        assert f"byte {place} of the tensor" in problems["tensors"]
        shard.write_bytes(before)


@pytest.mark.parametrize("files", ["nowhere", "moved away from their record"])
@pytest.mark.parametrize(
    "name", ["olmoe", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES[1:])]
)
def test_without_the_repair_its_bytes_are_not_compared_and_that_is_said(
    made, tmp_path, name, files
):
    model, plan = made(name)
    manifest = export(model, plan, tmp_path / "out", pad=name == "deepseek_v3-groups")
    source, folder = model.checkpoint.path, tmp_path / "stats"
    if files == "nowhere":
        folder = tmp_path / "empty"
    else:
        plan.repair.folder.rename(tmp_path / "moved")
    report = drain(verify_export(tmp_path / "out", source=source, directories=(folder,)))
    details = {check.name: check.detail for check in report.checks}
    assert report.ok
    assert report.level == "load"
    number = sum(shard.repaired for shard in manifest.shards)
    assert f", {number} repaired, " in details["source"]
    assert f"those of {number} repaired ones were not compared" in details["tensors"]
    assert "--stats-dir" in details["tensors"]
    with pytest.raises(ExportError, match="needs the files of the repair"):
        drain(verify_export(tmp_path / "out", source=source, level="logits"))
    # What is not repaired is compared all the same.
    changed = "model.norm.weight"
    shard = tmp_path / "out" / open_checkpoint(tmp_path / "out").tensors[changed].shard
    edit_tensors(shard, lambda tensors: {**tensors, changed: tensors[changed] + 1})
    assert f"{changed} is not a copy of the source's" in failed(
        tmp_path / "out", source=source, level="bytes"
    ).get("tensors", "")


def test_another_instance_of_the_repair_is_named(made, tmp_path):
    model, plan = made("olmoe")
    export(model, plan, tmp_path / "out")
    file = plan.repair.folder / sorted(stored_repair(plan.repair).files)[0]
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    problems = differing(tmp_path / "out", model, tmp_path / "stats")
    assert f"{file.name} of the repair {plan.repair.record_id} is not the one" in problems["source"]


@pytest.mark.parametrize("damage", ["another tensor", "another type"])
def test_only_down_projections_can_be_repaired(made, tmp_path, monkeypatch, damage):
    model, plan = made("olmoe")
    record = stored_repair(plan.repair)
    file = plan.repair.folder / sorted(record.files)[0]
    tensors = tensors_of(file)
    name = sorted(tensors)[0]
    if damage == "another type":
        tensors[name] = tensors[name].double()
    else:
        name = "model.layers.0.input_layernorm.weight"
        tensors[name] = 7 * tensors_of(model.checkpoint.path)[name]
    save_file(tensors, file, metadata={"transposed": "0"})
    files = {**record.files, file.name: file_sha256(file)}
    record = record.with_files(files)
    RepairStore([tmp_path / "stats"]).finish(record, plan.repair.folder)
    plan = with_repair_files(replace(plan, repair=record.reference), [tmp_path / "stats"])
    with pytest.raises(ExportError, match=f"{file.name} holds {name}"):
        export(model, plan, tmp_path / "refused")
    # Verification does not rely on the writer.
    monkeypatch.setattr("pruning.surgery.export.check_tensors", lambda *_: None)
    export(model, plan, tmp_path / "out")
    problems = differing(tmp_path / "out", model, tmp_path / "stats")
    assert f"holds {name}" in problems["source"]


def test_a_shard_of_which_nothing_is_cut_is_written_anew_if_something_is_repaired(made, tmp_path):
    def plan_of(model):
        first, *rest = model.layers
        kept = {layer.index: tuple(range(layer.num_experts)) for layer in rest}
        return PruningPlan(model_ref(model), {first.index: (1, 3), **kept})

    model, plan = made("olmoe", plan_of, max_shard_size="6KB")
    manifest = export(model, plan, tmp_path / "out")
    verified(tmp_path / "out", model, tmp_path / "stats", level="logits")
    whole = [
        shard for shard in manifest.shards if shard.repaired and not (shard.cut or shard.dropped)
    ]
    assert whole
    for shard in whole:
        before = (model.checkpoint.path / shard.name).read_bytes()
        assert (tmp_path / "out" / shard.name).read_bytes() != before


def test_a_job_finds_the_repair_in_the_statistics_folder(made, tmp_path):
    model, plan = made("olmoe")
    request = ExportRequest(
        model=str(model.checkpoint.path),
        plan=plan.to_dict(),
        out=tmp_path / "out",
        stats_dir=tmp_path / "stats",
        verify=True,
    )
    for skipped in (False, True):
        result = drain(export_run(request))
        assert result["skipped"] is skipped
        assert result["verify"]["level"] == "logits"
        assert result["plan_digest"] == plan.digest
        assert result["repair"] == stored_repair(plan.repair).outcome
    python = Model(model.checkpoint.path, stats_dir=tmp_path / "stats")
    assert python.verify(tmp_path / "out").level == "logits"
    lost = request.model_copy(update={"stats_dir": tmp_path / "empty", "out": tmp_path / "none"})
    with pytest.raises(PlanError, match="not in the statistics folder"):
        drain(export_run(lost))


def test_another_repair_is_refused_in_one_line(made, tmp_path):
    model, plan = made("olmoe")
    files = plan.repair.folder
    other = keeping(model, 4)
    with pytest.raises(PlanError, match="is of another plan"):
        export(model, replace(other, repair=plan.repair), tmp_path / "other")
    with pytest.raises(PlanError, match="the plan without its repair"):
        plan_for_copy(plan, model, model)
    with pytest.raises(PlanError, match="are not here"):
        export(model, plan_from_dict(plan.to_dict()), tmp_path / "lost")
    file = sorted(files.glob("*.safetensors"))[0]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PlanError, match="was changed"):
        export(model, plan, tmp_path / "changed")
    file.unlink()
    with pytest.raises(PlanError, match=r"layer-.* is not there"):
        export(model, plan, tmp_path / "lacking")
    assert not list(tmp_path.glob("*.partial"))
