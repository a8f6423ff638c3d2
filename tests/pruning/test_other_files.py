"""Safetensors files that no index lists: read, kept, dropped, named or refused."""

import json
import shutil

import pytest
import torch
from exports import export, failed, tensors_of, verified
from safetensors.torch import load_file, save_file

from analysis.checkpoint.index import INDEX_NAME, SINGLE_NAME
from analysis.errors import ExportError
from analysis.model.heads import prediction_heads
from analysis.model.opening import load_model_index
from analysis.model.other_files import other_files
from builders import edit_json, tiny_checkpoint
from pruning.plan.heads import HeadChoice
from pruning.plan.plan import keep_all
from pruning.plan.sizes import BYTES, ModelPart, size_report
from pruning.surgery.source_checks import source_notes

MTP = "mtp.safetensors"
ADAPTER = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 2)}


def built(path, shards=3):
    """A model of four layers and, in a file that nothing lists, a head like its last layer."""
    tiny_checkpoint(path, "qwen3_moe", shards=shards)
    head = {
        name.replace("model.layers.3.", "model.layers.4."): tensor + 1
        for name, tensor in tensors_of(path).items()
        if name.startswith("model.layers.3.")
    }
    save_file(head, path / MTP)
    edit_json(path / "config.json", num_nextn_predict_layers=1)
    return head


@pytest.fixture(params=[3, 1], ids=["shards", "single"])
def source(request, tmp_path):
    head = built(tmp_path / "source", request.param)
    return load_model_index(str(tmp_path / "source")), head


def listed(out):
    """Tensors that transformers or an engine finds, by the single file or the index."""
    if (out / SINGLE_NAME).is_file():
        return set(load_file(out / SINGLE_NAME))
    return set(json.loads((out / INDEX_NAME).read_text())["weight_map"])


def test_a_head_that_no_index_lists_is_read_and_counted(source):
    model, head = source
    (found,) = prediction_heads(model)
    assert set(found.tensors) == set(head)
    heads = size_report(model).before[ModelPart.HEADS]
    assert heads[BYTES] == sum(tensor.nbytes for tensor in head.values())
    (note,) = source_notes(model)
    assert MTP in note
    assert "prediction heads" in note
    assert "--mtp" in note


def test_the_identity_covers_the_head(tmp_path):
    built(tmp_path / "source")
    before = load_model_index(str(tmp_path / "source")).identity
    head = load_file(tmp_path / "source" / MTP)
    save_file({name: tensor + 1 for name, tensor in head.items()}, tmp_path / "source" / MTP)
    assert load_model_index(str(tmp_path / "source")).identity != before


