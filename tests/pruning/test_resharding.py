"""Shards made anew: as few as fit, none too large, the same tensors; and the list of kept ids."""

import json
from itertools import pairwise

import pytest
import torch
from exports import export, tensors_of, verified
from oracles import logits_of
from transformers import AutoModelForCausalLM

from analysis.checkpoint import INDEX_NAME, open_checkpoint
from analysis.errors import ExportError
from pruning.surgery.export import KEEP_LIST_NAME
from pruning.surgery.resharding import parse_size
from pruning.surgery.verify import Level


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("most", [8_000, 30_000, 1 << 30])
def test_the_same_tensors_in_shards_of_another_size(checkpoint, tmp_path, fused, most):
    source = checkpoint("qwen3_moe", fused=fused, dtype=torch.bfloat16).path
    export(source, (1, 3, 4), tmp_path / "plain")
    manifest = export(source, (1, 3, 4), tmp_path / "out", max_shard_bytes=most)
    before, after = tensors_of(tmp_path / "plain"), tensors_of(tmp_path / "out")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    for shard in manifest.shards:
        assert shard.bytes <= most or len(shard.tensors) == 1
    # What comes next would not have fitted; headers are guessed at 200 bytes a tensor at most.
    held = open_checkpoint(tmp_path / "out").tensors
    for first, second in pairwise(manifest.shards):
        header = 200 * (len(first.tensors) + 2)
        assert first.bytes + header + held[second.tensors[0]].nbytes > most
    assert (tmp_path / "out" / INDEX_NAME).is_file() == (len(manifest.shards) > 1)
    if most == 1 << 30:
        assert [shard.name for shard in manifest.shards] == ["model.safetensors"]
    assert all(
        shard.metadata == {"format": "pt"} for shard in open_checkpoint(tmp_path / "out").shards
    )
    assert manifest.dropped_shards == ()
    report = verified(tmp_path / "out", source=source)
    assert report.level is Level.LOGITS


def test_a_checkpoint_in_one_file_can_be_cut_into_several(checkpoint, tmp_path):
    source = checkpoint("olmoe", shards=1).path
    manifest = export(source, (1, 3, 4), tmp_path / "out", max_shard_bytes=20_000)
    count = len(manifest.shards)
    assert count > 3
    assert manifest.shards[0].name == f"model-00001-of-{count:05d}.safetensors"
    index = json.loads((tmp_path / "out" / INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == open_checkpoint(tmp_path / "out").nbytes
    export(source, (1, 3, 4), tmp_path / "plain")
    again, plain = map(AutoModelForCausalLM.from_pretrained, (tmp_path / "out", tmp_path / "plain"))
    assert torch.equal(logits_of(again), logits_of(plain))


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
    ],
)
def test_sizes_in_words(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GB", "-1GB", "5 bananas", "1e9", "0", "999", "0.5KB", "5PB", "5i", "9" * 5000 + "GB"],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ExportError, match=r"not understood; write 5GB|too small"):
        parse_size(text)


def test_the_kept_ids_as_a_file_of_their_own(checkpoint, tmp_path):
    manifest = export(checkpoint("qwen3_moe").path, (1, 3, 4), tmp_path / "out", keep_list=True)
    kept = json.loads((tmp_path / "out" / KEEP_LIST_NAME).read_text())
    assert kept == {"0": [1, 3, 4], "2": [1, 3, 4], "3": [1, 3, 4]}
    assert KEEP_LIST_NAME in manifest.files
    export(checkpoint("qwen3_moe").path, (1, 3, 4), tmp_path / "plain")
    assert not (tmp_path / "plain" / KEEP_LIST_NAME).exists()
