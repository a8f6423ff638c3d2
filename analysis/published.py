"""What the papers measured: their benchmark tables as facts, beside what a user measures here.

The files under ``cached_stats/published/`` are named ``<paper>-table-<number>.csv``;
docs/formats.md lists their columns. A cell that the paper leaves empty, or that its text lost, is
empty.
"""

from functools import cache
from typing import Final

import pandas as pd

from analysis.store import SHIPPED_STATS

PUBLISHED: Final = SHIPPED_STATS / "published"
# Name -> how the screen calls it. All but HEAPr's, which was read under review, are on arXiv.
PAPERS: Final = {
    "unified": "Unified criteria, arXiv:2606.15716",
    "evoesap": "EvoESAP, arXiv:2603.06003",
    "aimer": "AIMER, arXiv:2603.18492",
    "heapr": "HEAPr",
    "pathfinder": "MoE Pathfinder",
}
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
# Benchmark -> the ability that it measures, as the papers group them; averages belong to none.
ABILITIES: Final = {
    **dict.fromkeys(("HumanEval", "HumanEval+", "MBPP", "MBPP+", "Eval+"), "coding"),
    "LiveCodeBench": "coding",
    "WildBench": "writing",
    **dict.fromkeys(("GSM8K", "MATH-500"), "math"),
    **dict.fromkeys(("ARC-C", "ARC-E", "BoolQ", "HellaSwag", "MMLU"), "multiple choice"),
    **dict.fromkeys(("OpenBookQA", "RTE", "WinoGrande", "MC average"), "multiple choice"),
}
# Same columns; the others measure something else (time, memory, neurons) and stand alone.
BENCHMARK_TABLES: Final = (
    *(f"unified-table-{number}" for number in (1, 2, 5)),
    *(f"evoesap-table-{number}" for number in (1, 2, 6, 7, 8, 9)),
)


def published_table(name: str) -> pd.DataFrame:
    """One table of a paper as it stands in its file, for example ``unified-table-3``.

    Raises:
        FileNotFoundError: there is no such table; ``published_names`` lists them.
    """
    return pd.read_csv(PUBLISHED / f"{name}.csv", keep_default_na=False, na_values={"score": [""]})


def published_names() -> tuple[str, ...]:
    """Names that ``published_table`` knows, sorted."""
    return tuple(sorted(path.stem for path in PUBLISHED.glob("*.csv")))


@cache
def _all_benchmarks() -> pd.DataFrame:
    tables = [published_table(name)[list(COLUMNS)] for name in BENCHMARK_TABLES]
    return pd.concat(tables, ignore_index=True)


def published_benchmarks() -> pd.DataFrame:
    """Benchmark scores of whole experts pruned, as in the tables of the unified paper and EvoESAP.

    Returns:
        ``paper, table, model, sparsity, criterion, schedule, calibration, benchmark, score``:
        sparsity is the fraction removed, 0 and criterion ``full`` for the model as it was; schedule
        is ``uniform`` or ``evoesap``, empty for the full model; score is a share of 1, higher =
        better. The same measurement may stand in several tables.
    """
    return _all_benchmarks().copy()
