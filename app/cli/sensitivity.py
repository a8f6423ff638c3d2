"""The command that measures what each layer's losses cost."""

from app.cli.derive import command
from app.console import counted, finish, follow, out, show_table
from pruning.evaluate.result import MEASURES
from pruning.requests.base import command_line, option_words, repeated
from pruning.requests.evaluation import SensitivityRequest
from pruning.sensitivity.curves import Sensitivity, from_cost
from pruning.tasks.sensitivity import Measured, sensitivity_run

_SHARES = (0.25, 0.5, 0.75)


@command(SensitivityRequest)
def sensitivity(request: SensitivityRequest) -> None:
    """Measure what each layer's losses cost, for plans by the schedule measured."""
    found = follow(sensitivity_run(request))
    for each in found:
        _say_curves(each, request)
        _say_rounds(each, request)
    asked = option_words(request, only=("granularity", "criterion", "gate", "stats_dir"))
    sparsity = request.sparsities[0] if request.sparsities else "50%"
    measured = request.corpora if len(request.corpora) > 1 else ()
    words = [*asked, *repeated("--corpus", request.calibrated_on), "--schedule", "measured"]
    words += [*repeated("--measured-on", measured), "--sparsity", sparsity]
    finish(
        f"{counted(len(found), 'corpus' if len(found) == 1 else 'corpora'[:-1])} measured",
        {"records": [each.record.record_id for each in found]},
        command_line("plan", request.model, *words),
    )


def _say_curves(found: Measured, request: SensitivityRequest) -> None:
    """Print what each layer alone bears, and what was run."""
    label, record = MEASURES[request.cost].label, found.record
    rows = []
    for (layer, size), curve in zip(record.layers, found.curves.layers, strict=True):
        shares = [curve.at(share * size) for share in _SHARES if share * size <= curve.removed[-1]]
        values = [f"{from_cost(request.cost, cost):.4f}" for cost in shares]
        values += [""] * (len(_SHARES) - len(values))
        most = f"{from_cost(request.cost, float(curve.costs[-1])):.4f}"
        rows.append((layer, size, *values, int(curve.removed[-1]), most))
    columns = ("layer", "of", *(f"without {share:.0%}" for share in _SHARES), "at most", "then")
    show_table(f"{label} on {record.corpus['name']} if one layer alone loses", columns, rows)
    out.print(
        f"{record.record_id}: {counted(record.points, 'allocation')} on "
        f"{counted(found.curves.samples, 'sample')}, "
        f"{found.layers / found.batches:.0f} layer evaluations in this run"
    )


def _say_rounds(found: Measured, request: SensitivityRequest) -> None:
    """Print what is predicted of plans, and what was measured of those that were asked for."""
    label = MEASURES[request.cost].label
    for share in () if request.sparsities else _SHARES:
        total = sum(room.nearest(int(share * room.size)) for room in found.rooms)
        spent = Sensitivity((found.curves,), request.cost).solution(found.rooms, total)
        value = from_cost(request.cost, spent.cost)
        out.print(f"{share:.0%}: predicted {label} {value:.4f}")
    for sparsity, rounds in found.rounds.items():
        for number, each in enumerate(rounds):
            which = "first plan" if number == 0 else f"refined {counted(number, 'time')}"
            predicted, measured = (
                from_cost(request.cost, cost) for cost in (each.predicted, each.cost)
            )
            out.print(
                f"{sparsity}, {which}: predicted {label} {predicted:.4f}, measured {measured:.4f}"
            )
