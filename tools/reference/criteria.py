"""The reference of criteria: every one with its formula, what it reads and which way it ranks."""

from pathlib import Path

from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE, VARIANTS, Criterion, unified
from analysis.criteria.base import needs_of
from analysis.stats.columns import groups_for
from pruning.spec.base import repeated
from tools.reference.markdown import cell, table

__all__ = ["criteria", "variants"]


def criteria(_root: Path) -> str:
    """One row for each named criterion."""
    head = ("name", "label", "formula", "reads", "calibrate with", "keeps", "ranks", "paper")
    every = {**CRITERIA, **NEURON_CRITERIA}
    return table(head, [_row(criterion) for criterion in every.values()])


def variants(_root: Path) -> str:
    """One row for each member of the unified family, the one that cannot rank included."""
    members = [unified(*exponents) for exponents in VARIANTS]
    rows = [
        (
            "`{},{},{}`".format(*(exponents := member.exponents or ())),
            f"`{member.name}`" if member.name in CRITERIA else "",
            f"${member.formula}$",
            "" if exponents in RANKABLE else "constant: refused",
        )
        for member in members
    ]
    return table(("b,alpha,beta", "name", "formula", "remark"), rows)


def _row(criterion: Criterion) -> tuple[str, ...]:
    return (
        f"`{criterion.name}`",
        cell(criterion.label) + (f" {criterion.exponents}" if criterion.exponents else ""),
        f"${criterion.formula}$",
        _reads(criterion),
        _groups(criterion),
        "the smaller score" if criterion.prune_larger else "the larger score",
        _ranks(criterion),
        cell(criterion.reference),
    )


def _reads(criterion: Criterion) -> str:
    needs = needs_of(criterion)
    parts = {
        "corpus": needs.data,
        "expert outputs": needs.activations,
        "gate weights": needs.gates,
        "weights": needs.weights,
    }
    return ", ".join(name for name, is_read in parts.items() if is_read) or "nothing"


def _groups(criterion: Criterion) -> str:
    if criterion.source == "routed":
        groups = groups_for(criterion.columns("applied"))
        extra = " ".join(repeated("--group", groups[1:]))
        return f"`{extra}`" if extra else "any run"
    kept = criterion.source == "weights" and criterion.score is not None
    return "no run: `moeprune weights`" if kept else "no run"


def _ranks(criterion: Criterion) -> str:
    scores = {"experts": criterion.score, "neurons": criterion.neuron_score}
    ranked = ", ".join(name for name, score in scores.items() if score)
    return f"{ranked}; within a layer only" if criterion.within_layers else ranked
