"""Counts what became of the rows of a corpus, and how many bad ones may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.errors import CorpusError

if TYPE_CHECKING:
    from analysis.corpora.documents import Document

SKIPPED_ROWS = "skipped_rows"  # in manifests and records
# Facts that follow from what was read; they decide nothing.
CONVERSATIONS = "conversations"
COUNTS = (CONVERSATIONS, "tools", SKIPPED_ROWS)


def row_facts(prepared: Mapping[str, Any]) -> dict[str, int]:
    """The counts in a manifest's or record's facts of a corpus."""
    return {name: prepared[name] for name in COUNTS if type(prepared.get(name)) is int}


class RowAccount:
    """The rows of one reading of a corpus."""

    def __init__(self, skips: int) -> None:
        self._skips = skips  # bad rows that may be left out
        self._first: CorpusError | None = None  # the problem of the first of them
        self._skipped = 0
        self._used = 0
        self._conversations = 0
        self._with_tools = 0

    def use(self, document: Document) -> None:
        """Count a document that was read."""
        self._used += 1
        self._conversations += document.messages is not None
        self._with_tools += bool(document.tools)

    def skip(self, problem: CorpusError) -> None:
        """Leave a row out; its problem is raised if that is one too many."""
        if self._skips == 0:
            raise problem
        if self._skipped == self._skips:
            one = self._skipped == 1
            rows = "1 bad row was" if one else f"{self._skipped:,} bad rows were"
            raise CorpusError(
                f"{problem} Before it, {rows} skipped, as many as --skip-bad-rows allows."
            ) from problem
        self._first = self._first or problem
        self._skipped += 1

    def check_used(self) -> None:
        """Refuse a corpus of which every row was left out, with the problem of the first."""
        if self._first is not None and not self._used:
            raise CorpusError(
                f"{self._first} No row can be used; {self._skipped} were skipped."
            ) from self._first

    @property
    def facts(self) -> dict[str, Any]:
        """For manifests: conversations, those with tools, skipped rows, where there are any."""
        counts = (self._conversations, self._with_tools, self._skipped)
        return {name: count for name, count in zip(COUNTS, counts, strict=True) if count}
