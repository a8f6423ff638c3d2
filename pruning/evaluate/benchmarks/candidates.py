"""Candidates of a benchmark: the full model, what plans leave of it, and exports of such plans."""

from analysis.model import ModelRef, MoEModel
from pruning.active import Routing
from pruning.evaluate.benchmarks.record import Candidate, candidate_label
from pruning.evaluate.record import PlanFacts, made_facts, plan_facts
from pruning.plan import PruningPlan, fit_plan, model_ref
from pruning.surgery.manifest import Manifest


def planned(model: MoEModel, plan: PruningPlan, routing: Routing | None = None) -> Candidate:
    """What a plan leaves of a model, masked in it; of a plan that keeps everything, the model.

    Args:
        model: the full model.
        plan: for it.
        routing: see `plan_facts`.
    """
    fitted = fit_plan(plan, model)
    facts = plan_facts(fitted, model, routing)
    ref = model_ref(model)
    return Candidate(ref, ref, candidate_label(facts), fitted.digest, facts)


def exported(
    model: MoEModel, manifest: Manifest, source: MoEModel | None = None, *, routing: Routing | None
) -> Candidate:
    """An export.

    Args:
        model: the export itself.
        manifest: its own.
        source: the full model; without it, sizes before and neurons removed are not known.
        routing: see `plan_facts`.
    """
    plan = manifest.plan
    if source is None:
        facts = _manifest_facts(model, manifest)
    else:
        plan = fit_plan(plan, source)
        facts = plan_facts(plan, source, routing)
    full = ModelRef(manifest.source.name, manifest.source.identity)
    return Candidate(full, model_ref(model), candidate_label(facts), plan.digest, facts)


def _manifest_facts(model: MoEModel, manifest: Manifest) -> PlanFacts:
    """What the manifest alone says."""
    plan = manifest.plan
    after = sum(map(len, plan.kept.values()))
    gone = plan.provenance.budget.get("removed")
    known = {
        "granularity": plan.granularity,
        "experts_after": after,
        "removed": None if plan.kept_atoms or not isinstance(gone, int) else gone / (after + gone),
        "bytes_after": model.checkpoint.nbytes,
    }
    return made_facts(plan.provenance).model_copy(update=known)
