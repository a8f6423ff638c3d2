"""Plans that actions compare: by file, and the names of these and of what is made of them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.model.moe_model import MoEModel
from pruning.actions.action import Call
from pruning.plan.bits import bits_words
from pruning.plan.experts_per_token import top_k_words
from pruning.plan.plan import PruningPlan, fit_plan, takes_repair
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.variant_words import repaired_name, tokens_words
from pruning.records.plan_facts import PlanFacts


def plans_by_file(
    call: Call[Any], contents: Iterable[Mapping[str, Any]], model: MoEModel
) -> dict[Path, PruningPlan]:
    """The plans of a request, complete, by the files that were named."""
    plans = (fit_plan(plan_from_dict(raw), model) for raw in contents)
    return dict(zip(call.plans, plans, strict=True))


def plans_by_name(plans: Mapping[Path, PruningPlan]) -> dict[str, PruningPlan]:
    """Plans by the names of their files; with their folders where those of two are alike."""
    are_distinct = len({path.name for path in plans}) == len(plans)
    return {path.name if are_distinct else str(path): plan for path, plan in plans.items()}


def candidate_names(
    plans: Mapping[str, PruningPlan],
    made: Sequence[PlanFacts],
    model: MoEModel,
    *,
    repair: bool,
    bits: int = 1,
) -> dict[str, int]:
    """Name of each candidate -> index of its plan; a plan is followed by its repair if made too.

    Each comes in as many `bits` as are asked for, unless it has its own. `made` begins with the
    facts of all of them.
    """
    candidates: dict[str, int] = {}
    for index, (name, plan) in enumerate(plans.items()):
        repairs = 2 if repair and takes_repair(plan, model) else 1
        for _ in range(repairs * (1 if plan.named_bits else bits)):
            candidates[name + _variant(plan, made[len(candidates)])] = index
    return candidates


def _variant(plan: PruningPlan, made: PlanFacts) -> str:
    """What follows the name of a plan's file: how it is repaired, in fewer bits, or selects fewer.

    `made` are the facts of what was run.
    """
    repair = ""
    if made.repair:
        tokens = made.repair_tokens
        repair = repaired_name("", tokens)
        if plan.repair:
            repair = f" (repaired on {tokens_words(tokens)})"
    return repair + bits_words(made.bits) + top_k_words(made.top_k)
