"""Names of plans that commands compare: of their files, and of what is done to them besides."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from pruning.plan.bits import bits_words
from pruning.plan.experts_per_token import top_k_words
from pruning.plan.plan import PruningPlan, load_plan, takes_repair
from pruning.plan.repair_reference import repaired_name, tokens_words
from pruning.records.plan_facts import PlanFacts
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.model import ModelRequest


def plan_file_names(plans: Sequence[Path]) -> list[str]:
    """File names of plans; with their folders where those of two files are alike."""
    distinct = {path.name for path in plans}
    return [path.name if len(distinct) == len(set(plans)) else str(path) for path in plans]


def candidate_names(
    plans: Mapping[str, PruningPlan],
    made: Iterable[PlanFacts],
    request: EvaluateRequest,
    model: MoEModel,
) -> dict[str, int]:
    """Name of each candidate -> index of its plan; a plan is followed by its repair if made too.

    Each comes in all bits that are asked for, with the experts per token that are. `made` are the
    facts of all of them.
    """
    candidates: dict[str, int] = {}
    facts = iter(made)
    for index, (name, plan) in enumerate(plans.items()):
        repairs = 2 if request.repair and takes_repair(plan, model) else 1
        for _ in range(repairs * (1 if plan.bits else len(request.bits))):
            candidates[name + _variant(plan, next(facts))] = index
    return candidates


def _variant(plan: PruningPlan, made: PlanFacts) -> str:
    """What follows the name of a plan's file: how it is repaired, in fewer bits, or selects fewer.

    `made` are the facts of what was evaluated.
    """
    repair = ""
    if made.repair:
        tokens = made.repair_tokens
        repair = repaired_name("", tokens)
        if plan.repair:
            repair = f" (repaired on {tokens_words(tokens)})"
    return repair + bits_words(made.bits) + top_k_words(made.top_k)


def named_plans(request: ModelRequest, paths: Sequence[Path]) -> dict[str, tuple[object, ...]]:
    """Plans and their names, those of the files; repaired ones say so, equal names get numbers."""
    model = load_model_index(request.model, revision=request.revision)
    plans: dict[str, dict[str, object]] = {}
    for number, path in enumerate(paths, 1):
        each = load_plan(path, model=model)
        name = path.name
        if each.repair:
            name += f" (repaired on {tokens_words(each.repair.tokens)})"
        plans[name if name not in plans else f"{name} ({number})"] = each.to_dict()
    return {"plans": tuple(plans.values()), "names": tuple(plans)}
