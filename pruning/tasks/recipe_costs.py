"""What all tasks of a recipe are expected to cost, before any has made what the next one reads."""

from analysis.model.moe_model import MoEModel
from analysis.progress import Costs, Parts, cost
from pruning.repair.costs import repair_costs
from pruning.requests.machine import Machine
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_steps import evaluate_request
from pruning.search.store import SEARCH
from pruning.surgery.verify_costs import export_costs
from pruning.tasks.evaluation import evaluation_costs, expected_tokens
from pruning.tasks.search import searching_costs, statistics_costs

# Of a plan that is not made yet, this share of the weights is taken to remain.
_KEPT = 0.5


def recipe_parts(recipe: Recipe, machine: Machine, model: MoEModel, pruned: MoEModel) -> Parts:
    """The parts of `moeprune prune`; `pruned` is the model that is exported."""
    parts = statistics_costs(recipe, machine, model)
    if recipe.search:
        # The search measures sensitivity itself; calibrations it finds.
        own: dict[str, Costs] = {SEARCH: searching_costs(recipe, machine, model)}
        own |= {name: parts.pop(name, {}) for name in ("sensitivity", "refinement")}
        parts[SEARCH] = Parts(own).whole.total
    if recipe.repair:
        parts["repair"] = repair_costs(model, tokens=recipe.repair.tokens)
    if asked := evaluate_request(recipe, machine):
        plans = (2 if recipe.repair else 1) * len(asked.bits)
        parts["evaluate"] = evaluation_costs(model, expected_tokens(asked, model), plans)
    if section := recipe.export:
        written, whole = _KEPT * pruned.checkpoint.nbytes, pruned.checkpoint.nbytes
        export: dict[str, Costs] = {"writing": {"write": cost("write", written)}}
        if section.hash_source:
            export["hashing"] = {"hash": cost("hash", whole)}
        if section.verify:
            export["verify"] = export_costs(pruned, round(written))
        if section.gguf:
            export["gguf"] = {"write": cost("write", written)}
        parts["export"] = Parts(export).whole.total
    return Parts(parts)
