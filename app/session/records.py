"""Records of the model, from the files next to its statistics; damaged ones are reported."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from analysis.model import MoEModel
from app.charts.context import Context
from app.literal import literal
from app.session.data import settings
from app.session.keeping import remembered
from pruning.evaluate.quality import PlanLoss, stored_losses
from pruning.evaluate.record import EvaluationStore
from pruning.evaluate.store import Kept, RecordStore, readable_records


def records_of(context: Context, kind: Callable[[Sequence[Path]], RecordStore[Kept]]) -> list[Kept]:
    """All records of the model; shows a warning per unreadable file.

    `kind` is a store over statistics directories, such as `EvaluationStore`. Files are
    read again when they change.
    """
    store = kind(settings().store.directories)
    records, problems = remembered(readable_records, store, context.model.identity)
    for problem in problems:
        st.warning(literal(problem), icon=":material/warning:")
    return list(records)


def usual_dtype(context: Context) -> str:
    """The dtype in which most plans of the model were evaluated."""
    records = records_of(context, EvaluationStore)
    dtypes = Counter(str(each.settings["dtype"]) for each in records).most_common(1)
    return dtypes[0][0] if dtypes else "auto"


def losses_of(model: MoEModel) -> tuple[PlanLoss, ...]:
    """The loss of every evaluated plan of a model, see `plan_losses`."""
    store = EvaluationStore(settings().store.directories)
    return remembered(stored_losses, store, model.identity)
