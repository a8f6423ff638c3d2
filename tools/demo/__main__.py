"""Makes everything that ships with the demo anew: `python -m tools.demo`.

Rerun it to resume. Nothing is written outside of the work folder without --ship.
"""

import argparse
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.errors import UserError, did_you_mean
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.numbers.words import counted
from app.console import err, out, show_table
from pruning.plan.sizes import format_bytes
from tools.demo.building import Build, needed_steps, with_needed
from tools.demo.checking import Outcome, check, chosen
from tools.demo.comparing import counterpart, differences, made, shipped
from tools.demo.shipping import ship
from tools.demo.steps import STEPS
from tools.demo.work import Work, default_folder, inputs_digest

_COLUMNS = ("step", "records", "seconds", "bytes", "same", "other")
ROUNDING = 1e-4  # relative difference that another kind of processor makes
_SHOWN = 4  # differences of a record, the largest first


def main() -> None:
    """Command line: 1 if a step fails or a record is not the one that ships."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--work", type=Path, default=default_folder(), help="work folder")
    parser.add_argument("--processes", type=int, default=1, help="steps side by side")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these and what they need")
    parser.add_argument("--list", action="store_true", help="show the steps; make nothing")
    parser.add_argument("--train", action="store_true", help="train the model first")
    parser.add_argument("--ship", action="store_true", help="replace what ships at the end")
    parser.add_argument(
        "--check",
        nargs="+",
        metavar="RECORD",
        help="rebuild shipped records in an empty folder, by name or so many at random",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the records of --check")
    parser.add_argument(
        "--within", type=float, default=0.0, help="relative difference that --check lets pass"
    )
    arguments = parser.parse_args()
    arguments.work = arguments.work.absolute()  # steps run elsewhere
    # Or steps outlive the command when it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        code = _run(arguments)
    except UserError as error:
        err.print(f"error: {error}")
        code = 1
    raise SystemExit(code)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        _list()
        return 0
    if arguments.processes < 1:
        raise UserError(f"--processes: give 1 or more (got {arguments.processes}).")
    if arguments.check:
        return _check(arguments)
    return _build(arguments)


def _list() -> None:
    needs = needed_steps(STEPS)
    rows = [
        (
            step.name,
            step.kind,
            ", ".join(needs[step.name]) or "nothing",
            step.keys().total(),
            step.ships or "nothing",
        )
        for step in STEPS
    ]
    show_table("Steps", ("step", "kind", "needs", "records", "ships"), rows)


def _build(arguments: argparse.Namespace) -> int:
    names = arguments.only or [step.name for step in STEPS]
    known = [step.name for step in STEPS]
    if strange := [name for name in names if name not in known]:
        raise UserError(f"There is no step {strange[0]}.{did_you_mean(strange[0], known)}")
    checkpoint = _trained(arguments.work) if arguments.train else DEMO_CHECKPOINT
    inputs = inputs_digest(checkpoint)
    work = Work(arguments.work / inputs[:16])
    work.prepare(checkpoint)
    build = Build(work, with_needed(STEPS, names), inputs)
    build.run(arguments.processes)
    show_table("Made", _COLUMNS, list(_rows(build)))
    if arguments.ship:
        for path in ship(Build(work, STEPS, inputs)):
            out.print(f"shipped: {path}")
    return 0


def _trained(folder: Path) -> Path:
    from tools.demo.training import trained  # torch

    return trained(folder)


def _rows(build: Build) -> Iterator[Sequence[object]]:
    """Rows of _COLUMNS: how many records are those that ship, and how many are others."""
    for step in build.steps:
        records = made(step, build.work.stats)
        others = shipped([step])
        same = 0
        for record in records:
            other = counterpart(record, others)
            same += other is not None and not differences(record, other)
        sizes = (
            len(str(record.raw)) + sum(f.stat().st_size for f in record.files) for record in records
        )
        seconds = build.work.seconds(step)
        rest = len(records) - same if step.ships else 0
        yield step.name, len(records), seconds, format_bytes(sum(sizes)), same, rest


def _words(outcome: Outcome) -> str:
    shown = sorted(outcome.differs, key=lambda difference: -difference.share)[:_SHOWN]
    more = len(outcome.differs) - len(shown)
    words = ", ".join(map(str, shown)) or "the same"
    return f"{words} and {more} more" if more else words


def _check(arguments: argparse.Namespace) -> int:
    records = chosen(arguments.check, arguments.seed)
    arguments.work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=arguments.work, prefix="check-") as folder:
        work = Work(Path(folder))
        work.prepare()
        outcomes = check(records, work, arguments.processes, within=arguments.within)
    rows = [(outcome.record.name, _words(outcome)) for outcome in outcomes]
    show_table("Rebuilt", ("record", "differs in"), rows)
    out.print(summary(outcomes))
    return int(any(outcome.differs for outcome in outcomes))


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many records came back, and how far the others are from what ships."""
    others = [outcome for outcome in outcomes if outcome.differs]
    words = f"{counted(len(outcomes), 'record')} rebuilt, {len(others) or 'none'} of them other"
    words += " than what ships"
    shares = [difference.share for other in others for difference in other.differs]
    far = max(shares, default=math.inf)
    if far < math.inf:  # numbers alone
        words += f" by at most {far:.0e}"
    words += "; dates, seconds and versions may differ"
    if far <= ROUNDING:
        words += f"; processors round in different ways: --within {ROUNDING:.0e} lets that pass"
    return words


if __name__ == "__main__":
    main()
