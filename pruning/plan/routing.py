"""Routing behind plans: what the calibrations that ranked them counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import CRITERIA
from analysis.ranking.choose import routed_runs
from analysis.stats.blend import mixture_of
from analysis.stats.manifest import Part
from analysis.stats.reading import load_expert_stats
from pruning.plan.expert_sizes import Routing, counted_routing

if TYPE_CHECKING:
    from analysis.model.moe_model import MoEModel
    from analysis.stats.store import StatsStore
    from pruning.plan.plan import PruningPlan


def blended_routing(parts: Sequence[Part]) -> Routing:
    """Routing in a blend of calibration runs, at least one."""
    mixture = mixture_of([part.run for part in parts])
    return counted_routing(mixture.sums_table([part.weight for part in parts]))


def ranked_by(plan: PruningPlan, store: StatsStore) -> list[Part]:
    """The calibration runs behind a plan with their weights, as far as the store still has them.

    Found by their ids: of a plan for a quantised copy, they are of the model that it was made for.
    """
    runs_by_id = {
        run.manifest.run_id: run for run in store.runs() if run.manifest.kind != "weights"
    }
    parts = []
    for run in [runs_by_id[run_id] for run_id in plan.provenance.runs if run_id in runs_by_id]:
        # Whether it measured the experts that the plan names.
        counts = {layer.index: layer.num_experts for layer in run.manifest.model.layers}
        if all(max(ids) < counts.get(layer, 0) for layer, ids in plan.kept.items() if ids):
            name = run.manifest.corpus  # in a blend it has a weight behind it, see `corpus_names`
            weighted = (
                parse_corpus_weight(text).weight
                for text in plan.provenance.corpora
                if text != name and text.rpartition(":")[0] == name
            )
            parts.append(Part(run, next(weighted, 1.0)))
    return parts


def measured_routing(plans: Sequence[PruningPlan], store: StatsStore) -> Routing | None:
    """Routing for plans of one model that remove neurons; None without such plans or statistics.

    From the blend behind the first plan whose runs are in the store, else from the newest
    calibration of the model, of those that ship if any does.
    """
    cut = [plan for plan in plans if plan.kept_neurons]
    for plan in cut:
        if parts := ranked_by(plan, store):
            return blended_routing(parts)
    runs = store.of_model(cut[0].model.identity, "routed") if cut else []
    newest = max(
        runs,
        key=lambda run: (run.is_shipped, str(run.manifest.made.get("created_at"))),
        default=None,
    )
    return counted_routing(load_expert_stats(newest).table) if newest else None


def plan_routing(
    plan: PruningPlan,
    model: MoEModel,
    store: StatsStore,
    corpora: Sequence[str] = (),
    runs: Sequence[str] = (),
) -> Routing | None:
    """Routing in the named runs, else in the blend behind the plan; None if neither is stored."""
    if not corpora and not runs:
        parts = ranked_by(plan, store)
        return blended_routing(parts) if parts else None
    blend = [parse_corpus_weight(text) for text in corpora]
    return blended_routing(routed_runs(store, model, blend, runs, CRITERIA["frequency"]))
