"""The table of measurements of a folder as kills must leave it: each row once, and none lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pruning.measurements.block import Block
from pruning.measurements.table import Measurements


class Row(NamedTuple):
    """What a number of the table is of."""

    model: str
    plan: str
    dtype: str
    seed: int
    measure: str
    sample: str


Bits = tuple[bytes, int]  # of a sum, and the count


def whole_lines(stats: Path) -> dict[str, bytes]:
    """Shard -> its lines, without one that a kill cut short."""
    shards = Measurements([stats]).shards
    found = {str(path.relative_to(stats)): path.read_bytes() for path in shards}
    return {name: content[: content.rfind(b"\n") + 1] for name, content in found.items()}


def rows(lines: Mapping[str, bytes]) -> dict[Row, Bits]:
    """The rows of these lines, by shard.

    Raises:
        ValueError: a line is damaged, a row is twice in a shard, or has other bits in another.
    """
    found: dict[Row, Bits] = {}
    for shard, content in lines.items():
        own: dict[Row, Bits] = {}
        for line in content.splitlines(keepends=True):
            for row, bits in _rows_of(Block.from_line(line)).items():
                if row in own:
                    raise ValueError(f"{row} is twice in {shard}")
                if found.get(row, bits) != bits:
                    raise ValueError(f"{row} has other bits in {shard}")
                own[row] = bits
        found |= own
    return found


def _rows_of(block: Block) -> dict[Row, Bits]:
    where, found = block.where, dict[Row, Bits]()
    for name, sum_ in block.sums.items():
        numbers = zip(block.samples, sum_.sums, sum_.counts.tolist(), strict=True)
        for sample, total, count in numbers:
            row = Row(block.model, block.plan, where.dtype, where.seed, name, sample)
            found[row] = (total.tobytes(), count)
    return found


def faults(
    before: Mapping[str, bytes], after: Mapping[str, bytes], wanted: Mapping[Row, Bits]
) -> list[str]:
    """What is wrong with lines that followed others, beside the rows of an uninterrupted run."""
    lost = [name for name, lines in before.items() if not after.get(name, b"").startswith(lines)]
    try:
        found = rows(after)
    except ValueError as error:
        return [f"the table: {error}"]
    differ = [row for row, bits in found.items() if wanted.get(row) != bits]
    words = [f"the table: lines of {name} are lost" for name in lost]
    return words + [f"the table: {row} is none of an uninterrupted run" for row in differ]
