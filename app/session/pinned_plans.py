"""What pins are of: their plans, of the controls or a kept file, shown or beside that on screen."""

from dataclasses import dataclass, replace
from typing import Final

import streamlit as st

from analysis.criteria import Criterion
from analysis.errors import PlanError, UserError
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.session.controls import asked_spec
from app.session.link import controls_of_pin
from app.session.measured_plan import show_plan
from app.session.pins import Pin, chosen_second, pins_of, second_key
from app.session.plan_data import plan_of_controls
from app.session.plan_files import kept_plan
from app.session.plan_state import import_plan
from app.session.repairs import AS_PRUNED, REPAIR, known_repairs, with_repair
from app.session.state import BITS, page_choices
from pruning.planning.comparing import check_alike, order_asked_of
from pruning.records.repair_files import if_here
from pruning.search.store import SEARCH

NO_ORDER: Final = "The file of the plan names no criterion that orders its experts."


@dataclass(frozen=True, eq=False)
class PinnedPlan:
    """A pin, and what its plan is drawn from."""

    pin: Pin
    loaded: Loaded  # with the plan as the one on screen
    plan: CurrentPlan

    @property
    def has_changed(self) -> bool:
        """Whether its words make another plan now than when it was pinned."""
        return not self.plan.plan.digest.startswith(self.pin.digest)

    @property
    def name(self) -> str:
        """What a pin of the plan that it makes now is called."""
        return replace(self.pin, digest=self.plan.plan.digest[: len(self.pin.digest)]).name


def pinned_plan(loaded: Loaded, pin: Pin) -> PinnedPlan:
    """The plan of a pin.

    Raises:
        PlanError: nothing makes it here.
    """
    model, corpora = loaded.model, list(loaded.runs)
    controls = controls_of_pin(pin, model, corpora)
    spec = asked_spec(controls, model, corpora)
    is_search = controls["schedule"] == SEARCH and not spec.by_neuron
    choices = page_choices(spec, search=controls["searched"] if is_search else None)
    own = Loaded(loaded.study, replace(choices, bits=controls[BITS]))
    plan = _plan_of(pin, own)
    if (words := controls[REPAIR]) != AS_PRUNED:
        if (record := known_repairs(own, plan).get(words)) is None:
            raise PlanError(f"It is {words[:80]}, and that repair is not in the statistics folder.")
        plan = with_repair(own, plan, record)
    return PinnedPlan(pin, replace(own, shown=plan), plan)


def _plan_of(pin: Pin, own: Loaded) -> CurrentPlan:
    """The plan of its file or its controls, as pruned."""
    if pin.file:
        plan = kept_plan(pin.content, own.model)
        if_here(plan, own.study.store.directories)
        return CurrentPlan(plan, file=pin.file)
    current, bits = plan_of_controls(own), own.choices.bits
    return replace(current, plan=replace(current.plan, bits=bits)) if bits else current


def pinned_plans(loaded: Loaded) -> tuple[list[PinnedPlan], dict[str, str]]:
    """The pinned plans of the model; name of a pin that nothing makes here -> why, as Markdown."""
    plans: list[PinnedPlan] = []
    problems: dict[str, str] = {}
    for pin in pins_of(loaded.model):
        try:
            plans.append(pinned_plan(loaded, pin))
        except UserError as error:
            problems[pin.name] = f"`{pin.digest}` cannot be made: {literal(error)}"
    return plans, problems


def with_second(loaded: Loaded) -> Loaded:
    """With the pinned plan that was chosen as the second one; a warning if it cannot be made."""
    spec = loaded.choices.spec
    if (pin := chosen_second(loaded.model, by_neuron=spec.by_neuron)) is None:
        return loaded
    try:
        second = pinned_plan(loaded, pin)
        check_alike(spec.ranking.granularity, second.plan.plan)
        if not spec.by_neuron:  # neurons have no baseline, which charts of experts read
            loaded = loaded.choosing(baseline=_ranked_by(second))
    except UserError as error:
        st.warning(f"The second plan cannot be made: {literal(error)}")
        return loaded
    return replace(loaded, beside=second.plan, beside_choices=second.loaded.choices)


def _ranked_by(pinned: PinnedPlan) -> Criterion:
    """The criterion of a plan of experts, by its own provenance if it is of a file."""
    if not pinned.pin.file:
        return pinned.loaded.choices.ranking_criterion
    order = order_asked_of(pinned.plan.plan, pinned.loaded.model)
    # Its statistics may not be here; charts of both plans read the same cached ranking.
    return pinned.loaded.study.ranking(order).criterion


def open_pin(loaded: Loaded, pin: Pin) -> None:
    """Show a pinned plan; for callbacks. If no controls ask for it, a toast says why."""
    try:
        controls = controls_of_pin(pin, loaded.model, list(loaded.runs))
        plan = kept_plan(pin.content, loaded.model) if pin.file else None
    except UserError as error:
        st.toast(literal(error))
        return
    show_plan(controls)
    if plan:
        import_plan(pin.file, plan)


def choose_second(pin: Pin) -> None:
    """Compare the plan on screen with a pinned one, on every page; for callbacks."""
    st.session_state[second_key(by_neuron=pin.by_neuron)] = pin.name
