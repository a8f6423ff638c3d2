"""What is said of an export that does not fit its source, word by word and count by count."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from exports import export, keeping
from safetensors.numpy import load_file, save_file

from analysis.checkpoint import INDEX_NAME
from analysis.drain import drain
from analysis.model import load_model_index
from pruning.surgery.manifest import read_manifest
from pruning.surgery.tensor_checks import check_against_source

KEPT = (1, 3, 4)
NORM = "model.norm.weight"


@pytest.fixture
def source(checkpoint, tmp_path):
    """An OLMoE of which one shard holds nothing but an expert that goes."""
    folder = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe").path, folder)
    index = json.loads((folder / INDEX_NAME).read_text())
    moved = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors = load_file(shard)
        gone = [name for name in tensors if "layers.1.mlp.experts.0." in name]
        moved |= {name: tensors.pop(name) for name in gone}
        save_file(tensors, shard, {"format": "pt"})
    save_file(moved, folder / "only-0.safetensors", {"format": "pt"})
    index["weight_map"] |= dict.fromkeys(moved, "only-0.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps(index))
    return load_model_index(str(folder))


@pytest.fixture
def out(source, tmp_path):
    """Its export."""
    plan = keeping(source, KEPT)
    export(source, plan, tmp_path / "out")
    return tmp_path / "out"


def checks(out, source, **changes):
    """The two checks, with a manifest that says something else."""
    return drain(check_against_source(out, replace(read_manifest(out), **changes), source))


def problem(out, source, **changes):
    """What the only check that was made finds."""
    (check,) = checks(out, source, **changes)
    assert not check.ok
    assert check.name == "source"
    return check.detail


def test_a_good_export_fits(out, source):
    manifest = read_manifest(out)
    assert manifest.dropped_shards == ("only-0.safetensors",)
    accounted, compared = checks(out, source)
    assert accounted.ok and compared.ok
    # 3 layers x 3 projections of 7 experts, of which 3 stay, and 3 routers.
    total = len(source.checkpoint.tensors)
    assert accounted.detail == (
        f"each of the source's {total} tensors is accounted for: {total - 36 - 3} copied, 3 cut, "
        "36 dropped"
    )
    nbytes = sum(
        array.nbytes for file in out.glob("*.safetensors") for array in load_file(file).values()
    )
    assert compared.detail == (
        f"all {nbytes} bytes of {total - 36} tensors are the source's, or the plan's cut"
    )


def change_norm(out, change):
    """Put other tensors in place of the last norm, in the shard and in the index."""
    index = json.loads((out / INDEX_NAME).read_text())
    shard = index["weight_map"].pop(NORM)
    tensors = load_file(out / shard)
    made = change(tensors.pop(NORM))
    save_file(tensors | made, out / shard, {"format": "pt"})
    index["weight_map"] |= dict.fromkeys(made, shard)
    (out / INDEX_NAME).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda norm: {"model.other.weight": norm},
            f"{NORM} should be ('F32', (16,)), but is absent; "
            "model.other.weight should be absent, but is ('F32', (16,))",
        ),
        (
            lambda norm: {NORM: norm.astype(np.float16)},
            f"{NORM} should be ('F32', (16,)), but is ('F16', (16,))",
        ),
        (
            lambda norm: {NORM: norm.reshape(4, 4)},
            f"{NORM} should be ('F32', (16,)), but is ('F32', (4, 4))",
        ),
    ],
)
def test_a_tensor_that_is_not_as_it_should_be(out, source, change, words):
    change_norm(out, change)
    assert problem(out, source) == words


def changed_shard(out, number, **changes):
    """The records of all shards, one of them with other counts."""
    shards = list(read_manifest(out).shards)
    shards[number] = replace(shards[number], **changes)
    return {"shards": tuple(shards)}


def test_counts_of_copied_and_cut_tensors(out, source):
    shard = next(shard for shard in read_manifest(out).shards if shard.cut)
    number = read_manifest(out).shards.index(shard)
    assert shard.cut + shard.copied == len(load_file(out / shard.name))
    changes = changed_shard(out, number, cut=shard.cut + 1, copied=shard.copied - 1)
    assert problem(out, source, **changes) == (
        f"{shard.name} holds {shard.copied} copied and {shard.cut} cut tensors, but the manifest "
        f"counts {shard.copied - 1} and {shard.cut + 1}"
    )


def test_counts_of_dropped_tensors(out, source):
    for number, shard in enumerate(read_manifest(out).shards):
        held = load_file(source.checkpoint.path / shard.name)
        lost = sum(
            "experts" in name and int(name.split("experts.")[1].split(".")[0]) not in KEPT
            for name in held
        )
        assert shard.dropped == lost
        for said in (lost + 1, max(lost - 1, 0)):
            if said == lost:
                continue
            assert problem(out, source, **changed_shard(out, number, dropped=said)) == (
                f"{shard.name} lost {lost} tensors, but the manifest counts {said} as dropped"
            )


@pytest.mark.parametrize(
    ("said", "words"),
    [((), "none"), (("other", "only-0.safetensors"), "other, only-0.safetensors")],
)
def test_shards_of_which_nothing_is_left(out, source, said, words):
    assert problem(out, source, dropped_shards=said) == (
        "the source's shards of which nothing is left are only-0.safetensors, but the manifest "
        f"names {words}"
    )


def test_another_source_is_named_with_its_identity(out, checkpoint):
    other = load_model_index(str(checkpoint("mixtral").path))
    made_of = read_manifest(out).source
    assert problem(out, other) == (
        f"{other.name} (identity {other.identity[:8]}) is not what was exported: {made_of.name} "
        f"(identity {made_of.identity[:8]})"
    )


def test_no_shard_of_which_nothing_is_left(checkpoint, tmp_path):
    source = load_model_index(str(checkpoint("olmoe").path))
    plan = keeping(source, KEPT)
    export(source, plan, tmp_path / "out")
    assert problem(tmp_path / "out", source, dropped_shards=("other",)) == (
        "the source's shards of which nothing is left are none, but the manifest names other"
    )
