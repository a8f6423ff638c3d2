"""Candidates of a benchmark: the full model, what plans leave of it, and exports of such plans."""

from analysis.model import ModelRef, MoEModel
from pruning.active import Routing
from pruning.evaluate.benchmarks.record import Candidate, candidate_label
from pruning.evaluate.record import made_facts, plan_facts
from pruning.plan import PruningPlan, fit_plan, model_ref
from pruning.surgery.manifest import Manifest


def candidate_of_plan(
    model: MoEModel, plan: PruningPlan, routing: Routing | None = None
) -> Candidate:
    """What a plan leaves of a model, masked in it; of a plan that keeps everything, the model."""
    fitted = fit_plan(plan, model)
    facts = plan_facts(fitted, model, routing)
    ref = model_ref(model)
    return Candidate(ref, ref, candidate_label(facts), fitted.digest, facts)


def candidate_of_export(
    model: MoEModel, manifest: Manifest, source: MoEModel | None = None, *, routing: Routing | None
) -> Candidate:
    """An export, which is `model` itself.

    Without its source, the facts are those of the manifest: sizes before and neurons removed are
    not known.
    """
    plan = manifest.plan
    if source is None:
        after = sum(map(len, plan.kept.values()))
        gone = plan.provenance.budget.get("removed")
        removed = None if plan.kept_atoms or not isinstance(gone, int) else gone / (after + gone)
        known = {
            "granularity": plan.granularity,
            "experts_after": after,
            "removed": removed,
            "bytes_after": model.checkpoint.nbytes,
        }
        facts = made_facts(plan.provenance).model_copy(update=known)
    else:
        plan = fit_plan(plan, source)
        facts = plan_facts(plan, source, routing)
    full = ModelRef(manifest.source.name, manifest.source.identity)
    return Candidate(full, model_ref(model), candidate_label(facts), plan.digest, facts)
