"""Folders of several models, or of none: what transformers would load is what is read, or a line.

The order in which transformers looks for weights is tried on itself, so that a new version of it
that looks elsewhere fails here.
"""

import json
import shutil
import sys
from types import ModuleType

import pytest
import torch
from exports import tensors_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analysis.checkpoint.index import INDEX_NAME, SINGLE_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import CheckpointError
from builders import edit_json, put, tiny_checkpoint

ROUTER = "model.layers.0.mlp.gate.weight"


@pytest.fixture
def sharded(tmp_path):
    tiny_checkpoint(tmp_path / "source", "olmoe", seed=0)
    return tmp_path / "source"


@pytest.fixture
def single(tmp_path):
    """The single file of another model of the same shape."""
    tiny_checkpoint(tmp_path / "other", "olmoe", seed=1, shards=1)
    return tmp_path / "other" / SINGLE_NAME


def loaded_router(folder):
    """What transformers loads."""
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    return dict(model.named_parameters())[ROUTER].detach()


def refused(folder, *words):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_two_models_in_a_folder_are_refused_by_both_names(sharded, single):
    first = json.loads((sharded / INDEX_NAME).read_text())["weight_map"]["lm_head.weight"]
    indexed = tensors_of(sharded)[ROUTER]
    shutil.copy(single, sharded / SINGLE_NAME)
    # transformers takes the single file, whose numbers are others.
    taken = loaded_router(sharded)
    assert torch.equal(taken, load_file(single)[ROUTER])
    assert not torch.equal(taken, indexed)
    refused(sharded, SINGLE_NAME, INDEX_NAME, first, "move one of the two")


def test_a_stale_index_beside_a_single_file_is_refused_even_without_its_shards(sharded, single):
    for file in sharded.glob("model-*.safetensors"):
        file.unlink()
    shutil.copy(single, sharded / SINGLE_NAME)
    refused(sharded, SINGLE_NAME, INDEX_NAME, "two models")


def test_an_index_of_the_single_file_is_no_second_model(sharded, single):
    names = load_file(single)
    shutil.copy(single, sharded / SINGLE_NAME)
    (sharded / INDEX_NAME).write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, SINGLE_NAME)})
    )
    for file in sharded.glob("model-*.safetensors"):
        file.unlink()
    assert open_checkpoint(sharded).tensors.keys() == names.keys()
    assert torch.equal(loaded_router(sharded), names[ROUTER])


def test_pickled_weights_and_variants_beside_the_weights_change_nothing(sharded, single):
    before = open_checkpoint(sharded)
    (sharded / "pytorch_model.bin").write_bytes(b"\x80")
    shutil.copy(single, sharded / "model.fp16.safetensors")
    (sharded / "model.safetensors.index.fp16.json").write_text("{}")
    after = open_checkpoint(sharded)
    assert after.identity == before.identity
    assert [shard.name for shard in after.others] == ["model.fp16.safetensors"]
    shard = next(shard for shard in after.shards if ROUTER in {t.name for t in shard.tensors})
    assert torch.equal(loaded_router(sharded), load_file(sharded / shard.name)[ROUTER])


def test_a_configuration_that_names_other_weights_is_refused(sharded, single):
    shutil.copy(single, sharded / "other.safetensors")
    edit_json(sharded / "config.json", transformers_weights="other.safetensors")
    assert torch.equal(loaded_router(sharded), load_file(single)[ROUTER])
    refused(sharded, "transformers_weights", "other.safetensors", INDEX_NAME)
    edit_json(sharded / "config.json", transformers_weights=INDEX_NAME)
    assert open_checkpoint(sharded).shards


def test_an_adapter_that_would_lead_to_another_model_is_refused_where_peft_is(sharded, monkeypatch):
    (sharded / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    save_file({"base_model.model.model.layers.0.x.lora_A.weight": torch.ones(1)},
              sharded / "adapter_model.safetensors")  # fmt: skip
    assert open_checkpoint(sharded).shards  # without peft transformers does not look at it
    peft = ModuleType("peft")
    peft.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "peft", peft)
    refused(sharded, "adapter_config.json", "move adapter_config.json out")


def named(*files):
    def make(folder):
        for name in files:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text('{"base_model_name_or_path": "some/base"}')
        return folder

    return make


