"""Finding a model's records among those of other models, in a new process and again in it.

`python tools/benchmarks/records.py [FOLDER] [--others 100000] [--models 1000] [--own 20]`:
evaluations, with rows in the table, beside what ships; in turn with a folder of this model alone.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from analysis.files.naming import digest_of
from analysis.files.shipped import SHIPPED_STATS
from analysis.stats.places import folder_of
from pruning.measurements.shards import FOLDER
from pruning.measures.store import SEAL
from pruning.records.evaluation import EvaluationRecord, EvaluationStore

ROUNDS = 5


def identity_of(number: int) -> str:
    """That of an invented model."""
    return digest_of({"model": number})


def write(folder: Path, number: int, records: Sequence[EvaluationRecord], count: int) -> None:
    """Evaluations of an invented model, and their rows; nothing is synced."""
    identity = identity_of(number)
    own = folder_of(folder, identity)
    evaluations, shard = own / EvaluationRecord.folder, own / FOLDER / "rows.jsonl"
    for place in (evaluations, shard.parent):
        place.mkdir(parents=True)
    raws = [json.loads(record.to_line()) for record in records]
    for place in range(count):
        raw = raws[place % len(raws)]
        model = {**raw["model"], "identity": identity}
        raw = {**raw, "model": model, "evaluation_id": f"{place}-{raw['digest'][:8]}"}
        del raw[SEAL]
        text = json.dumps({**raw, SEAL: digest_of(raw)}, ensure_ascii=False)
        (evaluations / f"{raw['evaluation_id']}.json").write_text(text)
    blocks = (
        block
        for record in records[:count]
        for plan, sums in record.numbers.items()
        for block in sums.blocks(identity, plan, record.where, sums.made)
    )
    shard.write_bytes(b"".join(block.to_line() for block in blocks))


def look(folder: Path, own: int) -> None:
    """Print the milliseconds, of the clock and of the processor, of a first and a second look."""
    for _ in range(2):
        started, used = time.perf_counter(), time.process_time()
        records = EvaluationStore([folder, SHIPPED_STATS]).records(identity_of(0))
        print((time.perf_counter() - started) * 1e3, (time.process_time() - used) * 1e3)
        assert len(records) == own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--others", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--own", type=int, default=20)
    parser.add_argument("--look", action="store_true", help="at FOLDER, as it is")
    given = parser.parse_args()
    if given.look:
        look(given.folder, given.own)
        return
    shipped = EvaluationStore([SHIPPED_STATS]).records()[: given.own]
    with TemporaryDirectory(dir=given.folder) as scratch:
        alone, among = Path(scratch, "alone"), Path(scratch, "among others")
        for folder in (alone, among):
            write(folder, 0, shipped, given.own)
        for number in range(given.models):
            write(among, number + 1, shipped, given.others // given.models)
        times: dict[Path, list[list[float]]] = {alone: [], among: []}
        for _ in range(ROUNDS):
            for folder in (alone, among):
                command = [sys.executable, __file__, str(folder), "--look", "--own", str(given.own)]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                times[folder].append(list(map(float, said.split())))
        print(f"{given.own} records, and {given.others:,} of {given.models:,} other models")
        for folder, rounds in times.items():
            first, first_used, again, again_used = map(median, zip(*rounds, strict=True))
            print(f"  {folder.name:<14} first {first:6.1f} ms ({first_used:5.1f} of the processor)")
            print(f"  {'':<14} again {again:6.1f} ms ({again_used:5.1f})")


if __name__ == "__main__":
    main()
