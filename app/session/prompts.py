"""Prompts and texts of people: which of their records a page shows unasked.

Records in the statistics folder are shared, but a prompt is nobody else's example: pages show those
that ship, those of this session, and the one that the URL names. The others are shown on request.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import streamlit as st

from app.session.data import settings
from pruning.actions.ask import AskRequest
from pruning.measures.store import RecordStore
from pruning.records.kept_answers import AnswerRecord
from pruning.records.lens import LensRecord
from pruning.spec.base import Request

Worded = TypeVar("Worded", AnswerRecord, LensRecord)
_SENT: Final = "prompts.sent"  # session: prompts and texts, the newest last


def remember_words(request: Request) -> None:
    """Remember the prompt or text of a request as this session's own."""
    if isinstance(request, AskRequest):
        words = request.prompt if request.prompt is not None else request.text
        st.session_state[_SENT] = [*own_words(), words]


def own_words() -> tuple[str, ...]:
    """The prompts and texts that were sent in this session, the newest last."""
    return tuple(st.session_state.get(_SENT, ()))


def shown_unasked(
    records: Sequence[Worded],
    store: Callable[[Sequence[Path]], RecordStore[Worded]],
    own: Sequence[str],
    linked: Collection[str] = (),
) -> list[Worded]:
    """Those that ship, those of words in `own`, and those with an id in `linked`, in order."""
    ids = _ids_in(store, settings().store.shipped).union(linked)
    return [record for record in records if record.record_id in ids or prompt_of(record) in own]


def chosen_records(
    every: Sequence[Worded],
    store: Callable[[Sequence[Path]], RecordStore[Worded]],
    *,
    names: Mapping[str, str],
    key: str,
    noun: str,
) -> list[Worded]:
    """Those of `shown_unasked`, or all if the switch that is drawn for the others is on.

    `names` and `key` are of `linked_in_url`; `noun` says what the records are.
    """
    records = shown_unasked(every, store, own_words(), linked_in_url(key, names))
    if others := len(every) - len(records):
        label = f"Also the other {noun} in the statistics folder ({others:,})"
        if st.toggle(label, key=f"others.{key}"):
            return list(every)
    return records


def linked_in_url(key: str, names: Mapping[str, str]) -> set[str]:
    """The ids that the URL names; `names` are the words of each, which a list writes to the URL."""
    linked = st.query_params.get(key, ""), st.session_state.get(key)
    return {
        record_id for record_id, words in names.items() if record_id in linked or words in linked
    }


def own_last(records: Sequence[AnswerRecord] | Sequence[LensRecord]) -> str:
    """The id of the newest record of what this session sent last; empty if there is none."""
    last = own_words()[-1:]
    own_records = [record for record in records if prompt_of(record) in last]
    return max(own_records, key=lambda record: record.created_at).record_id if own_records else ""


def prompt_of(record: AnswerRecord | LensRecord) -> str:
    """The prompt or text that a record is of."""
    if isinstance(record, AnswerRecord):
        return record.prompt
    return record.asked.text or record.asked.prompt


@cache
def _ids_in(
    store: Callable[[Sequence[Path]], RecordStore[Any]], folder: Path | None
) -> frozenset[str]:
    """The ids of the records in a folder that nothing writes to; none without a folder."""
    records = store([folder]).records() if folder else []
    return frozenset(record.record_id for record in records)
