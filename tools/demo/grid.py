"""Measures every plan that the demo's toggles ask for: `python -m tools.demo.grid STATS_DIR`.

Every criterion of experts on each corpus and on their blend, spread evenly, globally, and by
measured sensitivity where its order has curves, at 25, 50 and 75%; on the blend and spread evenly
also repaired; every schedule of the plan that opens; every criterion of neurons in every scope in
which they compete, on the blend and on one corpus. The evaluations stay in STATS_DIR, so that a
second run goes on; `cached_stats/evaluations/demo-grid.jsonl` gets those that it has not.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE, get_criterion, unified
from analysis.demo.texts import TEXTS
from analysis.drain import drain
from analysis.durable import write_durably
from analysis.errors import UserError
from analysis.model import DEMO_MODEL, load_model_index
from analysis.stats.store import SHIPPED_STATS
from app.console import out
from pruning.evaluate.record import EvaluationStore
from pruning.plan import NEURON_GRANULARITY
from pruning.planning.choice import scopes_of
from pruning.requests.evaluation import SweepRequest
from pruning.schedules import MEASURED, SCHEDULES
from pruning.tasks.evaluation import sweep_run

SHARES = ("25%", "50%", "75%")
CORPORA = tuple(sorted(TEXTS))
# Draws of Random ship in the other files.
RANKED = tuple(
    name
    for name in dict.fromkeys((*CRITERIA, *(unified(*each).name for each in RANKABLE)))
    if name != "random"
)
OPENING = "ean"  # the criterion of the plan that opens, on the blend
GRID = "demo-grid.jsonl"
_MEASURED = {"schedule": MEASURED}


def sweeps(stats_dir: Path) -> Iterator[SweepRequest]:
    """A sweep for each way to rank and to spread, the blend first, the repaired ones last."""
    blend_and_alone = [CORPORA, *((corpus,) for corpus in CORPORA)]
    repaired: list[SweepRequest] = []
    ways = product(("uniform", "global", MEASURED), blend_and_alone, RANKED)
    for schedule, corpora, name in ways:
        reads_text = get_criterion(name).source == "routed"
        if not reads_text and corpora != CORPORA:
            continue
        request = _sweep(stats_dir, name, corpora if reads_text else (), schedule=schedule)
        yield request
        if schedule == "uniform" and corpora == CORPORA and reads_text:
            repaired.append(request.model_copy(update={"repair": True}))
    yield from repaired
    for schedule in SCHEDULES:
        if schedule not in ("uniform", "global", MEASURED, "file"):
            yield _sweep(stats_dir, OPENING, CORPORA, schedule=schedule)


def neuron_sweeps(stats_dir: Path) -> Iterator[SweepRequest]:
    """A sweep for each way to rank neurons and to let them compete."""
    for name, corpora in product(NEURON_CRITERIA, (CORPORA, CORPORA[:1])):
        reads_text = get_criterion(name).source == "routed"
        if not reads_text and corpora != CORPORA:
            continue
        for spread in [*({"neuron_scope": each} for each in scopes_of(name)), _MEASURED]:
            yield _sweep(
                stats_dir,
                name,
                corpora if reads_text else (),
                granularity=NEURON_GRANULARITY,
                **spread,
            )


def _sweep(stats_dir: Path, name: str, corpora: tuple[str, ...], **fields: Any) -> SweepRequest:
    return SweepRequest(
        model=DEMO_MODEL,
        corpora=CORPORA,
        criteria=(name,),
        calibrated_on=corpora,
        sparsities=SHARES,
        measures="nll",
        dtype="float32",
        batch_size=64,
        stats_dir=stats_dir,
        **fields,
    )


def main() -> None:
    """Measure what is missing, and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stats_dir", type=Path)
    stats_dir = parser.parse_args().stats_dir
    measure([*sweeps(stats_dir), *neuron_sweeps(stats_dir)], stats_dir)


def measure(requests: Iterable[SweepRequest], stats_dir: Path) -> None:
    """Run the sweeps; what is measured already is not measured again."""
    for number, request in enumerate(requests, 1):
        by_neuron = request.granularity == NEURON_GRANULARITY and request.schedule != MEASURED
        spread = f"neurons per {request.neuron_scope}" if by_neuron else request.schedule
        words = f"{number}: {request.criteria[0]}, {'+'.join(request.calibrated_on)}, {spread}"
        try:
            drain(sweep_run(request))
        except UserError as error:  # no curves of this order, or sums that do not blend
            out.print(f"{words}: {error}")
            continue
        out.print(f"{words}{', repaired' * request.repair}")
        write_lines(stats_dir)


def write_lines(stats_dir: Path) -> None:
    """Add the evaluations of the folder to the lines of the file."""
    identity = load_model_index(DEMO_MODEL).identity
    path = SHIPPED_STATS / EvaluationStore.kind.folder / GRID
    shipped = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    measured = [each.to_line() for each in EvaluationStore([stats_dir]).records(identity)]
    write_durably(path, "".join(dict.fromkeys([*shipped, *measured])).encode())


if __name__ == "__main__":
    main()
