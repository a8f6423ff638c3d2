"""What an error names as the nearest that works does work: requests repaired as they are told."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from allocations import evidence_in
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from pruning.plan.budget import count_budget, sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.selection import Allocation
from pruning.plan.units import expert_units
from pruning.schedules import SCHEDULES, allocate

_SHARE = r"(\d+) \((\d+(?:\.\d+)?)%(?: removed)?\)"
_ASKABLE = r"(\d+) \((?:--remove (\d+)|([\d.]+%))\)"


@dataclass(frozen=True)
class Asked:
    """A request as a person makes it."""

    layers: tuple[MoELayer, ...]
    schedule: str
    budget: str | int  # a sparsity or a number of experts
    limits: Constraints

    def allocation(self) -> Allocation:
        units = expert_units(self.layers, self.limits)
        even, asked = self.schedule == "uniform", self.budget
        if isinstance(asked, str):
            budget = sparsity_budget(units, asked, even=even)
        else:
            budget = count_budget(units, asked)
        widest = max(layer.num_experts for layer in self.layers)
        grid = np.full((len(self.layers), widest), np.nan)
        for row, layer in enumerate(self.layers):
            grid[row, : layer.num_experts] = np.arange(layer.num_experts) * 7 % 5
        return allocate(self.schedule, units, budget, evidence_in(grid))


def budgets_named(message: str) -> list[str | int]:
    """Numbers and sparsities that a message about the budget names."""
    if "The budget removes" in message:
        rest = message.partition(", but ")[2]
        return [budget for found in re.findall(_ASKABLE, rest) for budget in _ways(found)]
    if found := re.search(r"at most ([\d.]+%) (?:of them )?can go", message):
        return [found[1]]
    if found := re.search(r"--remove (\d+)", message):
        return [int(found[1])]
    if found := re.search(r"suits every layer: ([\d.]+%)(?: or ([\d.]+%))?", message):
        return [group for group in found.groups() if group]
    if "removed)" in message:
        return [f"{share}%" for _, share in re.findall(_SHARE, message.partition("nearest: ")[2])]
    return [int(number) for number, _ in re.findall(_SHARE, message.partition("nearest: ")[2])]


def _ways(found: tuple[str, str, str]) -> list[str | int]:
    """The ways to ask for a number that a message about a total names: both are tried."""
    number, asked, sparsity = found
    if sparsity:
        return [sparsity, int(number)]
    assert asked == number
    return [int(number)]


def fewer_dropped(asked: Asked, index: int, most: int) -> Constraints:
    """Constraints in which a layer drops at most so many experts of each group."""
    layer = next(layer for layer in asked.layers if layer.index == index)
    size = layer.num_experts // layer.num_groups
    groups = [
        sorted(e for e in asked.limits.dropped[index] if e // size == group)[:most]
        for group in range(layer.num_groups)
    ]
    gone = frozenset(expert for group in groups for expert in group)
    return replace(asked.limits, dropped={**asked.limits.dropped, index: gone})


def limits_named(asked: Asked, message: str) -> list[Constraints]:
    """Constraints changed as a message says."""
    limits = asked.limits
    layer = int(re.search(r"[Ll]ayer (\d+)", message)[1])
    if found := re.search(r"drop at most (\d+)( in each)?", message):
        return [fewer_dropped(asked, layer, int(found[1]))]
    if found := re.search(r"works is a multiple of (\d+)", message):
        return [replace(limits, multiple_of=int(found[1]))]
    if "leave one of the two out" in message:
        rest = {index: keep for index, keep in limits.fixed.items() if index != layer}
        dropped = {index: gone for index, gone in limits.dropped.items() if index != layer}
        return [
            replace(limits, protected=limits.protected - {layer}),
            replace(limits, fixed=rest, dropped=dropped),
        ]
    numbers = re.search(r"nearest: (\d+)(?: or (\d+))?\.", message)
    assert numbers, message
    return [
        replace(limits, fixed={**limits.fixed, layer: int(number)})
        for number in numbers.groups()
        if number
    ]


def repaired(asked: Asked, error: PlanError) -> list[Asked]:
    """The request with each change that an error names."""
    try:
        expert_units(asked.layers, asked.limits)
    except PlanError:
        return [replace(asked, limits=limits) for limits in limits_named(asked, str(error))]
    return [replace(asked, budget=budget) for budget in budgets_named(str(error))]


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    layers = tuple(
        MoELayer(
            2 * row + 1,
            groups * draw(st.integers(2, 6)),
            draw(st.integers(1, 2)),
            groups,
            draw(st.integers(1, 2)) if groups > 1 else 1,
        )
        for row in range(draw(st.integers(1, 3)))
    )
    some = st.sampled_from(layers)

    def experts(most: int) -> dict[int, frozenset[int]]:
        layer = draw(some)
        ids = st.integers(0, layer.num_experts - 1)
        return {layer.index: frozenset(draw(st.lists(ids, max_size=most)))}

    pinned = experts(3)
    dropped = {layer: gone - pinned.get(layer, frozenset()) for layer, gone in experts(9).items()}
    limits = Constraints(
        multiple_of=draw(st.integers(1, 5)),
        protected=frozenset(draw(st.lists(some.map(lambda layer: layer.index), max_size=1))),
        pinned={layer: ids for layer, ids in pinned.items() if ids},
        dropped={layer: ids for layer, ids in dropped.items() if ids},
        fixed=draw(
            st.dictionaries(some.map(lambda layer: layer.index), st.integers(0, 20), max_size=1)
        ),
        floor=draw(st.integers(0, 8)),
    )
    experts_of_all = sum(layer.num_experts for layer in layers)
    budget = draw(
        st.one_of(
            st.integers(0, 99).map(lambda number: f"{number}%"), st.integers(0, experts_of_all - 1)
        )
    )
    names = [name for name in SCHEDULES if name != "file"]
    return Asked(layers, draw(st.sampled_from(names)), budget, limits)


@settings(max_examples=200, deadline=None)
@given(asked=requests())
def test_what_an_error_names_works(asked):
    for _ in range(12):
        try:
            made = asked.allocation()
        except PlanError as error:
            assert "\n" not in str(error)
            changes = repaired(asked, error)
            assert changes, str(error)
            about_budget = changes[0].limits == asked.limits
            for change in changes:
                assert change != asked, str(error)
                if about_budget:  # then nothing else is wrong
                    try:
                        change.allocation()
                    except PlanError as again:
                        pytest.fail(f"{error} -> {change.budget}: {again}")
            asked = changes[-1]
        else:
            total = sum(layer.num_experts for layer in asked.layers) - sum(made.keep)
            assert isinstance(asked.budget, str) or total == asked.budget
            return
    pytest.fail("twelve repairs were not enough")
