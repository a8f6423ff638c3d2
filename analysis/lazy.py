"""Libraries that are imported on first use, which most commands never reach.

`from analysis.lazy import pd` replaces `import pandas as pd`, in postponed annotations too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["datasets", "np", "pa", "pc", "pd", "pq"]


class _Lazy:
    """Acts as a module; each name is looked up in the real one once."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    np, pd, pa = _Lazy("numpy"), _Lazy("pandas"), _Lazy("pyarrow")
    pc, pq = _Lazy("pyarrow.compute"), _Lazy("pyarrow.parquet")
    datasets = _Lazy("datasets")  # imports torch
