"""Plans that remove neurons inside experts: from statistics, from weights, or from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.errors import PlanError
from analysis.model import MoEModel, load_model_index
from app.commands.rank import say_run
from app.commands.widths import show_width_options
from app.console import follow, out
from app.settings import stats_store
from pruning.active import Routing
from pruning.atoms.kept import count_atoms
from pruning.plan import ATOMIC_GRANULARITY, EXPERT_GRANULARITY, PruningPlan, save_plan
from pruning.planning.neurons import check_neurons, decide_neurons, neuron_evidence, plan_of_file
from pruning.requests.base import validated
from pruning.requests.neurons import NeuronRequest

# Name of what is asked for -> the option that says so, in plans of one granularity only.
_ONLY_EXPERTS = {
    "schedule_file": "--schedule-file",
    "layer_set": "--set",
    "lock": "--lock",
}
_ONLY_NEURONS = {
    "atom_scope": "--atom-scope",
    "kept_atoms": "--kept-atoms",
    "params_share": "--params-share",
    "width_mode": "--width-mode",
    "width_multiple_of": "--width-multiple-of",
}
_BOTH = tuple(name for name in NeuronRequest.model_fields if name not in _ONLY_NEURONS)


def check_granularity(granularity: str, given: Mapping[str, Any]) -> bool:
    """Whether neurons are asked for.

    Args:
        granularity: as given.
        given: all that was asked for by name; the schedule `uniform` stands for none.

    Raises:
        PlanError: no such granularity, or an option that its plans do not have.
    """
    if granularity not in (EXPERT_GRANULARITY, ATOMIC_GRANULARITY):
        raise PlanError(
            f"There is no granularity {granularity!r}; known: {EXPERT_GRANULARITY}, "
            f"{ATOMIC_GRANULARITY}."
        )
    if granularity == EXPERT_GRANULARITY:
        if unfit := [option for name, option in _ONLY_NEURONS.items() if given[name] is not None]:
            raise PlanError(
                f"{unfit[0]} is for plans of neurons; add --granularity {ATOMIC_GRANULARITY}, or "
                "leave it out."
            )
        return False
    unfit = [option for name, option in _ONLY_EXPERTS.items() if given[name]]
    if given["schedule"] not in ("uniform", "file"):
        unfit = ["--schedule", *unfit]
    if unfit:
        raise PlanError(
            f"{unfit[0]} is for plans of whole experts; a plan of neurons takes --atom-scope, "
            "--protect, --pin, --drop, --floor and --multiple-of, or --kept-atoms."
        )
    return True


def neuron_request(model: str, given: Mapping[str, Any]) -> NeuronRequest:
    """The request that the options of `plan` make.

    Raises:
        UserError: an option that is not valid, or several that do not go together.
    """
    known = {name: given.get(name) for name in (*_BOTH, *_ONLY_NEURONS)}
    values = {name: value for name, value in known.items() if value is not None}
    request: NeuronRequest = validated(NeuronRequest, {**values, "model": model})
    return request


def write_atomic_plan(request: NeuronRequest, path: Path) -> None:
    """Write the plan that was asked for, and print what it saves in each width mode.

    Raises:
        UserError: it cannot be made.
    """
    model = load_model_index(request.model, revision=request.revision)
    check_neurons(request, model)
    routing: Routing | None = None
    if request.kept_atoms is not None:
        made = plan_of_file(request, model)
    else:
        evidence = follow(neuron_evidence(request, model, stats_store(request.stats_dir)))
        made, routing = decide_neurons(request, model, evidence), evidence.routing
        for run in evidence.runs:
            say_run(run)
    save_plan(made.plan, path)
    say_neurons(model, made.plan, path)
    for note in made.notes:
        out.print(note, markup=False)
    show_width_options(model, made.plan, request.width_multiple_of, routing)


def say_neurons(model: MoEModel, plan: PruningPlan, path: Path) -> None:
    """Print what a plan of neurons keeps, in one line."""
    kept, of = count_atoms(plan.kept_atoms, plan.kept, model)
    out.print(
        f"{path}: keeps {kept} of {of} neurons ({1 - kept / of:.2%} removed), "
        f"digest {plan.digest[:8]}",
        markup=False,
    )
