"""Facts of an export's files that hashes do not hold: headers, index, shared experts that grew."""

import json

import numpy as np
import pytest
import torch
from atom_cases import Exported
from exports import (
    accept_changes,
    edit_json,
    edit_tensors,
    export,
    failed,
    keeping_neurons,
    shards_of,
    verified,
)

from analysis.checkpoint import INDEX_NAME, open_checkpoint
from analysis.drain import drain
from families.configs import BY_NAME
from pruning.atoms.widths import WidthChoice, WidthMode
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest
from pruning.surgery.tensor_checks import check_against_source
from pruning.surgery.verify import verify_export

GLM = BY_NAME["glm4_moe"]


@pytest.fixture
def out(checkpoint, tmp_path):
    """An export of an OLMoE."""
    export(checkpoint("olmoe").path, (1, 3, 4), tmp_path / "out")
    return tmp_path / "out"


def test_what_a_good_export_holds(out):
    report = drain(verify_export(out, level="bytes"))
    manifest, held = read_manifest(out), open_checkpoint(out)
    count, nbytes = len(manifest.shards), sum(f.stat().st_size for f in out.glob("*.safetensors"))
    assert {check.name: check.detail for check in report.checks} == {
        "manifest": f"plan {manifest.plan.digest[:8]}, written by version {manifest.tool_version}",
        "shards": f"{count} shards, none missing, none extra",
        "sizes": f"{nbytes} bytes in all",
        "sha256": f"{count} shards as they were written",
        "files": f"{len(manifest.files)} other files as they were written",
        "headers": f"{len(held.tensors)} tensors, as manifest and index say",
        "experts": "ids 0..2 in each of 3 sparse layers, as config.json says",
    }


def test_a_manifest_that_names_other_tensors(out):
    shards = json.loads((out / MANIFEST_NAME).read_text())["shards"]
    gone = min(shards[1]["tensors"])
    shards[1]["tensors"].remove(gone)
    edit_json(out / MANIFEST_NAME, shards=shards)
    assert failed(out, level="bytes") == {
        "headers": f"{shards[1]['name']} does not hold the tensors of the manifest: {gone}"
    }


def test_an_index_with_another_size(out):
    index = json.loads((out / INDEX_NAME).read_text())
    index["metadata"]["total_size"] += 4
    (out / INDEX_NAME).write_text(json.dumps(index))
    accept_changes(out)
    held = open_checkpoint(out).nbytes
    assert failed(out, level="bytes") == {
        "headers": f"{INDEX_NAME} gives {held + 4} bytes in all instead of {held}"
    }
    del index["metadata"]
    (out / INDEX_NAME).write_text(json.dumps(index))
    accept_changes(out)
    assert failed(out, level="bytes") == {}


def test_a_tensor_that_no_class_knows_fails_at_load(out):
    name, index = "model.surplus.weight", json.loads((out / INDEX_NAME).read_text())
    shard = shards_of(out)[0]
    edit_tensors(shard, lambda held: held | {name: torch.zeros(3)})
    index["weight_map"][name] = shard.name
    index["metadata"]["total_size"] += 12
    (out / INDEX_NAME).write_text(json.dumps(index))
    accept_changes(out)
    assert failed(out, level="bytes") == {}
    assert failed(out, level="load") == {"load": f"transformers reports 1 unexpected keys: {name}"}


@pytest.fixture
def grown(atom_source, tmp_path):
    """An export whose experts have 20 neurons, so shared ones of 48 are filled up to 60."""
    source = atom_source(GLM)
    atoms = {layer: {e: tuple(range(20)) for e in range(7)} for layer in (1, 2)}
    plan = keeping_neurons(source.described, atoms)
    widths = WidthChoice(WidthMode.UNIFORM, 4)
    export(source.described, plan, tmp_path / "out", widths=widths)
    return Exported(source, tmp_path / "out", "uniform")


def test_shared_experts_that_grew_are_verified_byte_by_byte(grown):
    described = grown.source.described
    verified(grown.path, source=grown.source.path, level="bytes")
    manifest = read_manifest(grown.path)
    # An element kept, one among the zeros; of `up` the last row, of `down` the end of row 2.
    places = {"up": (0, 59 * 16), "down": (1, 2 * 60 + 50)}
    for projection, elements in places.items():
        name = f"model.layers.1.mlp.shared_experts.{projection}_proj.weight"
        entry = open_checkpoint(grown.path).tensors[name]
        assert entry.shape == ((60, 16) if projection == "up" else (16, 60))
        for element in elements:
            file = np.memmap(grown.path / entry.shard, np.uint8, "r+")
            file[entry.start + 4 * element] ^= 1
            (_, check) = drain(check_against_source(grown.path, manifest, described))
            file[entry.start + 4 * element] ^= 1
            assert not check.ok
            assert check.detail == (
                f"{name} is not the plan's cut of the source's {name}: byte {4 * element} of the "
                "tensor is the first that differs"
            )
