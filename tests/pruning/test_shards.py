"""Planned tensors and shards against plain indexing; what is refused; shards made anew."""

import itertools
import json
import shutil
import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from exports import export, tensors_of, verified
from safetensors import deserialize
from safetensors.torch import load_file, save_file

from analysis.checkpoint.index import INDEX_NAME, TensorEntry
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import ExportError
from analysis.families.base import Slot, SlotKind
from analysis.model.opening import load_model_index
from pruning.plan.sizes import parse_size
from pruning.surgery.pieces import Gather, Span
from pruning.surgery.shards import PlannedTensor, assemble, check_located, plan_tensor
from pruning.surgery.verify import Level

BEFORE = 24  # bytes before the first tensor
DTYPES = {"I64": np.int64, "F32": np.float32, "I16": np.int16, "U8": np.uint8}


class Source:
    """A shard as bytes, to which tensors are added one after the other."""

    def __init__(self, name="one.safetensors"):
        self.name, self.content = name, bytes(BEFORE)

    def add(self, name, shape, dtype="I16"):
        """Bytes of random numbers as an entry."""
        count = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
        start = len(self.content)
        self.content += np.random.default_rng(start).bytes(count)
        return TensorEntry(name, self.name, dtype, tuple(shape), start, start + count)

    def array(self, entry):
        """The numbers of an entry."""
        flat = np.frombuffer(self.content[entry.start : entry.end], DTYPES[entry.dtype])
        return flat.reshape(entry.shape)

    def bytes_of(self, pieces):
        """What byte ranges hold."""
        assert all(isinstance(piece, Span) for piece in pieces)
        return b"".join(self.content[piece.start : piece.end] for piece in pieces)


@pytest.mark.parametrize("kept", [(0,), (3,), (1, 2), (0, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_entries_are_cut_out_along_any_axis(axis, kept):
    source = Source()
    source.add("before", (5,))
    shape = np.roll((4, 2, 3), axis)
    entry = source.add("gate", shape)
    slot = Slot(0, SlotKind.ROUTER, axis=axis)
    planned = plan_tensor(entry, slot, kept)
    wanted = source.array(entry).take(kept, axis)
    assert source.bytes_of(planned.spans) == wanted.tobytes()
    assert planned.shape == wanted.shape
    assert planned.nbytes == wanted.nbytes
    assert planned.name == "gate"
    assert planned.is_cut == (len(kept) < 4)


def test_neighbours_are_one_range_and_others_are_not():
    entry = Source().add("experts", (6, 10))
    slot = Slot(0, SlotKind.STACKED, "up")
    # Rows of 20 bytes, the first at byte 24.
    assert plan_tensor(entry, slot, (0, 1, 4, 5)).spans == (Span(24, 64), Span(104, 144))
    assert plan_tensor(entry, slot, (2, 3)).spans == (Span(64, 104),)


@pytest.mark.parametrize(("expert", "name"), [(1, "up.0"), (2, None), (4, "up.1"), (5, "up.2")])
def test_experts_that_stay_get_their_place_as_id(expert, name):
    entry = Source().add(f"up.{expert}", (2, 3))
    slot = Slot(0, SlotKind.EXPERT, "up", expert, "up.{expert}")
    planned = plan_tensor(entry, slot, (1, 4, 5))
    if name is None:
        assert planned is None
        return
    assert (planned.name, planned.shape) == (name, (2, 3))
    assert planned.spans == (Span(entry.start, entry.end),)
    assert not planned.is_cut


@pytest.mark.parametrize("slot", [None, Slot(3, SlotKind.ROUTER)])
def test_what_no_plan_names_is_copied(slot):
    entry = Source().add("norm", (7,))
    kept = None if slot else (0, 1)
    assert plan_tensor(entry, slot, kept) == PlannedTensor(
        entry, "norm", (7,), (Span(entry.start, entry.end),), entry.dtype
    )


def test_rows_that_are_no_whole_bytes_are_refused():
    # Four rows of three elements of four bits: a row is a byte and a half.
    entry = TensorEntry("gate", "one", "F4", (4, 3), 8, 8 + 6)
    with pytest.raises(ExportError, match="The rows of gate do not fall on whole bytes"):
        plan_tensor(entry, Slot(0, SlotKind.ROUTER), (1,))


def test_zeros_among_neurons_are_a_cut_even_if_the_shape_stays():
    entry = Source().add("up", (4, 3))
    gather = Gather(entry.start, 1, 4, 6, np.array([0, 2, -1, -1], np.int32))
    whole = PlannedTensor(entry, "up", (4, 3), (Span(entry.start, entry.end),), entry.dtype)
    cut = replace(whole, spans=(gather,))
    assert (cut.is_cut, cut.nbytes, whole.is_cut) == (True, entry.nbytes, False)


def planned_of(sources):
    """Tensors of mixed types from two shards: one cut, one renamed, one without elements."""
    one, two = sources
    cut = plan_tensor(one.add("gate", (5, 3), "U8"), Slot(0, SlotKind.ROUTER), (0, 2, 3))
    expert = Slot(0, SlotKind.EXPERT, "up", 3, "up.{expert}")
    return [
        cut,
        plan_tensor(one.add("up.3", (2, 3), "I16"), expert, (0, 2, 3)),
        plan_tensor(one.add("empty", (0, 4), "F32"), None, None),
        plan_tensor(two.add("norm", (3,), "F32"), None, None),
        plan_tensor(two.add("scale", (), "I64"), None, None),
        plan_tensor(one.add("bias", (1,), "F32"), None, None),
    ]


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}])
def test_an_assembled_shard_is_read_by_safetensors(metadata):
    sources = Source(), Source("two.safetensors")
    tensors = planned_of(sources)
    shard = assemble("model.safetensors", tensors, metadata)
    by_name = {source.name: source for source in sources}
    content = shard.prefix + b"".join(
        by_name[reading.source].bytes_of(reading.pieces) for reading in shard.readings
    )
    assert len(content) == shard.nbytes
    for reading in shard.readings:
        assert reading.nbytes == len(by_name[reading.source].bytes_of(reading.pieces))
    held = dict(deserialize(content))
    assert held.keys() == {"gate", "up.2", "empty", "norm", "scale", "bias"}
    for tensor in tensors:
        found, source = held[tensor.name], by_name[tensor.source.shard]
        assert found["dtype"] == tensor.source.dtype
        assert tuple(found["shape"]) == tensor.shape
        assert bytes(found["data"]) == source.bytes_of(tensor.spans)
    length = struct.unpack("<Q", shard.prefix[:8])[0]
    assert len(shard.prefix) == 8 + length
    assert length % 8 == 0
    assert json.loads(shard.prefix[8:]).get("__metadata__", {}) == metadata


