"""What a plan adds to the loss, corpus by corpus, beside chance and the original model."""

from collections.abc import Mapping
from statistics import fmean

import pandas as pd
import streamlit as st

from app.charts.context import Context
from app.literal import literal
from app.session.records import losses_of
from pruning.evaluate.quality import PlanLoss, RandomLoss, loss_of, random_at


def loss_of_plan(context: Context) -> tuple[PlanLoss | None, RandomLoss | None]:
    """What was measured of the plan on screen, and what Random loses at its share."""
    losses = losses_of(context.model)
    loss = loss_of(losses, context.shown.plan.digest) if context.shown else None
    if loss is None or loss.way or loss.missing:
        return loss, None
    return loss, random_at(losses, loss.facts.removed or 0.0, loss.facts.granularity)


def loss_words(context: Context, loss: PlanLoss | None, chance: RandomLoss | None) -> str:
    """What the plan on screen loses: as measured, see `loss_of_plan`, else as predicted."""
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
    """How wrong a prediction was, in a sentence; empty where it or a measured loss is missing."""
    measured, predicted = loss_of_plan(context)[0], context.predicted
    shared = measured.change.keys() & predicted.change.keys() if measured and predicted else ()
    if measured is None or predicted is None or not shared:
        return ""
    said, found = (fmean(each.change[name] for name in shared) for each in (predicted, measured))
    where = literal(" and ".join(sorted(shared)))
    return (
        f"The curves of the layers predict an added loss of {said:+.2f} on {where}; measured: "
        f"{found:+.2f}."
    )


def losses_table(full: Mapping[str, float], added: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a row a corpus: the loss of the original model, and what others add; nats per token."""
    columns = {"original model": [f"{value:.2f}" for value in full.values()]} | {
        name: [f"{change[corpus]:+.2f}" if corpus in change else "-" for corpus in full]
        for name, change in added.items()
    }
    index = pd.Index([literal(name) for name in full], name="corpus")
    st.table(pd.DataFrame(columns, index=index))