def test_an_export_asks_what_to_do_with_the_head(source, tmp_path):
    model, _ = source
    for plan in (keep_all(model), (0, 1, 3)):
        with pytest.raises(ExportError, match=rf"{MTP} holds prediction heads.*--mtp keep"):
            export(model, plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_head_that_is_kept_is_copied_and_listed(source, tmp_path):
    model, head = source
    out = tmp_path / "out"
    export(model, keep_all(model), out, heads=HeadChoice.KEEP)
    written = tensors_of(out)
    assert all(torch.equal(written[name], tensor) for name, tensor in head.items())
    assert listed(out) == set(written) == set(model.checkpoint.tensors)
    assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 1
    verified(out, source=model.checkpoint.path, level="logits")
    assert not other_files(load_model_index(str(out)))


def test_a_head_is_cut_with_its_trunk(source, tmp_path):
    model, head = source
    out = tmp_path / "out"
    manifest = export(model, (0, 1, 3), out, heads=HeadChoice.PRUNE)
    ids = manifest.heads.kept["model.layers.4"][4]
    written = tensors_of(out)
    assert len(ids) == 3
    for new, old in enumerate(ids):
        name = "model.layers.4.mlp.experts.{}.down_proj.weight"
        assert torch.equal(written[name.format(new)], head[name.format(old)])
    assert listed(out) == set(written)
    verified(out, source=model.checkpoint.path, level="bytes")


def test_a_head_that_is_dropped_is_gone_by_its_key_too(source, tmp_path):
    model, head = source
    out = tmp_path / "out"
    manifest = export(model, (0, 1, 3), out, heads=HeadChoice.DROP)
    assert not set(head) & set(tensors_of(out))
    assert manifest.dropped_shards == (MTP,)
    assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 0
    verified(out, source=model.checkpoint.path, level="bytes")


def renamed(pattern, by):
    def make(tensors):
        return {n.replace(pattern, by): t for n, t in tensors.items() if n.startswith(pattern)}

    return make


# A file -> its tensors from those of the model, what it holds, and whether an export refuses it.
BESIDE = {
    "adapter_model.safetensors": (lambda _: ADAPTER, "no part of the model", False),
    "consolidated.safetensors": (
        lambda tensors: {n.removeprefix("model."): t for n, t in tensors.items()},
        "listed in other files",
        False,
    ),
    "model.fp16.safetensors": (
        lambda tensors: {n: t.half() for n, t in tensors.items()},
        "listed in other files",
        False,
    ),
    "vision.safetensors": (
        renamed("model.layers.0.self_attn", "vision_tower.encoder.layers.0.attn"),
        "no part of the model",
        False,
    ),
    "more.safetensors": (
        renamed("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.z_proj"),
        "layers",
        True,
    ),
    "experts.safetensors": (
        renamed("model.layers.0.mlp.experts.0.", "model.layers.0.mlp.experts.6."),
        "experts",
        True,
    ),
    "stranger.safetensors": (
        renamed("model.layers.0.mlp.experts.0.", "draft.layers.0.mlp.experts.0."),
        "experts",
        True,
    ),
    "mixed.safetensors": (
        lambda tensors: (
            renamed("model.layers.3.", "model.layers.4.")(tensors)
            | renamed("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.z_proj")(tensors)
        ),
        "prediction heads and layers",
        True,
    ),
}


@pytest.mark.parametrize("file", BESIDE)
def test_other_files_are_named_and_a_part_of_the_model_is_refused(file, tmp_path, checkpoint):
    make, holds, is_refused = BESIDE[file]
    folder = tmp_path / "source"
    shutil.copytree(checkpoint("qwen3_moe").path, folder)
    before = load_model_index(str(folder))
    save_file({n: t.clone() for n, t in make(tensors_of(folder)).items()}, folder / file)
    model = load_model_index(str(folder))
    assert model.identity == before.identity
    (note,) = source_notes(model)
    assert note.startswith(file)
    assert holds in note
    out = tmp_path / "out"
    if is_refused:
        for heads in HeadChoice:
            with pytest.raises(ExportError, match=f"{file} holds .*move the file out"):
                export(model, (0, 1, 3), out, heads=heads)
        assert not out.exists()
        return
    export(model, (0, 1, 3), out)
    assert not (out / file).exists()
    assert file in (out / "README.md").read_text()
    verified(out, source=folder, level="bytes")
    shutil.copy(folder / file, out / file)
    assert f"{file} is no part" in failed(out, level="bytes")["shards"]


def test_an_unreadable_file_is_named_and_blocks_nothing(tmp_path, checkpoint):
    folder = tmp_path / "source"
    shutil.copytree(checkpoint("qwen3_moe").path, folder)
    (folder / "junk.safetensors").write_bytes(b"junk")
    model = load_model_index(str(folder))
    (note,) = source_notes(model)
    assert "junk.safetensors" in note
    assert "nothing that can be read" in note
    export(model, (0, 1, 3), tmp_path / "out")


def test_two_files_of_one_head_are_refused(tmp_path):
    built(tmp_path / "source")
    shutil.copy(tmp_path / "source" / MTP, tmp_path / "source" / "mtp-2.safetensors")
    model = load_model_index(str(tmp_path / "source"))
    assert not prediction_heads(model)
    with pytest.raises(ExportError, match=r"mtp-2\.safetensors holds prediction heads"):
        export(model, (0, 1, 3), tmp_path / "out", heads=HeadChoice.DROP)
