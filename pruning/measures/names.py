"""Measures and costs by the names that options take."""

from typing import Literal

CostName = Literal["esap", "kl", "nll"]
Across = Literal["mean", "worst"]
MeasureName = Literal["esap", "sap", "kl", "nll", "ppl", "spec-dec", "right"]
DEFAULT_MEASURES: tuple[MeasureName, ...] = ("esap", "kl", "nll", "ppl")
