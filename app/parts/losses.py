"""Added loss of a plan per corpus, with Random and the original model."""

from collections.abc import Mapping
from statistics import fmean

import pandas as pd
import streamlit as st

from app.charts.context import Context
from app.literal import literal
from app.session.records import losses_of
from pruning.evaluate.quality import PlanLoss, RandomLoss, loss_of, random_at


def loss_of_plan(context: Context) -> tuple[PlanLoss | None, RandomLoss | None]:
    """Measured loss of the plan on screen, and of Random at its sparsity."""
    losses = losses_of(context.model)
    loss = loss_of(losses, context.shown.plan.digest) if context.shown else None
    if loss is None or loss.way or loss.missing:
        return loss, None
    return loss, random_at(losses, loss.facts.removed or 0.0, loss.facts.granularity)


def loss_words(context: Context, loss: PlanLoss | None, chance: RandomLoss | None) -> str:
    """Loss of the plan on screen: measured (see `loss_of_plan`), else predicted."""
    if loss is None:
        predicted = context.predicted
        return literal(predicted.words) if predicted else "loss not measured"
    words = literal(loss.words)
    if loss.way:
        return f"{words}, {loss.way}"
    if loss.missing:
        return f"{words}, not measured on {literal(', '.join(loss.missing))}"
    return words if chance is None or loss.is_random else f"{words}, Random {chance.mean:+.2f}"


def prediction_error(context: Context) -> str:
    """One sentence on the error of the prediction; empty if it or the measurement is missing."""
    measured, predicted = loss_of_plan(context)[0], context.predicted
    shared = measured.change.keys() & predicted.change.keys() if measured and predicted else ()
    if measured is None or predicted is None or not shared:
        return ""
    said, found = (fmean(each.change[name] for name in shared) for each in (predicted, measured))
    where = literal(" and ".join(sorted(shared)))
    return (
        f"Layer sensitivity predicts an added loss of {said:+.2f} on {where}; measured: "
        f"{found:+.2f}."
    )


def losses_table(full: Mapping[str, float], added: Mapping[str, Mapping[str, float]]) -> None:
    """Draw one row per corpus: loss of the original, and added losses; nats per token."""
    columns = {"original model": [f"{value:.2f}" for value in full.values()]} | {
        name: [f"{change[corpus]:+.2f}" if corpus in change else "-" for corpus in full]
        for name, change in added.items()
    }
    index = pd.Index([literal(name) for name in full], name="corpus")
    st.table(pd.DataFrame(columns, index=index))
