"""Parquet tables of a run, read with care: their size, their columns, their numbers."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Sums of real texts shrink to a half or so, ids of layers and experts to next to nothing.
_MOST_UNPACKED = 1 << 28
_MOST_GROWTH = 1000
_NONE: Mapping[str, str] = MappingProxyType({})
_TYPES = {"int64": pa.int64(), "float64": pa.float64()}


def read_parquet(
    path: Path, needed: Mapping[str, str], optional: Mapping[str, str] = _NONE
) -> pa.Table:
    """A table whose numbers are all there and finite.

    Args:
        path: the file.
        needed: columns that it must have, with their element types; it may have more.
        optional: element types of columns that it may have; "number" is any.

    Raises:
        ValueError: no parquet file, damaged, a column that is missing or there twice, a value that
            is missing or no finite number, or far more rows than a file of its size can hold.
        OSError: it cannot be read.
    """
    with pq.ParquetFile(path) as file:
        _check_size(file, path.stat().st_size)
        table = file.read()
    names = table.column_names
    if missing := sorted(set(needed) - set(names)):
        raise ValueError(f"it lacks the columns {', '.join(missing)}")
    if len(set(names)) < len(names):
        raise ValueError("it has a column twice")
    kinds = {**needed, **optional}
    columns = [
        _checked(name, table.column(name).combine_chunks(), kinds.get(name, "")) for name in names
    ]
    return pa.table(columns, names=names)


def _check_size(file: pq.ParquetFile, size: int) -> None:
    """Refuse what would fill the memory, before it is unpacked."""
    widths = (getattr(kind, "list_size", 1) for kind in file.schema_arrow.types)
    unpacked = 8 * file.metadata.num_rows * sum(widths)
    if unpacked > max(_MOST_UNPACKED, _MOST_GROWTH * size):
        raise ValueError(f"its {size} bytes unpack to {unpacked}, which no run needs")


def _checked(name: str, column: pa.Array, wanted: str) -> pa.Array:
    if column.null_count:
        raise ValueError(f"{name} lacks {column.null_count} values")
    if wanted == "number" and not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        raise ValueError(f"{name} holds {column.type}, no numbers")
    if kind := _TYPES.get(wanted):
        column = column.cast(kind)
    if pa.types.is_nested(column.type) and not pa.types.is_fixed_size_list(column.type):
        raise ValueError(f"{name} holds {column.type}, no numbers")
    numbers = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    if (
        pa.types.is_floating(numbers.type)
        and not pc.all(pc.is_finite(numbers), min_count=0).as_py()
    ):
        raise ValueError(f"{name} holds values that are no finite numbers")
    return column
