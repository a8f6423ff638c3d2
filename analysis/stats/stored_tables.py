"""Parquet tables of a run: written, and read with checks of size, columns and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from analysis.files.content import arrow_file, check_regular
from analysis.lazy import pa, pc, pd, pq
from analysis.numbers.arrays import FloatArray

# Real sums compress to about half, ids of layers and experts to almost nothing.
_MOST_UNPACKED = 1 << 28
_MOST_GROWTH = 1000
_NONE: Mapping[str, str] = MappingProxyType({})


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    """Write a table without its index; floats as byte streams, in a quarter less disk space."""
    content = pa.Table.from_pandas(table, preserve_index=False)
    floats = [field.name for field in content.schema if pa.types.is_floating(field.type)]
    with arrow_file(path, "wb") as file:
        pq.write_table(
            content,
            file,
            compression="zstd",
            use_dictionary=[name for name in content.column_names if name not in floats],
            column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        )


def write_vector_column(path: Path, index: pd.DataFrame, vectors: FloatArray) -> None:
    """Write `layer, expert` and, as the column `vector_sum`, the rows of `vectors`."""
    columns = {name: pa.array(index[name].to_numpy()) for name in ("layer", "expert")}
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    columns["vector_sum"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    with arrow_file(path, "wb") as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def read_vector_column(path: Path, rows: int) -> FloatArray:
    """(rows, width) float64: the column `vector_sum`; errors as by `read_parquet`."""
    column = read_parquet(path, {"vector_sum": "list"})["vector_sum"].combine_chunks()
    if not pa.types.is_fixed_size_list(column.type) or len(column) != rows:
        raise ValueError("it does not hold a vector for each expert")
    flat = np.asarray(column.flatten(), dtype=np.float64)
    return flat.reshape(rows, column.type.list_size)


def read_parquet(
    path: Path, needed: Mapping[str, str], optional: Mapping[str, str] = _NONE
) -> pa.Table:
    """A table whose numbers are all present and finite.

    `needed` and `optional` give columns with their dtype; "number" is any numeric one.

    Raises:
        ValueError: damaged, a column is missing or there twice, a value is missing or not finite,
            or there are far more rows than a file of its size can hold.
        OSError: it cannot be read.
    """
    try:
        size = check_regular(path).st_size
        with arrow_file(path) as source, pq.ParquetFile(source) as file:
            # Checked before it is unpacked, which might fill the memory.
            widths = (getattr(kind, "list_size", 1) for kind in file.schema_arrow.types)
            unpacked = 8 * file.metadata.num_rows * sum(widths)
            if unpacked > max(_MOST_UNPACKED, _MOST_GROWTH * size):
                raise ValueError(f"its {size} bytes unpack to {unpacked}, too many for a run")
            table = file.read()
        names, dtypes = table.column_names, {**needed, **optional}
        if missing := sorted(set(needed) - set(names)):
            raise ValueError(f"it lacks the columns {', '.join(missing)}")
        if len(set(names)) < len(names):
            raise ValueError("it has a duplicate column")
        columns = [
            _check_column(name, table.column(name).combine_chunks(), dtypes.get(name, ""))
            for name in names
        ]
        return pa.table(columns, names=names, metadata=table.schema.metadata)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _check_column(name: str, column: pa.Array, dtype: str) -> pa.Array:
    types = pa.types
    if column.null_count:
        raise ValueError(f"{name} lacks {column.null_count} values")
    if dtype in ("int64", "float64"):
        column = column.cast(dtype)
    is_number = types.is_integer(column.type) or types.is_floating(column.type)
    is_list = types.is_fixed_size_list(column.type)
    if (dtype == "number" and not is_number) or (types.is_nested(column.type) and not is_list):
        raise ValueError(f"{name} holds {column.type}, not numbers")
    numbers = column.flatten() if is_list else column
    is_float = types.is_floating(numbers.type)
    if is_float and not pc.all(pc.is_finite(numbers), min_count=0).as_py():
        raise ValueError(f"{name} holds values that are not finite")
    return column
