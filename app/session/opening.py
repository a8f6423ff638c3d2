"""Where a session begins that no link leads: on the best plan that was measured of the model."""

from typing import Final

import streamlit as st

from analysis.criteria import CRITERIA
from analysis.model import MoEModel
from app.charts.context import BLEND
from app.session.data import routed_runs
from app.session.records import losses_of
from app.session.state import apply_preset
from pruning.evaluate.by_sample import choose_best
from pruning.evaluate.quality import PlanLoss, losses_at
from pruning.schedules import SCHEDULES

_SHARE: Final = 0.5
_OPENED: Final = "opened"


def open_on_best(model: MoEModel, page: str) -> None:
    """Set the controls, before they are drawn, to the plan of half of the experts that loses least.

    Only where a session begins on Start by the bare address. Start's own addresses are never bare:
    a plan of defaults alone would be another one after a reload.
    """
    is_first = _OPENED not in st.session_state
    st.session_state[_OPENED] = True
    is_bare = not len(st.query_params)
    if page == "" and _OPENED not in st.query_params:
        st.query_params[_OPENED] = "1"
    if not is_first or page or not is_bare:
        return
    corpora = tuple(routed_runs(model))
    found = [each for each in losses_at(losses_of(model), _SHARE) if _is_said(each, corpora)]
    if (best := choose_best(found)) is not None:
        facts = best.chosen.facts
        apply_preset(facts.criterion)
        st.session_state["schedule"] = facts.schedule
        if facts.gate:
            st.session_state["gate"] = facts.gate
        if facts.corpora:
            st.session_state["corpus"] = facts.corpora[0] if len(facts.corpora) == 1 else BLEND


def _is_said(loss: PlanLoss, corpora: tuple[str, ...]) -> bool:
    """Whether the controls can say the plan: one corpus, or all; no search."""
    facts = loss.facts
    return (
        facts.granularity == "expert"
        and not loss.is_random
        and facts.criterion in CRITERIA
        and facts.schedule in SCHEDULES
        and facts.sparsity == "50%"
        and (len(facts.corpora) <= 1 or sorted(facts.corpora) == sorted(corpora))
    )
