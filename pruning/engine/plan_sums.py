"""What was measured of a plan, and of the original model beside it, as the table has it."""

from analysis.model.moe_model import MoEModel
from pruning.measurements.block import ORIGINAL
from pruning.measurements.table import PlanSums
from pruning.measures.points import sample_ids
from pruning.measures.result import MEASURES, OF_FULL_MODEL, Evaluation
from pruning.measures.samples import Samples
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, kept_by_layer


def sums_of_plan(
    model: MoEModel, plan: PruningPlan, result: Evaluation, samples: Samples
) -> dict[str, PlanSums]:
    """Digest of the plan, ORIGINAL -> their sums on these samples."""
    ids, whole = sample_ids(samples.sequences), fit_plan(plan, model)
    own = {name: sums for name, sums in result.samples.items() if name in MEASURES}
    plans = {whole.digest: PlanSums(kept_by_layer(whole, model), ids, own)}
    original = {
        measure.row: result.samples[measure.sums]
        for measure in OF_FULL_MODEL.values()
        if measure.sums in result.samples
    }
    if original:
        plans[ORIGINAL] = PlanSums(kept_by_layer(keep_all(model), model), ids, original)
    return plans
