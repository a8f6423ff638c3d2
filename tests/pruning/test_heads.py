"""Prediction heads (MTP): kept, dropped, or pruned by their own weights; never half and half."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from exports import export, failed, keeping, keeping_neurons, tensors_of, verified, with_head
from safetensors.torch import load_file, save_file

from analysis.checkpoint.index import INDEX_NAME
from analysis.errors import ExportError
from analysis.model.heads import prediction_heads
from analysis.model.opening import load_model_index
from builders import edit_json
from pruning.plan.heads import HeadChoice, HeadPlan, heads_bytes
from pruning.plan.plan import keep_all
from pruning.plan.sizes import size_report
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.surgery.export import ExportSettings, prepare_export
from pruning.surgery.head_ranking import WeighedHeads
from pruning.surgery.heads import plan_heads
from pruning.surgery.manifest import read_manifest

KEPT = (0, 2, 3, 5)
# Where heads lie: in a trunk of their own, or in layers beyond the last.
PLACES = {"mtp": "mtp.layers.0.", "numbered": "mtp.0.", "beyond": "model.layers.3."}


@pytest.fixture
def place(request):
    return PLACES[getattr(request, "param", "mtp")]


EVERYWHERE = pytest.mark.parametrize("place", PLACES, indirect=True)


@pytest.fixture
def model(checkpoint, tmp_path, place):
    return with_head(checkpoint("olmoe", shards=1).path, tmp_path / "source", place)


def export_heads(model, out, choice=None, plan=KEPT):
    manifest = export(model, plan, out, heads=choice)
    return manifest, tensors_of(out)


@EVERYWHERE
@pytest.mark.parametrize("choice", [None, *HeadChoice])
def test_the_size_of_an_export_counts_what_becomes_of_heads(model, tmp_path, choice):
    # Without a change of counts heads cannot be pruned, with one they cannot stay whole.
    impossible = {True: HeadChoice.KEEP, False: HeadChoice.PRUNE}
    for depend, plan in ((False, keep_all(model)), (True, keeping(model, KEPT))):
        if choice is impossible[depend]:
            continue
        made = prepare_export(model, plan, tmp_path / "out", ExportSettings(choice, WeighedHeads()))
        counted = size_report(model, plan).bytes_after + heads_bytes(model, made.plan, choice)
        assert made.tensor_bytes == counted


def test_heads_that_a_source_only_counts_are_not_counted_by_its_export(checkpoint, tmp_path):
    # As the GLM-4.5-Air that Cerebras pruned: transformers reads no heads, so it saved none.
    source = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe", shards=1).path, source)
    edit_json(source / "config.json", num_nextn_predict_layers=1)
    export(source, KEPT, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["num_nextn_predict_layers"] == 0
    assert not failed(tmp_path / "out", source=source, level="logits")


def heads_of(tensors, place):
    return {name: tensor for name, tensor in tensors.items() if name.startswith(place)}


@EVERYWHERE
def test_a_head_is_found_and_is_no_layer_of_the_trunk(model, place):
    (head,) = prediction_heads(model)
    assert place.startswith(head.prefix)
    assert set(head.tensors) == {
        name for name in model.checkpoint.tensors if name.startswith(place)
    }
    assert head.has_experts
    assert [layer.index for layer in model.layers] == [0, 1, 2]
    assert sum(map(len, head.located.values())) == 7 * 3 + 1


@EVERYWHERE
def test_a_head_with_experts_is_dropped_by_default(model, tmp_path, place):
    manifest, tensors = export_heads(model, tmp_path / "out")
    assert manifest.heads == HeadPlan(HeadChoice.DROP)
    assert heads_of(tensors, place) == {}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 0
    assert read_manifest(tmp_path / "out").heads == manifest.heads
    assert "Prediction heads (MTP): left out" in (tmp_path / "out" / "README.md").read_text()
    verified(tmp_path / "out", level="logits", source=tmp_path / "source")


def test_a_plan_that_keeps_all_keeps_heads_byte_for_byte(model, tmp_path):
    manifest, _ = export_heads(model, tmp_path / "out", plan=keep_all(model))
    assert manifest.heads.choice is HeadChoice.KEEP
    for name in ("model.safetensors", "config.json"):
        source = (tmp_path / "source" / name).read_bytes()
        assert (tmp_path / "out" / name).read_bytes() == source


def test_a_head_without_experts_stays(checkpoint, tmp_path, place):
    source = checkpoint("olmoe", shards=1).path
    model = with_head(source, tmp_path / "source", place, experts=False)
    for number, choice in enumerate((None, HeadChoice.KEEP, HeadChoice.PRUNE)):
        manifest, tensors = export_heads(model, tmp_path / f"out{number}", choice)
        assert manifest.heads.choice is HeadChoice.KEEP
        assert len(heads_of(tensors, place)) == len(prediction_heads(model)[0].tensors)


@EVERYWHERE
def test_a_pruned_head_keeps_its_experts_of_least_aimer(model, tmp_path, place):
    manifest, tensors = export_heads(model, tmp_path / "out", HeadChoice.PRUNE)
    before = load_file(tmp_path / "source" / "model.safetensors")

    def flat(expert):
        parts = ("gate_proj", "up_proj", "down_proj")
        names = (f"{place}mlp.experts.{expert}.{part}.weight" for part in parts)
        return np.concatenate([before[name].double().numpy().ravel() for name in names])

    # AIMER prunes the largest |w|_1 / (sqrt(N) |w|_2); written out here once more.
    aimer = [np.abs(w).sum() / np.sqrt(w.size) / np.linalg.norm(w) for w in map(flat, range(7))]
    wanted = tuple(sorted(np.argsort(aimer)[: len(KEPT)].tolist()))
    ((layers),) = manifest.heads.kept.values()
    assert tuple(layers.values()) == (wanted,)
    after = heads_of(tensors, place)
    for new, old in enumerate(wanted):
        name = f"{place}mlp.experts.{{}}.up_proj.weight"
        assert after[name.format(new)].equal(before[name.format(old)])
    gate = f"{place}mlp.gate.weight"
    assert after[gate].equal(before[gate][list(wanted)])
    assert f"{place}mlp.experts.{len(KEPT)}.up_proj.weight" not in after
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
    assert read_manifest(tmp_path / "out").heads == manifest.heads
    verified(tmp_path / "out", level="bytes", source=tmp_path / "source")


def test_a_head_under_unknown_names_cannot_be_pruned(checkpoint, tmp_path):
    # After one without experts, which could stay.
    with_head(checkpoint("olmoe", shards=1).path, tmp_path / "one", PLACES["beyond"], experts=False)
    model = with_head(tmp_path / "one", tmp_path / "source", "model.mtp_block.0.")
    assert [head.name for head in prediction_heads(model)] == ["model.layers.3", "model.mtp"]
    with pytest.raises(ExportError, match=r"head model\.mtp has experts under names .* --mtp drop"):
        plan_heads(model, keeping(model, KEPT), HeadChoice.PRUNE, ranking=WeighedHeads())
    assert plan_heads(model, keeping(model, KEPT)).choice is HeadChoice.DROP


def narrow(tensors):
    """Experts of the head in a dtype whose norms cannot be measured."""
    return {
        name: tensor.to(torch.float8_e4m3fn) if "mtp" in name and ".experts." in name else tensor
        for name, tensor in tensors.items()
    }


def holed(tensors):
    return {name: tensors[name] for name in tensors if "mtp.layers.0.mlp.experts.2.up" not in name}


# What is wrong with the head, the choice, what the plan removes -> other options that work.
REFUSED = {
    "whole": (dict, "keep", "experts", {"drop", "prune"}),
    "eight bits": (narrow, "keep", "experts", {"drop"}),
    "eight bits, pruned": (narrow, "prune", "experts", {"drop"}),
    "a tensor short": (holed, "keep", "experts", {"drop"}),
    "a tensor short, pruned": (holed, "prune", "experts", {"drop"}),
    "neurons": (dict, "keep", "neurons", {"drop", "per-layer"}),
    "neurons, pruned": (dict, "prune", "neurons", {"drop", "per-layer"}),
    "both": (dict, "keep", "both", {"drop"}),
    "both, pruned": (dict, "prune", "both", {"drop", "per-layer"}),
    "both, pruned in eight bits": (narrow, "prune", "both", {"drop"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_whatever_a_refusal_recommends_works(model, tmp_path, name):
    damage, choice, removes, options = REFUSED[name]
    file = model.checkpoint.path / "model.safetensors"
    save_file(damage(load_file(file)), file, metadata={"format": "pt"})
    model = load_model_index(str(model.checkpoint.path))
    plan, widths = keeping(model, KEPT), None
    if removes != "experts":
        held = KEPT if removes == "both" else range(7)
        neurons = {layer.index: dict.fromkeys(held, (0, 5)) for layer in model.layers}
        plan = keeping_neurons(model, neurons, plan.kept if removes == "both" else None)
        widths = WidthChoice(WidthMode.UNIFORM, 4)
    with pytest.raises(ExportError) as refused:
        export(model, plan, tmp_path / "out", heads=HeadChoice(choice), widths=widths)
    advice = str(refused.value).rpartition("; use ")[2]
    assert set(re.findall(r"--(?:mtp|width-mode) ([a-z-]+)", advice)) == options
    for number, option in enumerate(sorted(options)):
        heads, stored = HeadChoice(choice), widths
        if option == "per-layer":
            stored = WidthChoice(WidthMode.PER_LAYER, 4)
        else:
            heads = HeadChoice(option)
        export(model, plan, tmp_path / f"out{number}", heads=heads, widths=stored)


class TestBesideNeurons:
    """Heads beside a trunk whose experts lose neurons."""

    def export(self, model, out, mode, choice=None):
        neurons = {layer.index: {0: (1, 2, 3), 1: ()} for layer in model.layers}
        for layer in model.layers:
            neurons[layer.index] |= dict.fromkeys(range(2, layer.num_experts), (0, 5))
        plan = keeping_neurons(model, neurons)
        export(model, plan, out, heads=choice, widths=WidthChoice(WidthMode(mode), 4))
        verified(out, level="bytes", source=model.checkpoint.path)
        return load_file(out / "model.safetensors")

    def test_go_where_the_one_width_of_all_experts_changes(self, model, tmp_path, place):
        held = self.export(model, tmp_path / "out", "uniform")
        assert not [name for name in held if name.startswith(place)]
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert config["num_nextn_predict_layers"] == 0

    @pytest.mark.parametrize("mode", ["per-layer", "ragged"])
    def test_stay_as_they_are_beside_widths_of_layers(self, model, tmp_path, place, mode):
        before = load_file(model.checkpoint.path / "model.safetensors")
        after = self.export(model, tmp_path / "out", mode)
        heads = [name for name in before if name.startswith(place)]
        assert heads
        assert all(after[name].equal(before[name]) for name in heads)


def test_heads_can_be_dropped_though_nothing_is_pruned(checkpoint, tmp_path, place):
    # Of several shards, so that there is an index.
    source = with_head(checkpoint("olmoe").path, tmp_path / "shards", place)
    manifest, tensors = export_heads(source, tmp_path / "out", HeadChoice.DROP, keep_all(source))
    assert manifest.heads.choice is HeadChoice.DROP
    assert tensors.keys() == {name for name in source.checkpoint.tensors if place not in name}
    index = json.loads((tmp_path / "out" / INDEX_NAME).read_text())
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    verified(tmp_path / "out", level="bytes", source=tmp_path / "shards")
