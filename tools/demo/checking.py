"""Rebuilds shipped records in an empty folder, and compares them with what ships."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.errors import UserError, did_you_mean
from tools.demo.building import Build
from tools.demo.comparing import Difference, counterpart, differences, made, shipped
from tools.demo.orders import Step, narrowed
from tools.demo.steps import STEPS
from tools.demo.work import ROOT, Stored, Work


@dataclass(frozen=True)
class Outcome:
    """What became of a shipped record."""

    record: Stored
    differs: tuple[Difference, ...]  # empty: it is the same


def chosen(asked: Sequence[str], seed: int, root: Path = ROOT) -> list[Stored]:
    """The shipped records of these names, or as many at random as the only word says."""
    every = [record for rivals in shipped(STEPS, root).values() for record in rivals]
    every.sort(key=lambda record: (record.key, record.name))
    if len(asked) == 1 and asked[0].isdecimal():
        count = min(int(asked[0]), len(every))
        return random.Random(seed).sample(every, count)  # noqa: S311 (a sample, no secret)
    by_name = {record.name: record for record in every}
    if strange := [name for name in asked if name not in by_name]:
        hint = did_you_mean(strange[0], by_name)
        raise UserError(f"No shipped record is called {strange[0]}.{hint}")
    return [by_name[name] for name in asked]


def parts_for(records: Sequence[Stored], steps: Sequence[Step] = STEPS) -> tuple[Step, ...]:
    """The parts of the steps that make these records, and all that those need."""
    return narrowed(steps, {record.key for record in records})


def check(
    records: Sequence[Stored], work: Work, processes: int = 1, *, within: float = 0.0
) -> list[Outcome]:
    """Make the records again in an empty work folder; how each differs from what ships.

    `within` is the relative difference up to which numbers count as the same.
    """
    parts, keys = parts_for(records), frozenset(record.key for record in records)
    Build(work, parts, inputs="", keys=keys).run(processes)  # the folder has no other inputs
    rebuilt = {
        kind: [record for step in parts if step.kind == kind for record in made(step, work.stats)]
        for kind in {record.key.kind for record in records}
    }
    outcomes = []
    for record in records:
        others = [other for other in rebuilt[record.key.kind] if other.key == record.key]
        again = counterpart(record, {record.key: others})
        differs = differences(again, record) if again else [Difference("not made")]
        outcomes.append(
            Outcome(
                record, tuple(difference for difference in differs if difference.share > within)
            )
        )
    return outcomes
