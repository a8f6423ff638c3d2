"""Gathers shipped records into one file of lines a kind: `python -m tools.demo.lines`.

A command writes each new record as a file of its own. Here these become lines of `demo.jsonl` next
to them, in the order of their ids, in place of earlier lines of the same id.
"""

import json
from pathlib import Path

from analysis.durable import write_durably
from analysis.stats.store import SHIPPED_STATS
from app.console import counted, out
from pruning.evaluate.benchmarks.record import BenchmarkStore
from pruning.evaluate.bins import BinsStore
from pruning.evaluate.lens import LensStore
from pruning.evaluate.record import AnswerStore, EvaluationStore
from pruning.evaluate.subsets import SubsetStore
from pruning.evaluate.variances import VarianceStore

STORES = (AnswerStore, BenchmarkStore, BinsStore, EvaluationStore, LensStore, SubsetStore)
KINDS = tuple(store.kind for store in (*STORES, VarianceStore))
LINES = "demo.jsonl"


def gather(folder: Path, id_key: str) -> int:
    """Move the records of a folder into its lines; how many were moved."""
    place, files = folder / LINES, sorted(folder.glob("*.json"))
    texts = place.read_text(encoding="utf-8").splitlines() if place.is_file() else []
    texts += [file.read_text(encoding="utf-8") for file in files]
    records = {raw[id_key]: raw for raw in map(json.loads, texts)}
    # A line has what its file had: the keys in their order, every digit, the seal.
    lines = (json.dumps(records[name], ensure_ascii=False) + "\n" for name in sorted(records))
    if files:
        write_durably(place, "".join(lines).encode())
    for file in files:
        file.unlink()
    return len(files)


def main() -> None:
    """Gather each kind."""
    for kind in KINDS:
        id_key = kind.model_fields["record_id"].alias or "record_id"
        moved = gather(SHIPPED_STATS / kind.folder, id_key)
        out.print(f"{kind.folder}: {counted(moved, 'record')}")


if __name__ == "__main__":
    main()
