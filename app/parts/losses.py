"""What a plan adds to the loss, corpus by corpus, beside chance and the original model."""

from collections.abc import Mapping

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


def losses_table(full: Mapping[str, float], added: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a row a corpus: the loss of the original model, and what others add; nats per token."""
    columns = {"original model": [f"{value:.2f}" for value in full.values()]} | {
        name: [f"{change[corpus]:+.2f}" if corpus in change else "-" for corpus in full]
        for name, change in added.items()
    }
    index = pd.Index([literal(name) for name in full], name="corpus")
    st.table(pd.DataFrame(columns, index=index))
