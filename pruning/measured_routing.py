"""How often experts were chosen in the calibrations that plans of neurons were made from."""

from collections.abc import Sequence

from analysis.model import MoEModel
from analysis.stats.blend import Mixture, Part
from analysis.stats.choose import parse_corpus_weight, routed_runs
from analysis.stats.store import Run, StatsStore, load_expert_stats
from pruning.active import Routing, counted_routing
from pruning.plan import PruningPlan


def blended_routing(parts: Sequence[Part]) -> Routing:
    """How often the router chose each expert in a mix of calibration runs, at least one."""
    mixture = Mixture([part.run for part in parts])
    return counted_routing(mixture.sums_table([part.weight for part in parts]))


def ranked_by(plan: PruningPlan, store: StatsStore) -> list[Part]:
    """The calibration runs that ranked a plan, each with its weight in the plan's blend.

    Runs that are not in the store any more are left out.
    """
    known = {run.manifest.run_id: run for run in store.of_model(plan.model.identity, "routed")}
    found = [known[run_id] for run_id in plan.provenance.runs if run_id in known]
    return [Part(run, _weight(run, plan.provenance.corpora)) for run in found]


def _weight(run: Run, corpora: Sequence[str]) -> float:
    """The weight of a run's corpus among corpora as a plan names them, see `corpus_names`."""
    own = run.manifest.corpus
    for said in corpora:
        if said != own and said.rpartition(":")[0] == own:
            return parse_corpus_weight(said).weight
    return 1.0


def measured_routing(plans: Sequence[PruningPlan], store: StatsStore) -> Routing | None:
    """How often experts were chosen, where plans of one model leave experts of different widths.

    In the blend that ranked the first of the plans whose runs are in the store, else in the newest
    calibration of the model; None where nothing was measured or only whole experts go.
    """
    cut = [plan for plan in plans if plan.kept_atoms]
    for plan in cut:
        if parts := ranked_by(plan, store):
            return blended_routing(parts)
    runs = store.of_model(cut[0].model.identity, "routed") if cut else []
    newest = max(runs, key=lambda run: str(run.manifest.made.get("created_at")), default=None)
    return counted_routing(load_expert_stats(newest).table) if newest else None


def plan_routing(
    plan: PruningPlan,
    model: MoEModel,
    store: StatsStore,
    corpora: Sequence[str] = (),
    runs: Sequence[str] = (),
) -> Routing | None:
    """How often experts were chosen in the runs that are named, or in the blend that ranked.

    None where nothing is named and no run that ranked is in the store: then all equally often.
    """
    if not corpora and not runs:
        parts = ranked_by(plan, store)
        return blended_routing(parts) if parts else None
    wanted = [parse_corpus_weight(text) for text in corpora]
    return blended_routing(routed_runs(store, model, wanted, runs))
