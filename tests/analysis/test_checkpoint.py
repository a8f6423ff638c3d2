"""Reading a checkpoint directory: what it is, and one clear line where it cannot be read."""

import json
import os
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from analysis.checkpoint.headers import read_shard
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import CheckpointError
from builders import edit_json, set_byte, tiny_checkpoint

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00004.safetensors"


def test_index_agrees_with_safetensors_own_reader(tmp_path):
    tiny_checkpoint(tmp_path, "qwen3_moe", dtype=torch.bfloat16)
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.shards) > 1
    seen = 0
    for shard in checkpoint.shards:
        bytes_of = (tmp_path / shard.name).read_bytes()
        assert shard.size == len(bytes_of)
        with safe_open(tmp_path / shard.name, framework="pt") as file:
            assert dict(shard.metadata) == file.metadata()
            assert [entry.name for entry in shard.tensors] == list(file.offset_keys())
            for entry in shard.tensors:
                tensor = file.get_tensor(entry.name)
                raw = bytes_of[entry.start : entry.end]
                assert raw == tensor.view(torch.uint8).numpy().tobytes()
                assert (entry.shape, entry.dtype) == (tuple(tensor.shape), "BF16")
                assert (entry.numel, entry.nbytes) == (tensor.numel(), tensor.nbytes)
                seen += 1
    assert seen == len(checkpoint.tensors)


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_parameters_and_bytes_equal_those_of_the_model(tmp_path, model_type):
    model = tiny_checkpoint(tmp_path, model_type, dtype=torch.bfloat16).model
    checkpoint = open_checkpoint(tmp_path)
    assert model.config.tie_word_embeddings is (model_type == "qwen3_moe")
    unique = {p.data_ptr(): p.numel() for p in model.parameters()}  # tied ones count once
    assert checkpoint.num_params == sum(unique.values())
    assert checkpoint.nbytes == 2 * checkpoint.num_params


@pytest.fixture
def source(tmp_path):
    tiny_checkpoint(tmp_path / "source", "olmoe")
    return tmp_path / "source"


def test_identity_stays_when_nothing_that_matters_changes(source):
    identity = open_checkpoint(source).identity
    edit_json(source / "config.json", transformers_version="4.1.0")
    raw = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(dict(reversed(raw.items()))))
    for file in source.iterdir():
        os.utime(file, (1, 1))
    (source / "README.md").write_text("new")
    assert open_checkpoint(source).identity == identity


@pytest.mark.parametrize(
    "change",
    [
        lambda copy: edit_json(copy / "config.json", norm_topk_prob=True),
        # The header's metadata: {"format":"pt"} becomes "qt".
        lambda copy: set_byte(copy / FIRST, (copy / FIRST).read_bytes().index(b'"pt"') + 1, 0x71),
        # Every shard of the tiny model is smaller than what is sampled, so any byte counts.
        lambda copy: set_byte(copy / FIRST, -1),
    ],
    ids=["configuration value", "byte of a header", "last byte of a shard"],
)
def test_identity_changes_with_the_model(source, change):
    identity = open_checkpoint(source).identity
    change(source)
    assert open_checkpoint(source).identity != identity


def test_identity_samples_a_large_shard_at_sixteen_places(tmp_path):
    # 400,000 bytes of data: sixteen samples of 4,096, each 25,000 after the one before.
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text("{}")
    file = tmp_path / "big" / "model.safetensors"
    save_file({"w": torch.zeros(100_000)}, file)
    start = read_shard(file).data_start
    before = open_checkpoint(tmp_path / "big")
    identity = before.identity
    for sample in (0, 7, 15):
        offset = start + 25_000 * sample + 4_095
        set_byte(file, offset)
        assert open_checkpoint(tmp_path / "big").identity != identity
        set_byte(file, offset)
    # Between two samples it is blind.
    set_byte(file, start + 4_096)
    after = open_checkpoint(tmp_path / "big")
    assert after.identity == identity


