"""Evaluate, right answers: the table of a sparsity, and the fields of the form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd
import streamlit as st

from analysis.corpora.checks import CHECKS
from analysis.corpora.spec import parse_corpus, with_check
from app.literal import literal
from pruning.measures.names import DEFAULT_MEASURES
from pruning.measures.result import RIGHT
from pruning.measures.sample_settings import DEFAULT_QUESTIONS
from pruning.records.quality import PlanLoss
from pruning.records.right_of_plans import Asked, original_shares, right_shares

_NO_CHECK = "not checked"
_OWN_CHECK = "by the corpus' own check"


def right_table(
    losses: Sequence[PlanLoss], asked: Asked, plans: Mapping[str, Sequence[PlanLoss]]
) -> None:
    """Draw one row per corpus: shares of right answers of the original model and of plans.

    `plans` maps columns to the plans that they are the mean of.
    """
    columns = {"original model": original_shares(losses, asked)}
    columns |= {name: right_shares(plan, asked) for name, plan in plans.items()}
    cells = {
        # Escaped: a bare dash is a list in Markdown.
        name: [f"{shares[corpus]:.0%}" if corpus in shares else r"\-" for corpus in asked]
        for name, shares in columns.items()
    }
    st.markdown("**Right answers** to held-out questions; higher is better.")
    st.table(pd.DataFrame(cells, index=pd.Index(map(literal, asked), name="corpus")))


def right_column(
    table: pd.DataFrame, by_plan: Mapping[str, PlanLoss], draws: Sequence[PlanLoss], asked: Asked
) -> "pd.Series[float]":
    """Share of right answers of each candidate, mean over corpora; missing if not all were asked.

    `table` is that of `candidates_at`, `by_plan` has the plans measured as most, and `draws` are
    those of Random, which have one row without a plan.
    """
    shares = []
    for row in table.to_dict("records"):
        plans = [by_plan[row["plan"]]] if row["plan"] in by_plan else []
        if not (row["plan"] or row["repaired_on"]):
            plans = list(draws)
        known = right_shares(plans, asked) if row["way"] == "" else {}
        is_whole = known and len(known) == len(asked)
        shares.append(fmean(known.values()) if is_whole else math.nan)
    return pd.Series(shares, index=table.index, dtype=float)


@dataclass(frozen=True, slots=True)
class QuestionChoice:
    """What the form asks of corpora."""

    corpora: tuple[str, ...]
    others: tuple[str, ...] = ()  # of these, those without a check of their own
    rule: str = _NO_CHECK
    column: str = ""  # of the answers of `others`
    questions: int = DEFAULT_QUESTIONS

    def fields(self) -> dict[str, Any]:
        """Corpora, measures and questions of a request; a CorpusError names a bad column."""
        if self.rule == _NO_CHECK:
            return {"corpora": self.corpora}
        if self.rule == _OWN_CHECK:
            measures = (*DEFAULT_MEASURES, RIGHT)
            return {"corpora": self.corpora, "measures": measures, "questions": self.questions}
        checked = {other: with_check(other, self.column, self.rule) for other in self.others}
        named = tuple(checked.get(corpus, corpus) for corpus in self.corpora)
        return {"corpora": named, "questions": self.questions}


def question_choice(corpora: Sequence[str]) -> QuestionChoice:
    """Draw how answers to corpora are checked.

    A corpus of the demo has its own check; others take the one that is chosen, but for presets,
    which know their columns and have no answers to check.
    """
    specs = {corpus: parse_corpus(corpus) for corpus in corpora}
    others = tuple(
        corpus
        for corpus, spec in specs.items()
        if (spec.path or spec.dataset) and spec.preset is None
    )
    rules = [_NO_CHECK, *([_OWN_CHECK] if any(spec.check for spec in specs.values()) else ())]
    rules += CHECKS if others else ()
    if len(rules) == 1:
        return QuestionChoice(tuple(corpora))
    rule = st.selectbox(
        "Right answers",
        rules,
        key="evaluate.check",
        help="The models answer held-out questions, and a rule tells right from wrong. "
        + " ".join(f"{check.name}: {check.about}." for check in CHECKS.values()),
    )
    column = ""
    if others:
        column = st.text_input("Column of the answer", "answer", key="evaluate.answer").strip()
    questions = st.number_input(
        "Questions per corpus", 1, 10**6, DEFAULT_QUESTIONS, key="evaluate.questions"
    )
    return QuestionChoice(tuple(corpora), others, rule, column or "answer", int(questions))
