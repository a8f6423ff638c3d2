"""What an export must hold, derived a second time: equal to plain indexing, in bounded memory."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from atom_cases import allowed

from analysis.checkpoint import open_checkpoint
from analysis.drain import drain
from analysis.errors import ExportError
from families.configs import CASES
from pruning.heads import HeadPlan
from pruning.plan import keep_all
from pruning.surgery import expected
from pruning.surgery.expected import Part, expected_tensors
from pruning.surgery.manifest import read_manifest
from pruning.surgery.tensor_checks import check_against_source

NAMED = {case.name: case for case in CASES}


@pytest.fixture
def numbers(tmp_path):
    """A file with 10 bytes of something else, then a 6 x 8 matrix of int16; and the matrix."""
    matrix = np.arange(48, dtype=np.int16).reshape(6, 8) * 7
    file = tmp_path / "shard"
    file.write_bytes(b"something " + matrix.tobytes())
    return file, matrix


def joined(part, file):
    return b"".join(block.tobytes() for block in part.blocks(file))


@pytest.mark.parametrize("block_bytes", [1, 20, 40, 1 << 22])
class TestParts:
    def test_all_of_it(self, numbers, monkeypatch, block_bytes):
        monkeypatch.setattr(expected, "_BLOCK_BYTES", block_bytes)
        file, matrix = numbers
        part = Part(10, (6, 8, 2))
        assert joined(part, file) == matrix.tobytes()
        assert part.is_whole

    @pytest.mark.parametrize("ids", [[0, 5], [4, 1, 2], [3], list(range(6))])
    def test_rows(self, numbers, monkeypatch, block_bytes, ids):
        monkeypatch.setattr(expected, "_BLOCK_BYTES", block_bytes)
        file, matrix = numbers
        part = Part(10, (6, 8, 2), 0, np.array(ids))
        assert joined(part, file) == matrix[ids].tobytes()
        assert part.result == (len(ids), 8, 2)
        assert part.is_whole == (len(ids) == 6)

    @pytest.mark.parametrize("axis", [0, 1])
    def test_zeros_fill_it_up(self, numbers, monkeypatch, block_bytes, axis):
        monkeypatch.setattr(expected, "_BLOCK_BYTES", block_bytes)
        file, matrix = numbers
        part = Part(10, (6, 8, 2), axis, np.array([4, 0, -1, 2, -1, -1]))
        wanted = matrix.take([4, 0, 0, 2, 0, 0], axis)
        if axis:
            wanted[:, [2, 4, 5]] = 0
        else:
            wanted[[2, 4, 5]] = 0
        assert joined(part, file) == wanted.tobytes()

    def test_what_had_no_entries_becomes_zeros(self, numbers, monkeypatch, block_bytes):
        monkeypatch.setattr(expected, "_BLOCK_BYTES", block_bytes)
        part = Part(10, (6, 0, 2), 1, np.array([-1, -1]))
        assert joined(part, numbers[0]) == bytes(6 * 2 * 2)

    @pytest.mark.parametrize("shape", [(6, 0, 2), (0, 8, 2), (0,)])
    def test_without_elements_there_are_no_bytes(self, numbers, monkeypatch, block_bytes, shape):
        monkeypatch.setattr(expected, "_BLOCK_BYTES", block_bytes)
        assert joined(Part(10, shape), numbers[0]) == b""


def test_a_large_matrix_never_is_in_memory(tmp_path):
    rows, columns = 2048, 8192  # 64 MiB of float32
    with (tmp_path / "shard").open("wb") as file:
        file.truncate(rows * columns * 4)
    every_other = np.arange(0, columns, 2)
    tracemalloc.start()
    for part in (
        Part(0, (rows * columns * 4,)),
        Part(0, (rows, columns, 4), 1, every_other),
        Part(0, (rows, columns, 4), 0, np.arange(rows)[::-1]),
    ):
        taken = sum(block.size for block in part.blocks(tmp_path / "shard"))
        assert taken == np.prod(part.result)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


# Interleaved and transposed with biases; shared experts that grow; no gate; each its own width.
KINDS = [
    *(("gpt_oss", "uniform"), ("aria", "per-layer"), ("deepseek_v3", "uniform")),
    *(("nemotron_h", "ragged"), ("mixtral", "uniform")),
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
    assert [c.ok for c in drain(check_against_source(tmp_path, manifest, source))] == [True, True]
    rng = np.random.default_rng(3)
    for entry in open_checkpoint(tmp_path).tensors.values():
        if not entry.nbytes:
            continue
        file = np.memmap(tmp_path / entry.shard, np.uint8, "r+")
        byte = int(rng.integers(entry.nbytes))
        file[entry.start + byte] ^= 1
        (_, check) = drain(check_against_source(tmp_path, manifest, source))
        file[entry.start + byte] ^= 1
        assert not check.ok
        assert check.detail.startswith(f"{entry.name} is not ")
        assert f": byte {byte} of the tensor" in check.detail


def test_elements_that_share_bytes_are_refused(demo):
    router = next(name for name in demo.checkpoint.tensors if name.endswith("mlp.gate.weight"))
    entry = demo.checkpoint.tensors[router]
    halves = replace(entry, dtype="F4", end=entry.start + entry.numel // 2)
    shards = tuple(
        replace(shard, tensors=tuple(halves if each == entry else each for each in shard.tensors))
        for shard in demo.checkpoint.shards
    )
    model = replace(demo, checkpoint=replace(demo.checkpoint, shards=shards))
    with pytest.raises(ExportError, match=rf"^{router}: elements of type F4 cannot be compared"):
        expected_tensors(model, keep_all(demo), HeadPlan(), None)
