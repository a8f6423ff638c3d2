"""Open new sessions without a link on the best measured plan of the model."""

from typing import Final

import streamlit as st

from analysis.criteria import CRITERIA
from analysis.model import MoEModel
from app.choices import BLEND
from app.session.data import losses_of, routed_runs
from app.session.state import DEFAULTS, apply_exponents
from pruning.evaluate.quality import choose_best, losses_at
from pruning.planning.choice import schedule_label
from pruning.spec import BudgetSpec, PlanSpec, SpreadSpec

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
    losses = [
        each
        for each in losses_at(losses_of(model), _SHARE)
        if not (each.is_random or each.is_repaired) and _has_controls(each.facts.asked, corpora)
    ]
    best = choose_best(losses)
    spec = best.chosen.facts.asked if best else None
    words = {} if spec is None else _show(spec)
    # All at once: each update would add an entry to the history.
    st.query_params.update({_OPENED: "1", **words})


def _show(spec: PlanSpec) -> dict[str, str]:
    """Set the controls; return the URL parameters, which Streamlit does not write this early."""
    ranking, schedule = spec.ranking, spec.spread.schedule
    corpus = BLEND if len(ranking.corpora) > 1 else "".join(ranking.corpora)
    values: dict[str, str] = {"schedule": schedule, "gate": ranking.gate, "corpus": corpus}
    words = {
        "schedule": schedule_label(schedule),
        "gate": ranking.gate.capitalize(),
        "corpus": corpus,
    }
    criterion = ranking.rule
    if criterion.exponents is None:
        values["criterion"], words["criterion"] = criterion.name, criterion.label
    else:
        apply_exponents(criterion.exponents)
        words |= dict(zip(("b", "alpha", "beta"), map(str, criterion.exponents), strict=True))
    for key, value in values.items():
        if value:
            st.session_state[key] = value
    return {
        key: word
        for key, word in words.items()
        if word and st.session_state[key] != DEFAULTS.get(key)
    }


def _has_controls(spec: PlanSpec | None, corpora: tuple[str, ...]) -> bool:
    """Whether the controls of Start show it: half of the experts by one corpus or an even blend."""
    if spec is None or spec.by_neuron or spec.ranking.criterion not in CRITERIA:
        return False
    plain = PlanSpec(
        ranking=spec.ranking,
        budget=BudgetSpec(sparsity="50%"),
        spread=SpreadSpec(schedule=spec.spread.schedule),
    )
    own = spec.ranking.corpora
    return spec == plain and (len(own) <= 1 or sorted(own) == sorted(corpora))
