"""Sensitivity: how much quality falls when experts are removed from one layer alone."""

from collections.abc import Iterator
from typing import Final

from analysis.numbers.words import counted
from pruning.actions.action import Action, Call, Outcome, Section, Table
from pruning.actions.evaluation_tables import evaluation_tables
from pruning.actions.expected import expected_cost
from pruning.actions.rounds import rounds_told
from pruning.measures.curves import Sensitivity, from_cost
from pruning.measures.result import MEASURES
from pruning.plan.bits import BITS, FORMATS
from pruning.plan.variant_words import repaired_name
from pruning.requests.evaluation import SensitivityRequest
from pruning.requests.following import next_plan
from pruning.spec.base import option_words, repeated
from pruning.spec.spec import LimitsSpec
from pruning.tasks.memory import sensitivity_memory
from pruning.tasks.sensitivity import CorpusMeasurement, Measurement, sensitivity_run

_SHARES = (0.25, 0.5, 0.75)
_SPEC = ("granularity", "criterion", "gate", "cost", "across", "target_dtype")  # of the next plan


def _tell(call: Call[SensitivityRequest], measurement: Measurement) -> Outcome:
    """The curves, what plans were predicted to cost and do, and the plan that comes next."""
    request, count = call.request, len(measurement.corpora)
    measured_all = (*measurement.corpora, *measurement.bits)
    names = (*_SPEC, *LimitsSpec.model_fields, "revision", "stats_dir")
    measured_on = request.corpora if len(request.corpora) > 1 else ()
    words = [*option_words(request, only=names)]
    words += [*repeated("--calibrated-on", request.calibrated_on), "--schedule", "measured"]
    words += repeated("--measured-on", measured_on)
    words += (request.budget_words or ["--sparsity 50%"])[0].split(" ", 1)
    return Outcome(
        f"{count} {'corpus' if count == 1 else 'corpora'} measured",
        {"records": [measured.record.record_id for measured in measured_all]},
        tuple(_shown(measurement, request)),
        (next_plan(request.model, *words),),
    )


def _shown(measurement: Measurement, request: SensitivityRequest) -> Iterator[Section]:
    for measured in measurement.corpora:
        yield from _curves(measured, request)
    for measured in measurement.bits:
        yield _in_bits(measured, request)
    yield from rounds_told(measurement, request)
    if measurement.evaluations:
        tokens = max(record.plan.repair_tokens for record in measurement.evaluations)
        pairs = ((words, repaired_name(words, tokens)) for words in request.budget_words)
        plans = [name for pair in pairs for name in pair]
        yield from evaluation_tables(measurement.evaluations, plans * len(request.corpora))


def _curves(measurement: CorpusMeasurement, request: SensitivityRequest) -> Iterator[Section]:
    """What each layer alone bears, and what was run."""
    label, record = MEASURES[request.cost].label, measurement.record
    rows = []
    for (layer, size), curve in zip(record.layers, measurement.curves.layers, strict=True):
        shares = [curve.at(share * size) for share in _SHARES if share * size <= curve.removed[-1]]
        values = [f"{from_cost(request.cost, cost):.4f}" for cost in shares]
        values += [""] * (len(_SHARES) - len(values))
        most = f"{from_cost(request.cost, float(curve.costs[-1])):.4f}"
        rows.append((layer, size, *values, int(curve.removed[-1]), most))
    parts = "neurons" if request.granularity == "neuron" else "experts"
    columns = (
        "layer",
        parts,
        *(f"without {share:.0%}" for share in _SHARES),
        "most",
        "without most",
    )
    yield Table(f"{label} on {record.corpus['name']} if one layer alone loses", columns, rows)
    yield (
        f"{record.record_id}: {counted(len(record.points), 'allocation')} on "
        f"{measurement.curves.count.words}, "
        f"{measurement.layers / measurement.batches:.0f} layer evaluations in this run"
    )
    for share in () if request.budgets else _SHARES:
        units = measurement.units
        total = sum(units.nearest([int(share * size) for size in units.sizes]))
        spent = Sensitivity((measurement.curves,), request.cost).solution(units, total)
        value = from_cost(request.cost, spent.cost)
        yield f"{share:.0%}: predicted {label} {value:.4f}"


def _in_bits(measurement: CorpusMeasurement, request: SensitivityRequest) -> Table:
    """What each layer alone loses in each format."""
    label, record = MEASURES[request.cost].label, measurement.record
    formats = [name for name in FORMATS if name in request.bits]
    rows = [
        (
            layer,
            *(f"{from_cost(request.cost, curve.at(BITS.index(name))):.4f}" for name in formats),
        )
        for (layer, _), curve in zip(record.layers, measurement.curves.layers, strict=True)
    ]
    title = f"{label} on {record.corpus['name']} if one layer alone has fewer bits"
    return Table(title, ("layer", *(FORMATS[name].label for name in formats)), rows)


ACTION: Final = Action(
    SensitivityRequest,
    sensitivity_run,
    _tell,
    "sensitivity demo --criterion reap --calibrated-on demo-code --corpus demo-math --sparsity 50% "
    "--samples 8",
    "sensitivity of {about} by {request.criterion}",
    cost=expected_cost(sensitivity_run, sensitivity_memory),
)
