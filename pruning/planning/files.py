"""Plans and limits that files name, and what is impossible whatever the statistics."""

import numpy as np

from analysis.errors import PlanError
from analysis.files.json_text import parse_json_once
from analysis.files.shipped import tool_version
from analysis.files.text_file import read_text_file
from analysis.model.moe_model import MoEModel
from analysis.model.widths import expert_widths
from pruning.plan.experts_per_token import check_top_k, fewer_in_all
from pruning.plan.keep_list import read_keep_list
from pruning.plan.kept import check_cuttable, neurons_from_json
from pruning.plan.plan import Provenance, PruningPlan, fit_plan, model_ref, with_top_k
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.units import check_total
from pruning.planning.make import budget_of, experts_of, neuron_units_for, plan_with
from pruning.planning.ranking import recorded
from pruning.schedules import Evidence, allocate, get_schedule
from pruning.schedules.counts import file_evidence
from pruning.spec.spec import PlanSpec


def plan_of_file(spec: PlanSpec, model: MoEModel) -> PruningPlan:
    """The plan of a file that names all that stays."""
    by_file = neurons_of_file if spec.by_neuron else experts_of_list
    return with_top_k(by_file(spec, model), model, spec.budget.top_k)


def experts_of_list(spec: PlanSpec, model: MoEModel) -> PruningPlan:
    """The plan of `kept_experts`, which names the experts that stay."""
    path = spec.spread.kept_experts
    if path is None:
        raise ValueError("the spec names no file")
    provenance = Provenance(
        schedule="file",
        tool_version=tool_version(),
        schedule_parameters={"file": path.name},
        spec=recorded(spec),
    )
    kept = read_keep_list(path, model.layers)
    return fit_plan(PruningPlan(model_ref(model), kept, provenance), model)


def neurons_of_file(spec: PlanSpec, model: MoEModel) -> PruningPlan:
    """The plan of `kept_neurons`: a plan.json of neurons, or its `kept_neurons` alone."""
    path = spec.spread.kept_neurons
    if path is None:
        raise ValueError("the spec names no file")
    provenance = Provenance(
        criterion=spec.ranking.criterion,
        schedule="file",
        tool_version=tool_version(),
        schedule_parameters={"file": path.name},
        spec=recorded(spec),
    )
    try:
        raw = parse_json_once(read_text_file("file", path))
    except ValueError as error:
        raise PlanError(f"{path} is not valid JSON: {error}.") from error
    if isinstance(raw, dict) and "schema_version" in raw:
        plan = fit_plan(plan_from_dict(raw), model)
        return plan_with(model, dict(plan.kept), plan.kept_neurons, provenance)
    neurons = neurons_from_json(raw.get("kept_neurons", raw) if isinstance(raw, dict) else raw)
    return plan_with(model, {}, neurons, provenance)


def check_spec(spec: PlanSpec, model: MoEModel) -> None:
    """Refuse what is impossible whatever the statistics, before any are made."""
    if spec.budget.top_k:
        check_top_k(model, spec.budget.top_k)
    if spec.budget.mean_top_k:
        fewer_in_all(model, spec.budget.mean_top_k)
    if spec.keeps_all:
        return
    if spec.by_neuron:
        check_neurons(spec, model)
        return
    if spec.spread.kept_experts is not None:
        read_keep_list(spec.spread.kept_experts, model.layers)
        return
    evidence = file_evidence(spec.spread.schedule_file, model.layers)
    units = experts_of(spec, model)
    budget = budget_of(spec, units, model, evidence)
    if get_schedule(spec.spread.schedule).needs <= {"counts"}:
        allocate(spec.spread.schedule, units, budget, evidence)
    else:
        check_total(budget.total, units)


def check_neurons(spec: PlanSpec, model: MoEModel) -> None:
    """The same of a plan of neurons."""
    if spec.spread.kept_neurons is not None:
        neurons_of_file(spec, model)
        return
    check_cuttable(model)
    same = {
        layer: tuple(np.zeros(width) for width in widths)
        for layer, widths in expert_widths(model).items()
    }
    budget_of(spec, neuron_units_for(model, spec, same), model, Evidence())
