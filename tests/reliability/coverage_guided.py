"""Fuzzing that is led by the branches that inputs reach (atheris), of readers in plain Python.

`pip install atheris`, then `python -m tests.reliability.coverage_guided --minutes 3` prints a table
and saves what escaped; see `fuzz` for what an escape is. Each reader has a process of its own,
since libFuzzer ends the process that it runs in.
"""

import argparse
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pandas as pd

try:
    import atheris
except ImportError:
    sys.exit("This needs atheris, which is no dependency of the tests: pip install atheris.")

# What numba compiles cannot be looked into.
with atheris.instrument_imports(
    include=["analysis", "pruning", "app"], exclude=["analysis.weights", "analysis.weight_sums"]
):
    from tests.reliability.fuzz import Tally, attempt
    from tests.reliability.reader import Reader
    from tests.reliability.readers import READERS, copied, make_inputs

# Their parsing is Python of this project, which alone can be looked into; the readers of parquet,
# of models that run and of SQLite are others' C++, and too slow for this.
NAMES = (
    *("config.json", "config.json, aria", "config.json, jamba", "safetensors", "shard index"),
    *("manifest, routed", "plan.json", "plan.json, neurons", "kept_atoms", "recipe.yaml"),
    *("schedule, CSV", "schedule, JSON", "schedule, YAML", "evaluation", "benchmark"),
    *("lm-eval.json", "evalscope.json", "search.json", "search.jsonl", "benchmark task"),
    *("corpus .txt", "corpus .jsonl, rows", "corpus .jsonl, messages", "export manifest"),
    *("corpus", "corpus file", "corpus with weight", "criterion", "sparsity", "target size"),
    *("experts", "counts", "SLURM options", "request, select", "secrets.toml"),
)
_LONGEST = 1 << 16
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
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            changed = reader.mutate(valid, random)  # what was found is no longer of the format
        return changed if len(changed) <= max_size else bytes(atheris.Mutate(data, max_size))

    return mutate


def fuzz_one(reader: Reader, root: Path, options: list[str], keep: Path) -> None:
    """Fuzz one reader in a folder that has the examples; ends the process."""
    logging.disable()
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
    atheris.Setup([*words, str(seeds)], once, custom_mutator=_mutation(reader, valid))
    atheris.Fuzz()


def results(
    names: list[str], root: Path, chosen: argparse.Namespace
) -> Iterator[tuple[object, ...]]:
    """Rows `reader, inputs, branches of the seed, branches, escapes`, one process after another."""
    for name in names:
        words = [sys.executable, "-m", "tests.reliability.coverage_guided", "--one", name]
        words += ["--minutes", str(chosen.minutes), "--seed", str(chosen.seed)]
        words += ["--keep", str(chosen.keep), "--examples", str(root)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        shutil.rmtree(root / "broken")
        shutil.rmtree(root / "seeds")
        shown, runs = _SHOWN.findall(done.stderr), _RUNS.search(done.stderr)
        escapes = sorted(set(_ESCAPES.findall(done.stderr)))
        if not shown or runs is None:
            escapes.append(f"the process ended with {done.returncode}: {done.stderr[-500:]}")
        for escape in escapes[:20]:
            print(f"{name}: {escape}", flush=True)
        first, last = (shown[0][1], shown[-1][1]) if shown else ("0", "0")
        print(f"{name}: {runs[1] if runs else 0} inputs", file=sys.stderr, flush=True)
        yield name, int(runs[1]) if runs else 0, int(first), int(last), len(escapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", help="part of a reader's name")
    parser.add_argument("--keep", type=Path, default="escaped", help="folder for what escaped")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--examples", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.keep.mkdir(parents=True, exist_ok=True)
    if chosen.one:
        (reader,) = [reader for reader in READERS if reader.name == chosen.one]
        options = [f"-max_total_time={int(60 * chosen.minutes)}", f"-seed={chosen.seed}"]
        fuzz_one(reader, chosen.examples, options, chosen.keep)
    names = [n for n in NAMES if not chosen.reader or any(part in n for part in chosen.reader)]
    columns = ["reader", "inputs", "branches_of_seed", "branches", "escapes"]
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder) / "valid")
        table = pd.DataFrame(list(results(names, Path(folder), chosen)), columns=columns)
    print(table.to_string(index=False))
    print(f"{table['inputs'].sum()} inputs, {table['escapes'].sum()} escapes")
    sys.exit(bool(table["escapes"].sum()))


if __name__ == "__main__":
    main()
