"""Fuzzing that is led by the branches that inputs reach (atheris), of readers in plain Python.

`pip install atheris`, then `python -m tools.reliability.coverage_guided --minutes 3` prints a table
and saves what escaped; see `fuzz` for what an escape is. Each reader has a process of its own,
since libFuzzer ends the process that it runs in.
"""

import argparse
import logging
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import pandas as pd

try:
    import atheris
except ImportError:
    sys.exit("This needs atheris, which is no dependency of the tests: pip install atheris.")

# What numba compiles cannot be looked into.
with atheris.instrument_imports(
    include=["analysis", "pruning", "app"],
    exclude=["analysis.calibration.weights", "analysis.stats.weight_sums"],
):
    from tools.reliability.fuzz import Tally, attempt
    from tools.reliability.reader import Reader
    from tools.reliability.readers import READERS, copied, make_inputs

# Their parsing is Python of this project, which alone can be looked into; the readers of parquet,
# of models that run and of SQLite are others' C++, and too slow for this.
NAMES = (
    "config.json",
    "config.json, aria",
    "config.json, jamba",
    "safetensors",
    "shard index",
    "manifest, routed",
    "plan.json",
    "plan.json, neurons",
    "kept_neurons",
    "recipe.yaml",
    "schedule, CSV",
    "schedule, JSON",
    "schedule, YAML",
    "evaluation",
    "benchmark",
    "lm-eval.json",
    "search.json",
    "measurements",
    "benchmark task",
    "corpus .txt",
    "corpus .jsonl, rows",
    "corpus .jsonl, messages",
    "export manifest",
    "corpus",
    "corpus file",
    "corpus with weight",
    "criterion",
    "sparsity",
    "target size",
    "experts",
    "counts",
    "SLURM options",
    "request, select",
    "secrets.toml",
)
_LONGEST = 1 << 16
# What mutations that know the format raise of what is no longer of it.
_OF_NO_FORMAT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_SHOWN = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)")
_RUNS = re.compile(r"Done (\d+) runs")
_ESCAPES = re.compile(r"escaped (.*)")


def _mutation(reader: Reader, valid: bytes) -> Callable[[bytes, int, int], bytes]:
    """The reader's own mutation and libFuzzer's, as often: the one knows the format."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)  # noqa: S311
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        try:
            changed = reader.mutate(data, random)
        except _OF_NO_FORMAT:
            changed = reader.mutate(valid, random)
        return changed if len(changed) <= max_size else bytes(atheris.Mutate(data, max_size))

    return mutate


def fuzz_one(reader: Reader, root: Path, options: list[str], keep: Path) -> None:
    """Fuzz one reader in a folder that has the examples; ends the process."""
    tally = Tally()
    broken = copied(root / "valid", root / "broken")
    valid = (broken / reader.file).read_bytes()
    seeds = root / "seeds"
    seeds.mkdir()
    (seeds / "valid").write_bytes(valid)

    def once(data: bytes) -> None:
        if not attempt(reader, broken, data, tally):
            print(f"escaped {tally.escapes[-1]}", file=sys.stderr, flush=True)
            name = reader.name.replace("/", "-")
            (keep / f"{name} {len(tally.escapes)}").write_bytes(data)

    words = ["fuzz", *options, f"-max_len={_LONGEST}", "-rss_limit_mb=0", "-timeout=60"]
    words.append(f"-artifact_prefix={root}/")
    atheris.Setup([*words, str(seeds)], once, custom_mutator=_mutation(reader, valid))
    atheris.Fuzz()


def _said(reader: Reader, root: Path, options: list[str], keep: Path) -> str:
    """What libFuzzer says of one reader; it ends the process that it runs in, so in a fork."""
    said = root / "said.txt"
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        shutil.rmtree(root / "broken")
        shutil.rmtree(root / "seeds")
        return f"{said.read_text(errors='replace')}\nended with {status}"
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        fuzz_one(reader, root, options, keep)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(1)


def row_of(reader: Reader, root: Path, options: list[str], keep: Path) -> tuple[object, ...]:
    """Row `reader, inputs, branches_of_seed, branches, escapes`; prints what escaped."""
    said = _said(reader, root, options, keep)
    shown, runs = _SHOWN.findall(said), _RUNS.search(said)
    escapes = sorted(set(_ESCAPES.findall(said)))
    if not shown or runs is None:
        escapes.append(f"libFuzzer did not come to its end: {said[-500:]}")
    for escape in escapes[:20]:
        print(f"{reader.name}: {escape}", flush=True)
    first, last = (shown[0][1], shown[-1][1]) if shown else ("0", "0")
    row = (reader.name, int(runs[1]) if runs else 0, int(first), int(last), len(escapes))
    print(*row, sep=", ", file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", help="name of a reader")
    parser.add_argument("--keep", type=Path, default="escaped", help="folder for what escaped")
    chosen = parser.parse_args()
    chosen.keep.mkdir(parents=True, exist_ok=True)
    logging.disable()
    options = [f"-max_total_time={int(60 * chosen.minutes)}", f"-seed={chosen.seed}"]
    known = {reader.name: reader for reader in READERS}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_inputs(root / "valid")
        names = chosen.reader or NAMES
        rows = [row_of(known[name], root, options, chosen.keep) for name in names]
    columns = ["reader", "inputs", "branches_of_seed", "branches", "escapes"]
    table = pd.DataFrame(rows, columns=columns)
    print(table.to_string(index=False))
    print(f"{table['inputs'].sum()} inputs, {table['escapes'].sum()} escapes")
    sys.exit(bool(table["escapes"].sum()))


if __name__ == "__main__":
    main()