def test_wide_elements_come_first():
    sources = Source(), Source("two.safetensors")
    shard = assemble("model.safetensors", planned_of(sources), {})
    # 8, 4, 4, 2, 1 bytes each; a tensor without elements has no size and comes last.
    names = [tensor.name for tensor in shard.tensors]
    assert names == ["scale", "norm", "bias", "up.2", "gate", "empty"]
    assert (shard.cut, len(shard.tensors), shard.dropped) == (1, 6, 0)
    assert [reading.source for reading in shard.readings] == ["two.safetensors", "one.safetensors"]
    offsets = [json.loads(shard.prefix[8:])[name]["data_offsets"] for name in names]
    assert offsets == [[0, 8], [8, 20], [20, 24], [24, 36], [36, 45], [45, 45]]


def test_headers_of_all_lengths_fill_up_to_eight_bytes():
    source = Source()
    entry = source.add("x", (1,), "I64")
    lengths = set()
    for letters in range(1, 18):
        tensor = PlannedTensor(entry, "x" * letters, (1,), (Span(0, 8),), "I64")
        shard = assemble("model.safetensors", [tensor], {})
        entry_of = {"x" * letters: {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}
        text = json.dumps(entry_of, separators=(",", ":")).encode()
        assert shard.prefix[8:].rstrip(b" ") == text
        lengths.add(len(shard.prefix) - 8)
    # As few spaces as do it: each length is there, in steps of eight.
    assert all(second - first == 8 for first, second in itertools.pairwise(sorted(lengths)))
    assert len(lengths) == 3


@pytest.fixture
def with_tensor(checkpoint, tmp_path):
    """`with_tensor("olmoe", name)`: a model with one more tensor."""

    def get(model_type, name, **changes):
        source = checkpoint(model_type, shards=1).path
        shutil.copytree(source, tmp_path / "model")
        tensors = load_file(source / "model.safetensors")
        extra = {name: torch.zeros(7)}
        save_file(tensors | extra, tmp_path / "model" / "model.safetensors", {"format": "pt"})
        config = json.loads((source / "config.json").read_text())
        (tmp_path / "model" / "config.json").write_text(json.dumps(config | changes))
        return load_model_index(str(tmp_path / "model"))

    return get


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.0.extra_experts.weight", 0),
        ("model.layers.0.mlp.bias", 0),
        ("model.layers.1.mlp.experts.6.scale", 1),
        ("model.layers.1.mlp.gate.e_score_correction_bias", 1),
        ("model.layers.1.mlp.e_score_correction_bias", 1),
        ("model.layers.1.second_mlp.experts.0.up_proj.weight", 1),
        ("model.layers.1.lora_experts_up.weight", 1),
        ("model.layers.2.mlp.experts.0.scale", 2),
        ("model.layers.2.mixer.experts_up.weight", 2),
        ("model.layers.2.shared.experts.weight", 2),
    ],
)
def test_what_sounds_like_experts_of_a_sparse_layer_is_refused(with_tensor, name, layer):
    model = with_tensor("olmoe", name)
    with pytest.raises(ExportError, match=f"^{name} belongs to the experts of layer {layer}, but"):
        check_located(model)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.extra.weight",
        "model.layers.1.shared_experts_norm.weight",
        "model.layers.3.mlp.experts.0.scale",  # beyond the three layers of the trunk: a head
        "model.layers.3.extra_experts.weight",
        "model.layers.late.experts.weight",
        "vision.layers.1.experts.weight",
        "1.experts.weight",
        "experts.weight",
    ],
)
def test_what_lies_elsewhere_is_copied(with_tensor, name):
    check_located(with_tensor("olmoe", name))


