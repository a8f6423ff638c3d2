"""The chosen expert beside the map: its ranks, what it reads, neighbours, limits by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import UserError
from app.literal import literal
from app.loaded import Loaded
from app.session.chosen_expert import Place, choose_expert, open_expert
from app.session.hand_limits import Limit, limit_of, set_limit
from app.session.prompts import own_words, shown_unasked
from app.widgets.expert import most_read
from pruning.plan.plan import EXPERT_GRANULARITY, PruningPlan
from pruning.planning.ranking import Ranking
from pruning.records.lens import LensStore

_WHOLE: Final = 1000  # scores from here on have no digits after the point


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a criterion and its plan have an expert."""

    criterion: str
    rank: int  # from 1, in its layer
    count: int  # experts of the layer
    score: float
    is_kept: bool
    before: Place | None  # the neighbours in rank
    after: Place | None


def standing(loaded: Loaded, ranking: Ranking, plan: PruningPlan, place: Place) -> Standing:
    """That of an expert by a ranking and a plan of it."""
    layer, expert = place
    ranked = loaded.ranked(ranking)
    row = [known.index for known in ranked.grid.layers].index(layer)
    order = ranked.order[row]
    order = order[order >= 0]
    at = int(np.flatnonzero(order == expert)[0])
    return Standing(
        ranking.criterion.label,
        at + 1,
        len(order),
        float(ranked.score[row, expert]),
        expert in plan.kept[layer],
        (layer, int(order[at - 1])) if at else None,
        (layer, int(order[at + 1])) if at + 1 < len(order) else None,
    )


def standings(loaded: Loaded, place: Place) -> list[Standing]:
    """Those by the plan on screen and by the one that it is compared with; the first counts.

    One that lacks statistics is left out, as the page says of its criterion.

    Raises:
        UserError: both lack them.
    """
    sides: list[Callable[[], tuple[Ranking, PruningPlan]]] = [
        lambda: (loaded.second, loaded.second_plan)
    ]
    if loaded.choices.criterion is not None:
        sides.insert(0, lambda: (loaded.ranking, loaded.shown_plan))
    known, problems = [], []
    for side in sides:
        try:
            known.append(standing(loaded, *side(), place))
        except UserError as error:
            problems.append(error)
    if not known:
        raise problems[0]
    return known


def has_card(loaded: Loaded) -> bool:
    """Whether an expert is chosen that the plan keeps or drops whole."""
    plan = loaded.shown.plan if loaded.shown else None
    return (
        loaded.choices.expert is not None
        and plan is not None
        and plan.granularity == EXPERT_GRANULARITY
    )


def expert_card(loaded: Loaded, slot: DeltaGenerator) -> None:
    """The card of the chosen expert in `slot`; it is over the lower right corner of the window."""
    place = loaded.choices.expert
    if place is None:
        return
    with slot.container(key="expert-card"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"**Layer {place[0]}, expert {place[1]}**", width="stretch")
            st.button(
                "Close",
                key="expert.close",
                type="tertiary",
                icon=":material/close:",
                on_click=choose_expert,
                args=(None,),
            )
        try:
            known = standings(loaded, place)
        except UserError as error:
            st.text(str(error))
            return
        st.markdown("  \n".join([*map(_words, known), _fires_on(loaded, place)]).strip())
        expert_actions(loaded, place, known[0])


def expert_actions(
    loaded: Loaded, place: Place, known: Standing | None = None, *, opens: bool = True
) -> None:
    """Its neighbours in rank, the limits by hand, and the link to its page."""
    known = known or standings(loaded, place)[0]
    with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
        for label, icon, other in (
            ("Previous", "chevron_left", known.before),
            ("Next", "chevron_right", known.after),
        ):
            st.button(
                label,
                key=f"expert.{label.lower()}",
                icon=f":material/{icon}:",
                on_click=choose_expert,
                args=(other,),
                disabled=other is None,
                help=f"In the order of {known.criterion} in this layer.",
            )
        _limit_button(loaded, place, known)
        if opens:
            st.button(
                "Its page",
                key="expert.open",
                type="tertiary",
                icon=":material/query_stats:",
                on_click=open_expert,
                args=(place,),
            )


def _limit_button(loaded: Loaded, place: Place, known: Standing) -> None:
    """Keep what the plan prunes, drop what it keeps, or take such a limit back.

    Plans of a file or a search have their experts; no limit changes them.
    """
    is_fixed = loaded.shown is None or loaded.shown.ranking is None
    if is_fixed or loaded.choices.search is not None:
        return
    now = limit_of(loaded.choices.spec, place)
    limit: Limit | None = None if now else "drop" if known.is_kept else "pin"
    label = {"pin": "Keep anyway", "drop": "Drop", None: "Undo"}[limit]
    notes = {
        "pin": "The plan keeps it whatever its rank; another expert goes instead.",
        "drop": "The plan removes it whatever its rank; another expert stays instead.",
        None: "Leave it to the criterion again.",
    }
    st.button(
        label,
        key="expert.limit",
        icon={"pin": ":material/add_task:", "drop": ":material/delete:", None: ":material/undo:"}[
            limit
        ],
        on_click=set_limit,
        args=(place, limit),
        help=notes[limit],
    )


def _words(known: Standing) -> str:
    fate = "kept" if known.is_kept else "**pruned**"
    score = f"{known.score:,.0f}" if abs(known.score) >= _WHOLE else f"{known.score:.4g}"
    where = f"rank {known.rank} of {known.count}, score {score}"
    return f"{literal(known.criterion)}: {where}, {fate}"


def _fires_on(loaded: Loaded, place: Place) -> str:
    every, _ = loaded.study.records(LensStore)
    tokens = most_read(shown_unasked(every, LensStore, own_words()), place)
    return f"Fires most on {tokens}" if tokens else ""
