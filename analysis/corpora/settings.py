"""Sampling: how much of a corpus is used, and how it becomes sequences."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from analysis.corpora.tokens import ChatFormat, Count
from analysis.errors import CorpusError

Packing = Literal["auto", "concatenate", "pack", "pad"]
Truncate = Literal["head", "tail", "drop"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much of a corpus is used, and how it is cut into sequences."""

    tokens: int  # upper limit; a run takes as many whole sequences as fit
    seq_len: int  # tokens in a sequence
    seed: int = 42  # of the order in which documents are drawn
    # "concatenate" joins documents end to end, "pack" puts several into a sequence where they do
    # not see each other, "pad" gives each its own sequence; "auto" joins text and keeps rows of
    # token ids as they are.
    packing: Packing = "auto"
    truncate: Truncate = "head"  # which end of a document longer than a sequence is kept, or "drop"
    count: Count = "all"  # "all" tokens enter the sums, or only those of the "response"
    # Rows of token ids that are not joined are used whole, however long; `seq_len` and `truncate`
    # then cut text only.
    whole: bool = False
    # Arguments of the chat template, for conversations; plain JSON.
    template_args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # Joined documents are cut to so many sequences each, and what follows is dropped; None: whole.
    windows_per_document: int | None = None

    @property
    def most_of_document(self) -> int | None:
        """Tokens of a document that joined sequences take at most; None if all."""
        windows = self.windows_per_document
        return None if windows is None else windows * self.seq_len

    @property
    def chat(self) -> ChatFormat:
        """How conversations become tokens."""
        return ChatFormat(self.count, self.template_args)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise CorpusError(f"The seed {self.seed} is negative; use a whole number from 0.")
        if self.seq_len < 2:
            raise CorpusError(f"A sequence of {self.seq_len} tokens is too short; use at least 2.")
        if self.windows_per_document is not None and self.windows_per_document < 1:
            raise CorpusError(
                f"{self.windows_per_document} windows of a document leave nothing; use at least 1."
            )
        if self.packing == "concatenate":
            check_joins(self)


def check_joins(sampling: Sampling) -> None:
    """Refuse options that do not apply to joined documents."""
    if sampling.truncate != "head":
        raise CorpusError(
            f"Joined documents are not truncated, so {sampling.truncate!r} does not apply; use "
            "--packing pad or pack."
        )
    # Documents that are not joined may be shorter than a sequence and still fit.
    if sampling.tokens < sampling.seq_len:
        raise CorpusError(
            f"{sampling.tokens} tokens are less than one sequence of {sampling.seq_len}; "
            f"use at least {sampling.seq_len} tokens or a shorter sequence length."
        )
