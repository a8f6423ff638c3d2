"""What an export must hold, derived a second time, and what is said where it does not."""

import json
import shutil
import tracemalloc
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from exports import checks_against_source, export, keeping
from neuron_cases import allowed
from safetensors.numpy import load_file, save_file

from analysis.checkpoint.index import INDEX_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from builders import edit_json
from families.configs import CASES
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import keep_all
from pruning.surgery import expected
from pruning.surgery.expected import TensorPart, expected_tensors
from pruning.surgery.manifest import read_manifest
from pruning.surgery.reading import Files

NAMED = {case.name: case for case in CASES}


@pytest.fixture
def numbers(tmp_path):
    """A file with 10 bytes of something else, then a 6 x 8 matrix of int16; and the matrix."""
    matrix = np.arange(48, dtype=np.int16).reshape(6, 8) * 7
    file = tmp_path / "shard"
    file.write_bytes(b"something " + matrix.tobytes())
    return file, matrix


WHOLE = np.arange(48).reshape(6, 8)


@pytest.mark.parametrize("block_bytes", [1, 20, 40, 1 << 22])
@pytest.mark.parametrize(
    ("shape", "axis", "ids", "places"),
    [
        # Places in the matrix, -1 for zeros.
        ((6, 8, 2), 0, None, WHOLE),
        *(((6, 8, 2), 0, ids, WHOLE[ids]) for ids in ([0, 5], [4, 1, 2], [3], list(range(6)))),
        ((6, 8, 2), 0, [4, -1, 2], np.stack([WHOLE[4], np.full(8, -1), WHOLE[2]])),
        (
            (6, 8, 2),
            1,
            [4, 0, -1, 2, -1],
            np.where([True, True, False, True, False], WHOLE[:, [4, 0, 0, 2, 0]], -1),
        ),
        ((6, 0, 2), 1, [-1, -1], np.full((6, 2), -1)),  # without entries it becomes zeros
        *((shape, 0, None, WHOLE[:0]) for shape in ((6, 0, 2), (0, 8, 2), (0,))),
    ],
)
def test_parts(numbers, monkeypatch, block_bytes, shape, axis, ids, places):
    monkeypatch.setattr(expected, "_BLOCK_BYTES", block_bytes)
    file, matrix = numbers
    part = TensorPart(10, shape, axis, None if ids is None else np.array(ids))
    wanted = np.where(places < 0, 0, matrix.reshape(-1)[np.maximum(places, 0)]).astype(np.int16)
    with closing(Files()) as files:
        blocks = [block.tobytes() for block in part.blocks(file, files)]
    assert b"".join(blocks) == wanted.tobytes()
    assert part.is_whole == (ids is None or ids == list(range(6)))
    if ids is not None:
        assert part.result == (*places.shape, 2)


def test_a_large_matrix_never_is_in_memory(tmp_path):
    rows, columns = 2048, 8192  # 64 MiB of float32
    with (tmp_path / "shard").open("wb") as file:
        file.truncate(rows * columns * 4)
    every_other = np.arange(0, columns, 2)
    tracemalloc.start()
    with closing(Files()) as files:
        for part in (
            TensorPart(0, (rows * columns * 4,)),
            TensorPart(0, (rows, columns, 4), 1, every_other),
            TensorPart(0, (rows, columns, 4), 0, np.arange(rows)[::-1]),
        ):
            taken = sum(block.size for block in part.blocks(tmp_path / "shard", files))
            assert taken == np.prod(part.result)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20


# Interleaved and transposed with biases; shared experts of more widths; no gate; each its own.
KINDS = [
    *(("gpt_oss", "uniform"), ("aria", "per-layer"), ("deepseek_v3", "uniform")),
    ("nemotron_h", "ragged"),
]


@pytest.mark.parametrize(("name", "mode"), KINDS)
def test_every_changed_byte_is_found(width_export, tmp_path, name, mode):
    """Of every tensor, one byte at a random place is another: the check names that tensor."""
    case = NAMED[name]
    assert allowed(case, mode)
    exported = width_export(case, mode)
    manifest, source = read_manifest(exported.path), exported.source.described
    for file in exported.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert [c.ok for c in checks_against_source(tmp_path, manifest, source)] == [True, True]
    rng = np.random.default_rng(3)
    for entry in open_checkpoint(tmp_path).tensors.values():
        if not entry.nbytes:
            continue
        file = np.memmap(tmp_path / entry.shard, np.uint8, "r+")
        byte = int(rng.integers(entry.nbytes))
        file[entry.start + byte] ^= 1
        (_, check) = checks_against_source(tmp_path, manifest, source)
        file[entry.start + byte] ^= 1
        assert not check.ok
        assert check.detail.startswith(f"{entry.name} is not ")
        assert f": byte {byte} of the tensor" in check.detail


def test_elements_that_share_bytes_are_refused(demo):
    router = next(name for name in demo.checkpoint.tensors if name.endswith("mlp.gate.weight"))
    entry = demo.checkpoint.tensors[router]
    halves = replace(entry, dtype="F4", end=entry.start + entry.numel // 2)
    shards = tuple(
        replace(
            shard, tensors=tuple(halves if tensor == entry else tensor for tensor in shard.tensors)
        )
        for shard in demo.checkpoint.shards
    )
    model = replace(demo, checkpoint=replace(demo.checkpoint, shards=shards))
    with pytest.raises(ExportError, match=rf"^{router}: elements of type F4 cannot be compared"):
        expected_tensors(model, keep_all(demo), HeadPlan(), None)


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
    plan = keeping(source, KEPT)
    export(source, plan, tmp_path / "out")
    return tmp_path / "out"


def checks(out, source, **changes):
    return checks_against_source(out, replace(read_manifest(out), **changes), source)


def problem(out, source, **changes):
    (check,) = checks(out, source, **changes)
    assert not check.ok
    assert check.name == "source"
    return check.detail


def test_a_good_export_fits(out, source):
    manifest = read_manifest(out)
    assert manifest.dropped_shards == ("only-0.safetensors",)
    assert not (out / "only-0.safetensors").exists()
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
        f"all {nbytes:,} bytes of {total - 36} tensors are the source's, or the plan's cut"
    )


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
    weight_map = json.loads((out / INDEX_NAME).read_text())["weight_map"]
    shard = weight_map.pop(NORM)
    tensors = load_file(out / shard)
    made = change(tensors.pop(NORM))
    save_file(tensors | made, out / shard, {"format": "pt"})
    edit_json(out / INDEX_NAME, weight_map=weight_map | dict.fromkeys(made, shard))
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
        f"{shard.name} holds {shard.copied} copied, {shard.cut} cut, 0 repaired and 0 dequantised "
        f"tensors, but the manifest counts {shard.copied - 1}, {shard.cut + 1}, 0, 0"
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
