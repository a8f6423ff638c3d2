"""Which super experts a plan loses, said in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.cache_keys import Cache, uncached
from analysis.ranking.super_experts import super_experts
from pruning.plan.plan import PruningPlan, fit_plan

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.stats.manifest import Run
    from analysis.stats.store import StatsStore

_MOST_NAMED = 5
# Median experts: below, a loss is not warned of. The rule marks one expert of any model, ordinary
# ones too: those of the demo's first model were at 3 to 5 medians.
_STICKS_OUT = 10.0


def super_note(
    plan: PruningPlan, model: MoEModel, store: StatsStore, cached: Cache = uncached
) -> str | None:
    """The super experts that a plan removes or cuts, of those far above the median expert.

    None if it keeps them all, or no run tells.
    By the calibration runs that ranked the plan; by all of the model where none did, or none of
    them is here. Says so where a run lacks the statistic.
    """
    runs = _runs_of(plan, store.of_model(model.identity, "routed"))
    if not runs:
        return None
    supers = cached(super_experts, runs)
    if supers.unknown:
        return (
            f"Whether the plan removes super experts is not known: {supers.unknown[0]} is of an "
            "earlier version; to know, `moeprune runs remove` it and calibrate again."
        )
    fitted = fit_plan(plan, model)
    lost = [
        (multiple, layer, expert)
        for layer, experts in supers.multiples.items()
        for expert, multiple in experts.items()
        if multiple >= _STICKS_OUT
        and (expert not in fitted.kept[layer] or expert in fitted.kept_neurons.get(layer, {}))
    ]
    if not lost:
        return None
    lost.sort(reverse=True)
    named = [
        f"{layer}:{expert} at {multiple:.3g}" for multiple, layer, expert in lost[:_MOST_NAMED]
    ]
    named += [f"{len(lost) - _MOST_NAMED} more"] if len(lost) > _MOST_NAMED else []
    total = sum(map(len, supers.multiples.values()))
    cuts = " or cuts" if fitted.kept_neurons else ""
    return (
        f"The plan removes{cuts} {len(lost)} of {total} super experts (arXiv:2507.23279), by their "
        f"largest output as a multiple of the median expert's: {', '.join(named)}; --keep-super "
        "keeps them."
    )


def _runs_of(plan: PruningPlan, known: list[Run]) -> list[Run]:
    named = [run for run in known if run.manifest.run_id in plan.provenance.runs]
    return named or known
