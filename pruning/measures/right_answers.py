"""Which questions a plan and the original model answer right, as records keep it. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from pruning.measures.questions import Questions
from pruning.measures.result import (
    Difference,
    Metric,
    SampleCount,
    SampleValues,
    paired_difference,
)
from pruning.measures.store import Count, RecordPart

Marks = tuple[Literal[0, 1], ...]
_DEVIATIONS = 1.959964  # of a normal distribution, on both sides of 95%


class MarkedAnswers(NamedTuple):
    """The answers of one model to all questions."""

    right: Marks  # by question: 1 if it is right
    unfinished: int  # how many were cut off at the most tokens of an answer


class RightAnswers(RecordPart):
    """The answers of a plan and of the original model to the same questions, a document each."""

    check: str  # the rule, by name
    answer_tokens: Annotated[int, Field(ge=1)]  # of an answer, at most
    stops: tuple[str, ...]  # texts that ended answers besides the model's own end
    digest: str  # of questions, answers and all of these
    left_out: Count  # documents before the last one whose question calibration read
    right: Marks  # of the pruned model
    full_right: Marks  # of the original model
    unfinished: Count  # answers of the pruned model that were cut off
    full_unfinished: Count  # of the original model

    @classmethod
    def of(cls, questions: Questions, pruned: MarkedAnswers, full: MarkedAnswers) -> Self:
        """From the marks of both models."""
        facts: dict[str, Any] = {**questions.facts, "left_out": questions.left_out}
        facts["stops"] = tuple(facts["stops"])
        return cls(
            **facts,
            right=pruned.right,
            full_right=full.right,
            unfinished=pruned.unfinished,
            full_unfinished=full.unfinished,
        )

    @property
    def full(self) -> MarkedAnswers:
        """The answers of the original model."""
        return MarkedAnswers(self.full_right, self.full_unfinished)

    @property
    def share(self) -> float:
        """Share of right answers of the pruned model."""
        return sum(self.right) / len(self.right)

    @property
    def full_share(self) -> float:
        """Share of right answers of the original model."""
        return sum(self.full_right) / len(self.full_right)

    @property
    def metric(self) -> Metric:
        """The share of right answers of the pruned model, with its interval."""
        return _share(self.right)

    @property
    def full_metric(self) -> Metric:
        """The same of the original model."""
        return _share(self.full_right)

    @property
    def count(self) -> SampleCount:
        """How many questions, of as many documents."""
        return SampleCount(len(self.right), len(self.right))

    @property
    def words(self) -> str:
        """Both shares and their difference in one line, for people."""
        text = f"{share_words(self.metric)}, as the original"
        if self.right != self.full_right:
            apart = points_words(right_difference(self.right, self.full_right))
            text = (
                f"{share_words(self.metric)}, original {share_words(self.full_metric)}, "
                f"difference {apart}"
            )
        if self.unfinished or self.full_unfinished:
            text += (
                f"; cut off at {self.answer_tokens} tokens: {self.unfinished}, original "
                f"{self.full_unfinished}"
            )
        return text

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        count = len(self.right)
        if not count or count != len(self.full_right):
            raise ValueError(f"it has {count} and {len(self.full_right)} answers to as many")
        if max(self.unfinished, self.full_unfinished) > count:
            raise ValueError(f"more than its {count} answers were cut off")
        return self


def right_difference(one: Sequence[int], other: Sequence[int]) -> Difference:
    """The share of right answers of one plan minus that of another, of the same questions."""
    return paired_difference([SampleValues(np.subtract(one, other, dtype=np.float64))])


def points_words(difference: Difference) -> str:
    """A difference of shares in percentage points, with its interval: -8 [-14, -2] points."""
    text = f"{100 * difference.mean:+z.0f}"
    if not math.isnan(difference.low):
        text += f" [{100 * difference.low:+z.0f}, {100 * difference.high:+z.0f}]"
    return f"{text} points"


def _share(marks: Marks) -> Metric:
    """Share of right answers, with Wilson's 95% interval (J. Am. Stat. Assoc. 22, 1927).

    Resampled documents would give [0, 0] where no answer is right, however few they are.
    """
    count, share = len(marks), sum(marks) / len(marks)
    if count == 1:
        return Metric(share, share, None, None)
    spread = _DEVIATIONS**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return Metric(share, share, max(0.0, middle - half), min(1.0, middle + half))


def share_words(metric: Metric) -> str:
    """A share as a percentage, with its interval: 88% [80, 94]."""
    ends = [f"{100 * bound:.0f}" for bound in (metric.low, metric.high) if bound is not None]
    return f"{metric.mean:.0%}" + (f" [{', '.join(ends)}]" if ends else "")