def test_a_dense_layer_has_biases_and_no_experts(with_tensor):
    # Layer 1 of this model is dense.
    check_located(with_tensor("qwen3_moe", "model.layers.1.mlp.bias"))


@pytest.mark.parametrize("part", ["mlp.experts.0.scale", "extra_experts.weight"])
def test_experts_in_a_dense_layer_are_refused(with_tensor, part):
    model = with_tensor("qwen3_moe", f"model.layers.1.{part}")
    with pytest.raises(ExportError, match=r"belongs to experts, but .* makes layer 1 dense"):
        check_located(model)


@pytest.mark.parametrize(
    ("fused", "shards", "most"),
    [(False, 3, 8_000), (True, 3, 30_000), (False, 3, 1 << 30), (False, 1, 8_000)],
)
def test_the_same_tensors_in_shards_of_another_size(checkpoint, tmp_path, fused, shards, most):
    source = checkpoint("qwen3_moe", fused=fused, dtype=torch.bfloat16, shards=shards).path
    export(source, (1, 3, 4), tmp_path / "plain")
    manifest = export(source, (1, 3, 4), tmp_path / "out", max_shard_bytes=most)
    before, after = tensors_of(tmp_path / "plain"), tensors_of(tmp_path / "out")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    for shard in manifest.shards:
        assert shard.bytes <= most or len(shard.tensors) == 1
    # What comes next would not have fitted; headers are guessed at 200 bytes a tensor at most.
    made, count = open_checkpoint(tmp_path / "out"), len(manifest.shards)
    for first, second in pairwise(manifest.shards):
        header = 200 * (len(first.tensors) + 2)
        assert first.bytes + header + made.tensors[second.tensors[0]].nbytes > most
    index, numbers = tmp_path / "out" / INDEX_NAME, range(1, count + 1)
    if most == 1 << 30:
        assert not index.exists()
        names = ["model.safetensors"]
    else:
        assert json.loads(index.read_text())["metadata"]["total_size"] == made.nbytes
        names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in numbers]
    assert [shard.name for shard in manifest.shards] == names
    assert all(shard.metadata == {"format": "pt"} for shard in made.shards)
    assert manifest.dropped_shards == ()
    assert verified(tmp_path / "out", source=source).level is Level.LOGITS


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5_000_000_000),
        ("1.5GiB", 3 << 29),
        ("500 mb", 500_000_000),
        ("7KB", 7_000),
        ("2tb", 2_000_000_000_000),
        ("3KiB", 3 * 1024),
        ("3MiB", 3 * 1024**2),
        ("1000", 1000),
        ("1e9", 1_000_000_000),  # a number as --target-size takes it
        (".5GB", 500_000_000),
    ],
)
def test_sizes_in_words(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GB", "-1GB", "5 bananas", "inf", "0", "999", "0.5KB", "5PB", "5i", "9" * 5000 + "GB"],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ExportError, match=r"not understood; write 5GB|too small"):
        parse_size(text)
