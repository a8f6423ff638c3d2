"""The plan of the Plan page in the address of Evaluate, which has none of its controls.

A reload begins a new session; from the address it makes the plan again. A plan from a file is no
longer there then: no address holds all of its experts.
"""

import json
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from analysis.criteria import get_criterion
from analysis.errors import PlanError, UserError
from analysis.model import MoEModel
from app.charts.context import Context
from app.literal import literal
from app.session.data import settings, shown_model, shown_stats_dir
from app.session.plan_data import shown_neurons
from app.session.plan_state import note_plan, noted_plan
from app.session.search_data import searches_of, selection_of
from app.settings import shown_path
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY
from pruning.planning.make import CurrentPlan, make_plan
from pruning.planning.percents import possible_percents
from pruning.planning.ranking import select
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest

PLAN: Final = "plan"
_MOST_LETTERS: Final = 8000
# What an address may say of a request: model and folders are the page's, and no path is read.
_SHARED: Final = ("criterion", "corpora", "sparsity", "multiple_of", "protect")
_OF_EXPERTS: Final = (*_SHARED, "gate", "schedule", "layer_set")
_OF_NEURONS: Final = (*_SHARED, "params_share", "atom_scope", "width_multiple_of", "pin", "drop")
_SEARCHED: Final = "searched"


def keep_plan_in_address(context: Context) -> None:
    """Remember the plan in the address, and make it anew where only the address knows it."""
    given = st.query_params.get(PLAN, "")
    if given and noted_plan(context.model) is None:
        try:
            shown = plan_of_address(context, given)
        except UserError as error:
            st.info(
                f"The plan in the address cannot be made here: {literal(error)}",
                icon=":material/info:",
            )
        else:
            if shown is not None:
                note_plan(shown)
    noted = noted_plan(context.model)
    said = address_of(noted, context.model) if noted else ""
    if said and said != given:
        st.query_params[PLAN] = said
    elif given and not said:
        del st.query_params[PLAN]


def address_of(shown: CurrentPlan, model: MoEModel) -> str:
    """How a plan is asked for, as JSON; empty for a plan from a file."""
    said: dict[str, Any] = {"of": model.identity[:8]}
    asked = shown.selection.request if shown.selection else None
    if asked is None:
        return ""
    if asked.is_atomic:
        said |= asked.model_dump(include={"granularity", *_OF_NEURONS}, exclude_defaults=True)
    elif asked.schedule_file is not None:
        known = searches_of(model).known
        names = [x.search_id for x in known if shown_path(x.path) == asked.schedule_file]
        if not names:
            return ""
        said |= {_SEARCHED: names[0], "sparsity": asked.sparsity}
    else:
        said |= asked.model_dump(include=set(_OF_EXPERTS), exclude_defaults=True)
    return json.dumps(said, separators=(",", ":"))


def plan_of_address(context: Context, text: str) -> CurrentPlan | None:
    """The plan that an address asks for; None where it is of another model."""
    try:
        # Deeply nested text ends the parser's recursion.
        said = json.loads(text) if len(text) <= _MOST_LETTERS else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise PlanError("it is not what this page writes.")
    if said.pop("of", None) != context.model.identity[:8]:
        return None
    is_atomic = said.pop("granularity", None) == ATOMIC_GRANULARITY
    if _SEARCHED in said and not is_atomic:
        search = searches_of(context.model).named(str(said[_SEARCHED]))
        percents = {f"{percent}%": percent for percent in possible_percents(context.model)}
        percent = percents.get(str(said.get("sparsity")))
        if search is None or percent is None:
            raise PlanError("the search that it names is not known.")
        selection = selection_of(replace(context, sparsity=f"{percent}%"), search)
        return CurrentPlan(make_plan(selection, selection.request).plan, selection=selection)
    if unknown := sorted(set(said) - set(_OF_NEURONS if is_atomic else _OF_EXPERTS)):
        raise PlanError(f"{unknown[0]!r} is nothing that an address may say of a plan.")
    place = {"model": shown_model(context.model), "stats_dir": shown_stats_dir()}
    granularity = ATOMIC_GRANULARITY if is_atomic else EXPERT_GRANULARITY
    request: PlanRequest = validated(PlanRequest, {**said, **place, "granularity": granularity})
    if is_atomic:
        criterion = get_criterion(request.criterion)
        return shown_neurons(replace(context, criterion=criterion), request)
    selection = select(request, context.model, settings().store)
    return CurrentPlan(make_plan(selection, selection.request).plan, selection=selection)
