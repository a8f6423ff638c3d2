"""A plan of a mark, a row or a button, shown whole: the one way from a plan to the controls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from analysis.errors import PlanError, UserError
from analysis.model.moe_model import MoEModel
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.controls import USUAL, asked_spec, controls_for
from app.session.data import loaded_for, records_of
from app.session.plan_data import plan_of_controls
from app.session.plan_state import forget_import
from app.session.repairs import AS_PRUNED, REPAIR, known_repairs, with_repair
from app.session.state import BITS, not_here, page_choices
from pruning.plan.widths import WidthMode
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import PlanLoss
from pruning.records.repair import RepairStore
from pruning.spec.spec import PlanSpec

_NOTHING: Final = "0%"


def show_plan(controls: Mapping[str, Any]) -> None:
    """Show the plan that these controls ask for, instead of an imported file; for callbacks.

    It is as pruned unless they name a repair: that on screen is another plan's.
    """
    forget_import()
    st.session_state.update({REPAIR: AS_PRUNED, **controls})


def open_measured(loaded: Loaded, digest: str, bits: str = "") -> None:
    """Show a measured plan in these bits; for callbacks. If controls cannot, a toast says why.

    `digest` is of the plan as it is exported.
    """
    try:
        controls = controls_of_measured(loaded, digest, bits)
    except UserError as error:
        st.toast(literal(error))
        return
    show_plan(controls)


def controls_of_measured(loaded: Loaded, digest: str, bits: str = "") -> dict[str, Any]:
    """The controls of a measured plan in these bits: they make exactly this plan again.

    Raises:
        PlanError: no control asks for all of it, its repair is not here, or the statistics that it
            was made of have changed.
    """
    losses = [loss for loss in loaded.study.losses if loss.plan == digest]
    if not losses:
        raise PlanError(f"No plan of digest {digest[:8]} was measured.")
    # The same plan may have been asked for in several ways.
    loss = next((loss for loss in losses if not why_not_shown(loaded, loss)), losses[0])
    controls = controls_of_facts(loss.facts, loaded.model, list(loaded.runs))
    plan = _plan_of(loaded, controls)
    if loss.facts.repair:
        words, plan = _repaired(loaded, plan, loss.facts.repair)
        controls[REPAIR] = words
    if plan.plan.in_own_bits.digest != loss.plan:
        raise PlanError(
            "The statistics have changed since this plan was measured, so its controls give "
            f"another one; its file plan.json, of digest {loss.plan[:8]}, can be opened."
        )
    return {**controls, BITS: bits}


def controls_of_facts(facts: PlanFacts, model: MoEModel, corpora: Sequence[str]) -> dict[str, Any]:
    """The controls of what a record says of a plan, without its repair and bits.

    The record's bytes count no padding, so neurons get the width mode that pads nothing on disk.
    """
    asked = _asked(facts, model, corpora)
    if facts.top_k:  # also where an evaluation gave it to a plan
        asked = asked.changed(top_k=int(facts.top_k))
    controls = controls_for(asked, model, corpora)
    if facts.asked is not None and facts.asked.by_neuron:
        controls["width_mode"] = str(WidthMode.RAGGED)
    return controls


def why_not_clickable(loaded: Loaded, losses: Iterable[PlanLoss]) -> dict[str, str]:
    """Digest of a measured plan -> why no controls ask for it; empty if they do."""
    reasons: dict[str, str] = {}
    for loss in losses:
        if reasons.get(loss.plan) != "":
            reasons[loss.plan] = why_not_shown(loaded, loss)
    return reasons


def why_not_shown(loaded: Loaded, loss: PlanLoss) -> str:
    """Why no controls ask for a measured plan; empty if they do. Makes no plan."""
    try:
        controls_of_facts(loss.facts, loaded.model, list(loaded.runs))
        if loss.facts.repair:
            _check_known(loaded, loss.facts.repair)
    except UserError as error:
        return str(error)
    return ""


def _asked(facts: PlanFacts, model: MoEModel, corpora: Sequence[str]) -> PlanSpec:
    if facts.layer_bits:
        raise not_here("bits by layer")
    if facts.differs_by_layer or (facts.asked and facts.asked.budget.mean_top_k is not None):
        raise not_here("experts per token by layer")
    if facts.asked is not None:
        return facts.asked
    if facts.removed or facts.repair:
        raise not_here("how this plan was made")
    return asked_spec(USUAL, model, corpora).changed(sparsity=_NOTHING)  # the original


def _plan_of(loaded: Loaded, controls: Mapping[str, Any]) -> CurrentPlan:
    """The plan that controls ask for, as pruned."""
    spec = asked_spec(controls, loaded.model, list(loaded.runs))
    return plan_of_controls(loaded_for(loaded.model, page_choices(spec)))


def _check_known(loaded: Loaded, record_id: str) -> None:
    if record_id not in {record.record_id for record in records_of(loaded, RepairStore)}:
        raise PlanError(
            f"Its repair {record_id} is not in the statistics folder; `moeprune repair` makes it "
            "again."
        )


def _repaired(loaded: Loaded, plan: CurrentPlan, record_id: str) -> tuple[str, CurrentPlan]:
    """The words of a repair of the plan, and the repaired plan."""
    _check_known(loaded, record_id)
    for words, record in known_repairs(loaded, plan).items():
        if record.record_id == record_id:
            return words, with_repair(loaded, plan, record)
    raise PlanError(
        f"The repair {record_id} is not of the plan that its controls give; repair that one again."
    )
