"""Statistics of the expert weights, streamed from disk."""

from typing import Final

from analysis.criteria.weight_based import zero_experts
from analysis.model.opening import load_model_index
from analysis.stats.reading import load_weight_stats
from pruning.actions.action import Action, Call, Note, Outcome
from pruning.actions.expected import expected_cost
from pruning.requests.following import next_plan, usual_budget
from pruning.requests.model import WeightsRequest
from pruning.spec.base import option_words
from pruning.tasks import Steps
from pruning.tasks.calibration import CalibrationResult, collected, weights_run
from pruning.tasks.memory import weights_memory


def _run(request: WeightsRequest) -> Steps[CalibrationResult]:
    return (yield from collected(weights_run(request), request.stats_dir))


def _tell(call: Call[WeightsRequest], measured: CalibrationResult) -> Outcome:
    """How many experts were measured, how many are all zero, and the plan that comes next."""
    request, run = call.request, measured.run
    model = load_model_index(request.model, revision=request.revision)
    empty = int(zero_experts(load_weight_stats(run).per_expert()).sum())
    zeros = Note(f"{empty} experts are all zero: AIMER and Magnitude prune them first")
    name, layers = run.manifest.run_id, run.manifest.model.layers
    experts = sum(layer.num_experts for layer in layers)
    flags = option_words(request, only=("revision", "stats_dir"))
    words = f"{run.manifest.made.get('seconds')} s" if measured.is_new else "from the cache"
    return Outcome(
        f"{name}: weights of {experts:,} experts, {words}",
        {"run": name, "path": str(run.path), "experts": experts, "zero_experts": empty},
        (zeros,) if empty else (),
        (next_plan(request.model, "--criterion", "aimer", *usual_budget(model), *flags),),
        lies_in=run.path,
    )


ACTION: Final = Action(
    WeightsRequest,
    _run,
    _tell,
    "weights demo",
    "weights of {about}",
    cost=expected_cost(weights_run, weights_memory),
)