def entry(start, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def headed(header, data=b""):
    """A shard with this header, valid or not."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return written(FIRST, struct.pack("<Q", len(raw)) + raw + data)


def cut(stop):
    return lambda path: (path / FIRST).write_bytes((path / FIRST).read_bytes()[:stop])


def indexed(**changes):
    def change(path):
        weight_map = json.loads((path / INDEX).read_text())["weight_map"]
        edit_json(path / INDEX, weight_map=weight_map | changes)

    return change


def written(name, content):
    return lambda path: (path / name).write_bytes(content)


def without(pattern, pickled=b""):
    def remove(path):
        for file in path.glob(pattern):
            file.unlink()
        if pickled:
            (path / "pytorch_model.bin").write_bytes(pickled)

    return remove


def hold_in_two_shards(path):
    second = path / FIRST.replace("00001", "00002")
    name, tensor = next(iter(load_file(path / FIRST).items()))
    save_file({**load_file(second), name: tensor.clone()}, second)


def link_to_nowhere(path):
    (path / FIRST).unlink()
    (path / FIRST).symlink_to(path / "gone")


W = json.dumps(entry(0, 4)).encode()
OVERLAP = {"v": entry(0, 8, (2,)), "w": entry(4, 8)}
UNREADABLE = rf"The header of {FIRST} cannot be read"
EXTRA = "model.layers.9.extra.weight"
BAD = {
    "a name twice in a header": (headed(b'{"w":%b,"w":%b}' % (W, W), b"0000"), "holds w twice"),
    "a name in two shards": (hold_in_two_shards, r"both hold lm_head\.weight"),
    "tensors that overlap": (headed(OVERLAP, bytes(8)), rf"{FIRST} is damaged: w \[1\] of F32"),
    "offsets of another shape": (headed({"w": entry(0, 8, (3,))}, bytes(8)), r"damaged: w \[3\]"),
    "a shape of words": (headed({"w": entry(0, 8, ("a", "b"))}, bytes(8)), UNREADABLE),
    "header is no JSON": (headed(b"{nonsense"), UNREADABLE),
    "header is no text": (headed(b"\xff\xfe\x00\x01"), UNREADABLE),
    "header is a list": (headed([1, 2]), UNREADABLE),
    "header without offsets": (headed({"w": {"dtype": "F32", "shape": [1]}}), UNREADABLE),
    "missing shard": (without(FIRST), f"{INDEX} names {FIRST}, which is missing"),
    "a link to nowhere": (link_to_nowhere, f"{INDEX} names {FIRST}, which is missing"),
    "truncated shard": (cut(-7), rf"{FIRST} is truncated: it has \d+ bytes, .* promises \d+"),
    "shard cut in its header": (cut(100), f"{FIRST} is not a safetensors file"),
    "empty shard": (cut(0), f"{FIRST} is not a safetensors file"),
    "index leads elsewhere": (indexed(extra="../o.safetensors"), r"names \.\./o\.safetensors"),
    "index names a missing file": (indexed(extra="o.safetensors"), r"o\.safetensors, .* missing"),
    "index names a missing tensor": (indexed(**{EXTRA: FIRST}), rf"{EXTRA} in {FIRST}.*\(1 such"),
    "index is no JSON": (written(INDEX, b"{"), f"{INDEX} is not a readable"),
    "index without a map": (written(INDEX, b"{}"), f"{INDEX} is not a readable"),
    "no index": (without(INDEX), f"4 safetensors files but no {INDEX}"),
    "pickled weights only": (without("model*", b"\x80"), "only pickled weights.*convert"),
    "no weights": (without("model*"), "has no safetensors file"),
    "no config": (without("config.json"), r"has no config\.json"),
    "config is no JSON": (written("config.json", b"{'a': 1}"), r"config\.json is not valid JSON"),
    "config is no text": (written("config.json", b"\xff" * 3), r"config\.json is not valid JSON"),
    "config is a list": (written("config.json", b"[]"), "does not hold a JSON object"),
}


@pytest.mark.parametrize(("damage", "message"), BAD.values(), ids=BAD)
def test_a_bad_directory_gives_one_clear_line(source, damage, message):
    damage(source)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(source)
    assert "\n" not in str(caught.value)


def test_a_shard_is_read_alone_and_a_scalar_has_one_element(tmp_path):
    with pytest.raises(CheckpointError, match=r"The shard x\.safetensors is missing"):
        read_shard(tmp_path / "x.safetensors")
    save_file({"a": torch.tensor(3.0)}, tmp_path / "x.safetensors")
    (entry,) = read_shard(tmp_path / "x.safetensors").tensors
    assert (entry.shape, entry.numel, entry.nbytes) == ((), 1, 4)
