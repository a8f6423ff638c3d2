"""Published results: the papers' benchmark tables, to compare own results with.

The files under `cached_stats/published/` are named `<paper>-table-<number>.csv`;
docs/reference/files.md lists their columns. A cell is empty if the paper's is, or if our copy of
the paper lost it.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final

import pandas as pd

from analysis.errors import StatsError
from analysis.files.shipped import SHIPPED_STATS

PUBLISHED: Final = SHIPPED_STATS / "published"
# Name -> displayed name. All but HEAPr, which was read under review, are on arXiv.
PAPERS: Final = {
    "unified": "Unified criteria, arXiv:2606.15716",
    "evoesap": "EvoESAP, arXiv:2603.06003",
    "aimer": "AIMER, arXiv:2603.18492",
    "heapr": "HEAPr",
    "pathfinder": "MoE Pathfinder",
}
# sparsity is the fraction removed (0 with criterion `full` for the original model); schedule is
# `uniform` or `evoesap`, empty for the original; score is a share of 1, higher = better. Several
# tables may repeat a measurement.
COLUMNS: Final = (
    "paper",
    "table",
    "model",
    "sparsity",
    "criterion",
    "schedule",
    "calibration",
    "benchmark",
    "score",
)
# Benchmark -> ability, as the papers group them; averages have none.
ABILITIES: Final = {
    "HumanEval": "coding",
    "HumanEval+": "coding",
    "MBPP": "coding",
    "MBPP+": "coding",
    "Eval+": "coding",
    "LiveCodeBench": "coding",
    "WildBench": "writing",
    "GSM8K": "math",
    "MATH-500": "math",
    "ARC-C": "multiple choice",
    "ARC-E": "multiple choice",
    "BoolQ": "multiple choice",
    "HellaSwag": "multiple choice",
    "MMLU": "multiple choice",
    "OpenBookQA": "multiple choice",
    "RTE": "multiple choice",
    "WinoGrande": "multiple choice",
    "MC average": "multiple choice",
}
# Tables with COLUMNS; the others measure something else (time, memory, neurons).
BENCHMARK_TABLES: Final = (
    *(f"unified-table-{number}" for number in (1, 2, 5)),
    *(f"evoesap-table-{number}" for number in (1, 2, 6, 7, 9)),
)


def published_table(name: str) -> pd.DataFrame:
    """One table of a paper, for example `unified-table-3`."""
    return read_published(PUBLISHED / f"{name}.csv", COLUMNS if name in BENCHMARK_TABLES else ())


def read_published(path: Path, needed: Collection[str] = COLUMNS) -> pd.DataFrame:
    """The table in a file; `needed` names columns that it must have."""
    try:
        first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
        names = first.iloc[0].tolist()
        # pandas would rename the second of two equal columns.
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"it has the columns {', '.join(doubled)} twice")  # noqa: TRY301
        table = pd.read_csv(path, keep_default_na=False, na_values={"score": [""]})
        if missing := sorted(set(needed) - set(table.columns)):
            raise ValueError(f"it lacks the columns {', '.join(missing)}")  # noqa: TRY301
        # A single word would make the whole column text.
        shares = sorted({"sparsity", "score"} & set(needed))
        table = table.astype(dict.fromkeys(shares, "float64"))
        for share in shares:
            if not table[share].dropna().between(0, 1).all():
                raise ValueError(f"its {share} is not between 0 and 1")  # noqa: TRY301
    except (ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise StatsError(
            f"The published table {path.name} is damaged ({reason}); install the program again."
        ) from error
    return table
