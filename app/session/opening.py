"""Open new sessions without a link on the best measured plan of the model."""

from typing import Final

import streamlit as st

from analysis.criteria import CRITERIA
from analysis.model import MoEModel
from app.charts.context import BLEND
from app.session.data import losses_of, routed_runs
from app.session.state import DEFAULTS, apply_exponents
from pruning.evaluate.quality import PlanLoss, choose_best, losses_at
from pruning.planning.choice import schedule_label
from pruning.schedules import SCHEDULES

_SHARE: Final = 0.5
_OPENED: Final = "opened"


def open_on_best(model: MoEModel, page: str) -> None:
    """Set the controls, before they are drawn, to the best plan of half of the experts.

    Only for sessions that open Start with a bare URL. The URLs that Start itself makes are never
    bare (see the component `history`), or a reload would replace a plan of defaults.
    """
    is_first = _OPENED not in st.session_state
    st.session_state[_OPENED] = True
    if not is_first or page or len(st.query_params):
        return
    corpora = tuple(routed_runs(model))
    found = [each for each in losses_at(losses_of(model), _SHARE) if _has_controls(each, corpora)]
    best = choose_best(found)
    words = {} if best is None else _show(best.chosen)
    # All at once: each update would add an entry to the history.
    st.query_params.update({_OPENED: "1", **words})


def _show(loss: PlanLoss) -> dict[str, str]:
    """Set the controls; return the URL parameters, which Streamlit does not write this early."""
    facts, criterion = loss.facts, CRITERIA[loss.facts.criterion]
    corpus = BLEND if len(facts.corpora) > 1 else "".join(facts.corpora)
    said = {"schedule": facts.schedule, "gate": facts.gate, "corpus": corpus}
    words = {
        "schedule": schedule_label(facts.schedule),
        "gate": facts.gate.capitalize(),
        "corpus": corpus,
    }
    if criterion.exponents is None:
        said["criterion"], words["criterion"] = criterion.name, criterion.label
    else:
        apply_exponents(criterion.exponents)
        words |= dict(zip(("b", "alpha", "beta"), map(str, criterion.exponents), strict=True))
    for key, value in said.items():
        if value:
            st.session_state[key] = value
    return {
        key: word
        for key, word in words.items()
        if word and st.session_state[key] != DEFAULTS.get(key)
    }


def _has_controls(loss: PlanLoss, corpora: tuple[str, ...]) -> bool:
    """Whether the controls can express the plan: one corpus or all, no search."""
    facts = loss.facts
    return (
        facts.granularity == "expert"
        and not loss.is_random
        and facts.criterion in CRITERIA
        and facts.schedule in SCHEDULES
        and facts.sparsity == "50%"
        and (len(facts.corpora) <= 1 or sorted(facts.corpora) == sorted(corpora))
    )
