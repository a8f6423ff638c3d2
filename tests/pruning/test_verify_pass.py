"""Verification reads each byte once: of the export, of what it holds of the source and a repair."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from exports import export, keeping, shards_of, uneven
from reads import bytes_read, counts_reads

from analysis.checkpoint.opening import open_checkpoint
from analysis.drain import drain
from analysis.model.opening import load_model_index
from builders import tiny_model
from builders.repairs import repaired, token_sequences
from pruning.plan.plan import fit_plan
from pruning.records.repair_files import with_repair_files
from pruning.surgery.reading import CHUNK_BYTES, HashedFile
from pruning.surgery.verify import verify_export

WIDE = {"hidden_size": 128, "intermediate_size": 320}  # weights of 10 MiB, far more than headers


def export_bytes(out):
    return sum(shard.stat().st_size for shard in shards_of(out))


@pytest.fixture
def source(tmp_path):
    tiny_model("olmoe", **WIDE).save_pretrained(tmp_path / "source")
    return load_model_index(str(tmp_path / "source"))


@counts_reads
@pytest.mark.parametrize("kind", ["without a source", "whole experts", "repaired"])
def test_every_byte_is_read_once(source, tmp_path, kind):
    plan, places, stats = keeping(source, (1, 3, 4)), 2, tmp_path / "stats"
    if kind == "repaired":
        _, record = repaired(source, uneven(source), stats, token_sequences(20, 16))
        plan = replace(fit_plan(uneven(source), source), repair=record.reference)
        plan = with_repair_files(plan, [stats])
    export(source, plan, tmp_path / "out", max_shard_bytes=3 << 20)
    assert len(shards_of(tmp_path / "out")) > 1
    given = {"source": source.checkpoint.path, "directories": (stats,)}
    if kind == "without a source":
        given, places = {}, 1
    before = bytes_read()
    report = drain(verify_export(tmp_path / "out", level="bytes", **given))
    count = bytes_read() - before
    assert report.ok, report.checks
    # Each byte of the export is one of the source or of the repair, and none of them twice.
    needed = places * export_bytes(tmp_path / "out")
    tensors = places * open_checkpoint(tmp_path / "out").nbytes
    assert tensors <= count <= 1.05 * needed


@counts_reads
def test_logits_by_layers_read_each_model_once_a_run(source, tmp_path):
    export(source, keeping(source, (1, 3, 4)), tmp_path / "out")
    given = {"source": source.checkpoint.path, "stream_layers": True}
    report = drain(verify_export(tmp_path / "out", level="load", **given))  # also reads libraries
    assert report.ok, report.checks
    before = bytes_read()
    report = drain(verify_export(tmp_path / "out", level="logits", **given))
    count = bytes_read() - before
    assert report.ok, report.checks
    # Compared with the source; run in its own dtype; then it and the source in float32.
    exported = open_checkpoint(tmp_path / "out").nbytes
    needed = (2 + 1 + 1) * exported + source.checkpoint.nbytes
    assert needed <= count <= 1.05 * needed


@pytest.mark.parametrize("step", [1, -1])
def test_the_hash_of_a_file_does_not_depend_on_the_order_of_its_reads(tmp_path, step):
    content = np.random.default_rng(4).bytes(5 * CHUNK_BYTES + 77)
    (tmp_path / "file").write_bytes(content)
    file = HashedFile(tmp_path / "file")
    counted = []
    for start in range(100, len(content) - 999, CHUNK_BYTES // 3)[::step]:
        assert file.read(start, 999).tobytes() == content[start : start + 999]
    assert file.sha256(counted.append) == hashlib.sha256(content).hexdigest()
    file.close()
    # In order, the gaps between reads are read too and nothing remains but the end.
    most = CHUNK_BYTES if step == 1 else len(content)
    assert sum(counted) <= most
    assert file.bytes_read <= len(content) + (0 if step == 1 else 16 * 999)
