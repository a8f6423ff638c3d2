"""What was predicted of plans that follow from curves, and what was measured of them."""

from collections.abc import Iterator

from analysis.numbers.words import counted
from pruning.measures.curves import from_cost
from pruning.measures.result import MEASURES
from pruning.tasks.sensitivity import CurvesRequest, Measurement


def rounds_told(measurement: Measurement, request: CurvesRequest) -> Iterator[str]:
    """What was predicted and measured of the plans that were asked for."""
    label, count = MEASURES[request.cost].label, len(measurement.corpora)
    where = f", {request.across} of {count} corpora" if count > 1 else ""
    for budget, rounds in measurement.rounds.items():
        for number, done in enumerate(rounds):
            which = "first plan" if number == 0 else f"refined {counted(number, 'time')}"
            predicted, measured = (
                from_cost(request.cost, cost) for cost in (done.predicted, done.cost)
            )
            yield (
                f"{budget}, {which}: predicted {label} {predicted:.4f}, measured {measured:.4f}"
                f"{where}"
            )
