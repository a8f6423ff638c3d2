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


def write_files(folder, names):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"base_model_name_or_path": "some/base"}')


CACHE = "models--some--model"
SNAPSHOT = f"{CACHE}/snapshots/abc123"
# Files of a folder, the folder in it that is opened, and a word of what is said.
KINDS = {
    "cache root": ([f"{SNAPSHOT}/config.json"], "", SNAPSHOT),
    "model of the cache": ([f"{SNAPSHOT}/config.json"], CACHE, SNAPSHOT),
    "snapshots": ([f"{SNAPSHOT}/config.json"], f"{CACHE}/snapshots", SNAPSHOT),
    "home of the hub": ([f"hub/{SNAPSHOT}/config.json"], "", f"hub/{SNAPSHOT}"),
    "gguf": (["model-Q4_K_M.gguf"], "", "model-Q4_K_M.gguf"),
    "gguf in capitals": (["MODEL.GGUF"], "", "holds GGUF files (MODEL.GGUF)"),
    "gguf in folders": (["Q4_K_M/model.gguf", "Q8_0/model.gguf"], "", "holds GGUF files"),
    "gguf with a config": (["config.json", "model-Q4_K_M.gguf"], "", "model-Q4_K_M.gguf"),
    "adapter": (["adapter_config.json"], "", "some/base"),
    "pipeline": (["model_index.json", "unet/config.json"], "", "diffusers"),
    "pickled": (["pytorch_model.bin"], "", "pytorch_model.bin"),
    "pickled with a config": (["config.json", "consolidated.00.pth"], "", "consolidated.00.pth"),
    "publisher's layout": (["params.json", "consolidated.safetensors"], "", "params.json"),
    "folder above": (["run/checkpoint-10/config.json", "run/log.txt"], "run", "checkpoint-10"),
    "variant": (
        ["config.json", "model.safetensors.index.fp16.json", "model-1-of-2.safetensors"],
        *("", "model.safetensors.index.fp16.json"),
    ),
}


@pytest.mark.parametrize(("files", "opened", "word"), KINDS.values(), ids=KINDS)
def test_a_folder_of_another_kind_is_named(files, opened, word, tmp_path):
    write_files(tmp_path, files)
    refused(tmp_path / opened, word)


def test_a_file_of_another_kind_of_folder_is_named(tmp_path):
    write_files(tmp_path, ["model-Q4_K_M.gguf"])
    refused(tmp_path / "model-Q4_K_M.gguf", "is a file", "holds GGUF files", "safetensors")


# What a weight map may not call a file, and what is no weight map.
NO_FILES = (
    *(None, ["a.safetensors"], 1, "", "..", "/etc/passwd", "../a.safetensors", "a/b.safetensors"),
    *("a\\b.safetensors", "a\0.safetensors", "x" * 300),
)
NO_MAPS = (None, ["a"], {}, *({ROUTER: file} for file in NO_FILES))
WRONG_INDEXES = [[], None, 3, *({"weight_map": held} for held in NO_MAPS)]


@pytest.mark.parametrize("raw", WRONG_INDEXES, ids=lambda raw: repr(raw)[:40])
def test_an_index_of_a_wrong_kind_is_one_line(raw, sharded):
    (sharded / INDEX_NAME).write_text(json.dumps(raw))
    refused(sharded, INDEX_NAME)


@pytest.mark.parametrize("metadata", [None, [], [1], 7, "text", True], ids=repr)
def test_metadata_of_a_wrong_kind_is_one_line(metadata, sharded):
    raw = json.loads((sharded / INDEX_NAME).read_text()) | {"metadata": metadata}
    (sharded / INDEX_NAME).write_text(json.dumps(raw))
    refused(sharded, INDEX_NAME, "metadata")


# Place in a header -> what it may not hold.
WRONG_HEADERS = {
    ("__metadata__",): (["a"], 3, {"format": 3}),
    ("x",): (None, "F32", {"shape": [1], "data_offsets": [0, 4]}),
    ("x", "dtype"): (None,),
    ("x", "shape"): (None, [-1], [1.0], [True]),
    ("x", "data_offsets"): (*(None, [0], [-4, 0], [0.0, 4.0], [4, 0]), [10**30, 10**30 + 4]),
}


@pytest.mark.parametrize(
    ("place", "value"),
    [(place, value) for place, values in WRONG_HEADERS.items() for value in values],
)
def test_a_header_of_a_wrong_kind_is_one_line(place, value, tmp_path):
    header = {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    put(*place, to=value)(header)
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / SINGLE_NAME).write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    refused(tmp_path, SINGLE_NAME)