CACHE = "models--some--model"
KINDS = {
    "cache root": (named(f"{CACHE}/snapshots/abc123/config.json"), f"{CACHE}/snapshots/abc123"),
    "model of the cache": (
        lambda folder: named(f"{CACHE}/snapshots/abc123/config.json")(folder) / CACHE,
        f"{CACHE}/snapshots/abc123",
    ),
    "snapshots": (
        lambda folder: named(f"{CACHE}/snapshots/abc123/config.json")(folder) / CACHE / "snapshots",
        f"{CACHE}/snapshots/abc123",
    ),
    "gguf": (named("model-Q4_K_M.gguf"), "model-Q4_K_M.gguf"),
    "gguf in capitals": (named("MODEL.GGUF"), "holds GGUF files (MODEL.GGUF)"),
    "gguf in folders": (named("Q4_K_M/model.gguf", "Q8_0/model.gguf"), "holds GGUF files"),
    "home of the hub": (
        named(f"hub/{CACHE}/snapshots/abc123/config.json"),
        f"hub/{CACHE}/snapshots/abc123",
    ),
    "gguf with a config": (named("config.json", "model-Q4_K_M.gguf"), "model-Q4_K_M.gguf"),
    "adapter": (named("adapter_config.json"), "some/base"),
    "pipeline": (named("model_index.json", "unet/config.json"), "diffusers"),
    "pickled": (named("pytorch_model.bin"), "pytorch_model.bin"),
    "pickled with a config": (named("config.json", "consolidated.00.pth"), "consolidated.00.pth"),
    "publisher's layout": (named("params.json", "consolidated.safetensors"), "params.json"),
    "folder above": (named("run/checkpoint-10/config.json", "run/log.txt"), "checkpoint-10"),
    "variant": (
        named("config.json", "model.safetensors.index.fp16.json", "model-1-of-2.safetensors"),
        "model.safetensors.index.fp16.json",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_another_kind_is_named(kind, tmp_path):
    make, word = KINDS[kind]
    folder = make(tmp_path)
    refused(folder / "run" if kind == "folder above" else folder, word)


def test_a_file_of_another_kind_of_folder_is_named(tmp_path):
    named("model-Q4_K_M.gguf")(tmp_path)
    refused(tmp_path / "model-Q4_K_M.gguf", "is a file", "holds GGUF files", "safetensors")


LONG = "x" * 300
WRONG_INDEXES = {
    "a list": [],
    "null": None,
    "a number": 3,
    "map of null": {"weight_map": None},
    "map is a list": {"weight_map": ["a"]},
    "map is empty": {"weight_map": {}},
    "a file of null": {"weight_map": {ROUTER: None}},
    "a file is a list": {"weight_map": {ROUTER: ["a.safetensors"]}},
    "a file is a number": {"weight_map": {ROUTER: 1}},
    "an absolute file": {"weight_map": {ROUTER: "/etc/passwd"}},
    "a file above": {"weight_map": {ROUTER: "../a.safetensors"}},
    "a file below": {"weight_map": {ROUTER: "a/b.safetensors"}},
    "a file of Windows": {"weight_map": {ROUTER: "a\\b.safetensors"}},
    "a file without a name": {"weight_map": {ROUTER: ""}},
    "a file with a null byte": {"weight_map": {ROUTER: "a\0.safetensors"}},
    "the folder above": {"weight_map": {ROUTER: ".."}},
    "a long name": {"weight_map": {ROUTER: LONG}},
}
METADATA = (None, [], [1], 7, "text", True)


@pytest.mark.parametrize("raw", WRONG_INDEXES.values(), ids=WRONG_INDEXES)
def test_an_index_of_a_wrong_kind_is_one_line(raw, sharded):
    (sharded / INDEX_NAME).write_text(json.dumps(raw))
    refused(sharded, INDEX_NAME)


@pytest.mark.parametrize("metadata", METADATA, ids=repr)
def test_metadata_of_a_wrong_kind_is_one_line(metadata, sharded):
    raw = json.loads((sharded / INDEX_NAME).read_text()) | {"metadata": metadata}
    (sharded / INDEX_NAME).write_text(json.dumps(raw))
    refused(sharded, INDEX_NAME, "metadata")


WRONG_HEADERS = {
    "a list for metadata": put("__metadata__", to=["a"]),
    "a number for metadata": put("__metadata__", to=3),
    "metadata of numbers": put("__metadata__", to={"format": 3}),
    "a tensor of null": put("x", to=None),
    "a tensor of text": put("x", to="F32"),
    "no dtype": put("x", to={"shape": [1], "data_offsets": [0, 4]}),
    "dtype of null": put("x", "dtype", to=None),
    "shape of null": put("x", "shape", to=None),
    "a negative shape": put("x", "shape", to=[-1]),
    "a shape of floats": put("x", "shape", to=[1.0]),
    "a shape of truths": put("x", "shape", to=[True]),
    "offsets of null": put("x", "data_offsets", to=None),
    "one offset": put("x", "data_offsets", to=[0]),
    "negative offsets": put("x", "data_offsets", to=[-4, 0]),
    "offsets of floats": put("x", "data_offsets", to=[0.0, 4.0]),
    "offsets the wrong way": put("x", "data_offsets", to=[4, 0]),
    "huge offsets": put("x", "data_offsets", to=[10**30, 10**30 + 4]),
}


@pytest.mark.parametrize("change", WRONG_HEADERS.values(), ids=WRONG_HEADERS)
def test_a_header_of_a_wrong_kind_is_one_line(change, tmp_path):
    header = {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    change(header)
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / SINGLE_NAME).write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    refused(tmp_path, SINGLE_NAME)
