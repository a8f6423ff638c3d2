"""The losses of an evaluation by sample, as records keep them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from analysis.numbers.arrays import FloatArray
from pruning.measures.result import SampleSums, SampleValues, check_possible, document_places
from pruning.measures.store import Count, RecordPart

_DIGITS = 6  # decimals of a sum


class SampleLosses(RecordPart):
    """The loss of every sample, in nats, summed over its scored positions."""

    tokens: tuple[Annotated[int, Field(ge=1)], ...]  # scored positions of each sample
    nll: tuple[float, ...]  # of the pruned model
    full_nll: tuple[float, ...]  # of the original model
    # The document of each sample, see `TokenSequences.documents`; None: windows of one text.
    documents: tuple[Count, ...] | None

    @classmethod
    def of(cls, pruned: Mapping[str, SampleSums], full: Mapping[str, SampleSums]) -> Self | None:
        """From the sums of both models by measure; None if the loss was not measured."""
        if not ("nll" in pruned and "nll" in full):
            return None
        losses = pruned["nll"]
        return cls.model_construct(  # of sums that were checked when they were read or measured
            tokens=tuple(losses.counts.tolist()),
            nll=_rounded(losses),
            full_nll=_rounded(full["nll"]),
            documents=losses.documents,
        )

    @property
    def means(self) -> FloatArray:
        """(samples,) loss of the pruned model, nats per token."""
        return np.divide(self.nll, self.tokens)

    @property
    def full_means(self) -> FloatArray:
        """(samples,) loss of the original model, nats per token."""
        return np.divide(self.full_nll, self.tokens)

    @property
    def change(self) -> SampleValues:
        """(samples,) loss increase, nats per token."""
        return SampleValues(self.means - self.full_means, self.documents)

    @property
    def num_documents(self) -> int | None:
        """Of all samples; None for windows of one text."""
        return None if self.documents is None else len(set(self.documents))

    def picked(self, documents: slice) -> Self:
        """The losses of the samples of some documents, by their place in order."""
        places = document_places(self.documents, len(self.tokens))
        chosen = {*range(len(places))[documents]}
        at = [number for number, place in enumerate(places.tolist()) if place in chosen]
        parts = {name: values and tuple(values[n] for n in at) for name, values in self}
        return type(self)(**parts)

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if len({len(values) for _, values in self if values is not None}) > 1:
            raise ValueError("it has another number of samples than of their losses")
        check_possible("nll", *self.nll, *self.full_nll)
        return self


def _rounded(losses: SampleSums) -> tuple[float, ...]:
    return tuple(np.round(losses.sums, _DIGITS).tolist())
