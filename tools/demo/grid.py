"""Measures every plan that the demo's toggles ask for: `python -m tools.demo.grid STATS_DIR`.

Every criterion of experts on each corpus and on their blend, spread evenly, globally, and by
measured sensitivity where its order has curves, at 25, 50 and 75%; on the blend and spread evenly
also repaired. The evaluations stay in STATS_DIR, so that a second run goes on;
`cached_stats/evaluations/demo-grid.jsonl` gets those that no other shipped file has.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from analysis.criteria import CRITERIA, RANKABLE, get_criterion, unified
from analysis.demo.texts import TEXTS
from analysis.drain import drain
from analysis.durable import write_durably
from analysis.errors import UserError
from analysis.model import DEMO_MODEL, load_model_index
from analysis.stats.store import SHIPPED_STATS
from app.console import out
from pruning.evaluate.record import EvaluationStore
from pruning.requests.evaluation import SweepRequest
from pruning.schedules import MEASURED
from pruning.tasks.evaluation import sweep_run

SHARES = ("25%", "50%", "75%")
CORPORA = tuple(sorted(TEXTS))
# Draws of Random ship in the other files.
RANKED = tuple(
    name
    for name in dict.fromkeys((*CRITERIA, *(unified(*each).name for each in RANKABLE)))
    if name != "random"
)
GRID = "demo-grid.jsonl"


def sweeps(stats_dir: Path) -> Iterator[SweepRequest]:
    """A sweep for each way to rank and to spread, the blend first, the repaired ones last."""
    blend_and_alone = [CORPORA, *((corpus,) for corpus in CORPORA)]
    repaired: list[SweepRequest] = []
    ways = product(("uniform", "global", MEASURED), blend_and_alone, RANKED)
    for schedule, corpora, name in ways:
        reads_text = get_criterion(name).source == "routed"
        if not reads_text and corpora != CORPORA:
            continue
        request = SweepRequest(
            model=DEMO_MODEL,
            corpora=CORPORA,
            criteria=(name,),
            calibrated_on=corpora if reads_text else (),
            sparsities=SHARES,
            schedule=schedule,
            measures="nll",
            dtype="float32",
            batch_size=64,
            stats_dir=stats_dir,
        )
        yield request
        if schedule == "uniform" and corpora == CORPORA and reads_text:
            repaired.append(request.model_copy(update={"repair": True}))
    yield from repaired


def main() -> None:
    """Measure what is missing, and write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stats_dir", type=Path)
    stats_dir = parser.parse_args().stats_dir
    for number, request in enumerate(sweeps(stats_dir), 1):
        words = f"{number}: {request.criteria[0]}, {'+'.join(request.calibrated_on)}, "
        try:
            drain(sweep_run(request))
        except UserError as error:  # no curves of this order, or sums that do not blend
            out.print(f"{words}{request.schedule}: {error}")
            continue
        out.print(f"{words}{request.schedule}{', repaired' * request.repair}")
        write_lines(stats_dir)


def write_lines(stats_dir: Path) -> None:
    """Write the evaluations of the folder as lines of one file."""
    identity = load_model_index(DEMO_MODEL).identity
    records = EvaluationStore([stats_dir]).records(identity)
    lines = "".join(record.to_line() for record in records)
    write_durably(SHIPPED_STATS / EvaluationStore.kind.folder / GRID, lines.encode())


if __name__ == "__main__":
    main()
