"""Fewer experts per token: what one less costs in each layer, and what it saves."""

from collections.abc import Iterator
from typing import Final

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from pruning.actions.action import Action, Call, Outcome, Section, Table
from pruning.actions.expected import expected_cost
from pruning.actions.rounds import rounds_told
from pruning.measures.curves import from_cost
from pruning.measures.result import MEASURES
from pruning.plan.expert_sizes import active_experts
from pruning.plan.sizes import format_count
from pruning.planning.per_token import order_per_token
from pruning.requests.evaluation import TopKRequest
from pruning.requests.following import next_plan
from pruning.spec.base import option_words, repeated
from pruning.tasks.memory import sensitivity_memory
from pruning.tasks.sensitivity import CorpusMeasurement, Measurement, topk_run


def _tell(call: Call[TopKRequest], measurement: Measurement) -> Outcome:
    """What fewer experts per token cost in each layer, and the plan that comes next."""
    request, count = call.request, len(measurement.corpora)
    model = load_model_index(request.model, revision=request.revision)
    shown = [part for corpus in measurement.corpora for part in _curves(corpus, request, model)]
    words = [*option_words(request, only=("cost", "across", "revision", "stats_dir"))]
    words += repeated("--measured-on", request.corpora if count > 1 else ())
    mean = request.means[0] if request.means else max(layer.top_k for layer in model.layers) - 1
    return Outcome(
        f"{count} {'corpus' if count == 1 else 'corpora'} measured",
        {"records": [measured.record.record_id for measured in measurement.corpora]},
        (*shown, *rounds_told(measurement, request)),
        (next_plan(request.model, *words, "--mean-top-k", str(mean)),),
    )


def _curves(
    measurement: CorpusMeasurement, request: TopKRequest, model: MoEModel
) -> Iterator[Section]:
    """What each layer alone bears, what one expert less saves, and what was run."""
    label, record = MEASURES[request.cost].label, measurement.record
    most = max(measurement.units.most)
    numbers = sorted({number for number in (1, 2, 3, most // 2, most) if 0 < number <= most})
    saved = _saved_by_one(model)
    rows = []
    of_layers = (record.layers, measurement.curves.layers, measurement.losses.layers)
    for (layer, size), curve, losses in zip(*of_layers, strict=True):
        costs = [
            f"{from_cost(request.cost, curve.at(number)):.4f}" if number < size else ""
            for number in numbers
        ]
        loss = f"{losses.at(1):+z.4f}" if size > 1 else ""
        rows.append((layer, size, *costs, loss, format_count(saved[layer])))
    columns = ("layer", "per token", *(f"{number} less" for number in numbers))
    columns += ("loss of 1 less", "it saves")
    title = f"{label} on {record.corpus['name']} if one layer alone selects fewer experts per token"
    yield Table(title, columns, rows)
    yield (
        f"{record.record_id}: {counted(len(record.points), 'allocation')} on "
        f"{measurement.curves.count.words}, "
        f"{measurement.layers / measurement.batches:.0f} layer evaluations in this run"
    )


def _saved_by_one(model: MoEModel) -> dict[int, int]:
    """Layer -> parameters that a token uses less, if this layer selects one expert less."""
    order = order_per_token(model)
    whole = active_experts(model, order.plan_of((0,) * len(order.sizes))).params
    saved = {}
    for row, (layer, most) in enumerate(zip(order.sizes, order.units.most, strict=True)):
        less = tuple(min(1, most) if place == row else 0 for place in range(len(order.sizes)))
        saved[layer] = whole - active_experts(model, order.plan_of(less)).params
    return saved


ACTION: Final = Action(
    TopKRequest,
    topk_run,
    _tell,
    "topk demo --corpus demo-math --samples 8",
    "experts per token of {about}",
    "explore.loss",
    cost=expected_cost(topk_run, sensitivity_memory),
)
