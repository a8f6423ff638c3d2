"""Records of the model on screen, from the files beside its statistics; what is damaged is said."""

from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from analysis.errors import StatsError
from app.charts.context import Context
from app.literal import literal
from app.session import data
from pruning.evaluate.store import Kept, RecordStore


def records_of(context: Context, kind: Callable[[Sequence[Path]], RecordStore[Kept]]) -> list[Kept]:
    """What is known of the model; a warning for each file that cannot be read.

    `kind` is a store that is made from statistics directories, such as `EvaluationStore`.
    """
    problems: list[StatsError] = []
    store = kind(data.settings().store.directories)
    records = store.records(context.model.identity, problems.append)
    for problem in problems:
        st.warning(literal(problem), icon=":material/warning:")
    return records
