"""The verdict on a plan from what a statistics folder holds."""

from analysis.model.moe_model import MoEModel
from analysis.stats.store import StatsStore
from pruning.benchmarks.record import BenchmarkStore, is_benchmarked
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.records.evaluation import EvaluationStore
from pruning.records.quality import LossIncrease, stored_losses
from pruning.records.verdict import Evidence, ShipVerdict, ship_verdict
from pruning.serving.engines import Readers


def recorded_verdict(
    plan: PruningPlan,
    model: MoEModel,
    store: StatsStore,
    export: tuple[int, Readers],
    predicted: LossIncrease | None = None,
) -> ShipVerdict | None:
    """The verdict from what a statistics folder holds.

    `export` is the bytes of the weights that it writes, and the programs that load it.
    """
    num_bytes, readers = export
    digest, identity = fit_plan(plan, model).digest, model.identity
    evaluations = EvaluationStore(store.directories).snapshot(identity)
    benchmarks = BenchmarkStore(store.directories).snapshot(identity)
    evidence = Evidence(
        before=model.checkpoint.nbytes,
        after=num_bytes,
        losses=stored_losses(evaluations, identity),
        plain=readers.plain,
        special=readers.special,
        is_benchmarked=is_benchmarked(benchmarks, identity, digest),
        predicted=predicted,
    )
    return ship_verdict(plan, model, evidence)
