"""The evolution: the candidates of each generation, without any model.

Settings and fitness decide everything: each generation has its own random generator, seeded by
(seed, generation). So a resumed search, or one on several machines, draws what an uninterrupted one
would.

Children differ by level switches: budget moved between two layers (arXiv:2603.06003, Eq. 5-6).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pruning.plan.units import Removed
from pruning.requests.search_settings import SearchSettings
from pruning.search.space import Space

# Draws per member: a small feasible set, or elites with few neighbours, may not fill a population.
_DRAWS_FOR_EACH = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """An allocation that the search evaluates."""

    number: int  # in order of discovery; ties go to the lower number
    removed: Removed  # r, experts that each layer loses
    generation: int  # in which it was found
    parent: (
        int | None
    )  # number of the candidate it was mutated from; None in the initial population
    origin: str  # a schedule, "random" or "mutation"


@dataclass(frozen=True, slots=True)
class State:
    """A population, and all candidates found so far."""

    generation: int  # 0 is the initial one
    candidates: tuple[Candidate, ...]  # all so far, by number
    members: tuple[int, ...]  # numbers of the population; elites of the previous one come first


def initial_state(space: Space, settings: SearchSettings, seeds: Mapping[str, Removed]) -> State:
    """The initial population: allocations of schedules, and uniform draws from the feasible set.

    As in Algorithm 1 no allocation occurs twice. `seeds` maps schedules to allocations, in order;
    infeasible ones are left out, and the last if there are more than a population holds.
    """
    rng = np.random.default_rng([settings.seed, 0])
    names = dict(list(_starts(space, seeds).items())[: settings.population])
    # If the set is hardly larger than a population, its last element could take long to draw.
    for _ in range(_DRAWS_FOR_EACH * settings.population):
        if len(names) == min(settings.population, space.size):
            break
        names.setdefault(space.draw(rng), "random")
    candidates = tuple(
        Candidate(number, removed, 0, None, origin)
        for number, (removed, origin) in enumerate(names.items())
    )
    return State(0, candidates, tuple(range(len(candidates))))


def starts_without_room(
    space: Space, settings: SearchSettings, seeds: Mapping[str, Removed]
) -> list[str]:
    """Names of the allocations that a search would start from if its population were larger."""
    return list(_starts(space, seeds).values())[settings.population :]


def _starts(space: Space, seeds: Mapping[str, Removed]) -> dict[Removed, str]:
    """The feasible seeds, each allocation once, by the first of its names."""
    names: dict[Removed, str] = {}
    for name, removed in seeds.items():
        if space.holds(removed):
            names.setdefault(removed, name)
    return names


def next_state(
    state: State, fitness: Mapping[int, float], space: Space, settings: SearchSettings
) -> State:
    """Elites stay, and their children fill the population (Algorithm 1, lines 7 to 22).

    `fitness` is that of the members by number, higher is better; ties go to the lower number. The
    space must have more than one element.
    """
    generation = state.generation + 1
    rng = np.random.default_rng([settings.seed, generation])
    elites = sorted(state.members, key=lambda n: (-fitness[n], n))[: settings.elites]
    numbers = {candidate.removed: candidate.number for candidate in state.candidates}
    candidates, members = list(state.candidates), dict.fromkeys(elites)
    for _ in range(_DRAWS_FOR_EACH * settings.population):
        if len(members) == settings.population:
            break
        parent = elites[int(rng.integers(len(elites)))]
        child = mutate(
            candidates[parent].removed, space, settings.max_transfer, settings.max_steps, rng
        )
        if child not in numbers:
            numbers[child] = len(candidates)
            candidates.append(Candidate(len(candidates), child, generation, parent, "mutation"))
        members.setdefault(numbers[child])
    return State(generation, tuple(candidates), tuple(members))


def switch_budget(
    removed: Removed, space: Space, max_transfer: int, rng: np.random.Generator
) -> Removed:
    """Move budget from one layer to another: r_a += Delta, r_b -= Delta.

    The paper draws (a, b, Delta <= max_transfer) until the result is feasible, so each feasible
    triple is equally likely. Here one of those is drawn directly: the same law without an endless
    loop. Delta counts steps of the space. The space must have more than one element.
    """
    steps = np.array(space.steps_of(removed))
    can_lose = np.minimum(np.array(space.most_steps) - steps, max_transfer)
    # ways[a, b]: how many Delta are feasible for this pair.
    ways = np.minimum(can_lose[:, None], steps[None, :])
    np.fill_diagonal(ways, 0)
    ends = np.cumsum(ways)
    if not ends[-1]:
        raise ValueError("no other allocation is feasible, so there is nothing to switch to")
    number = int(rng.integers(ends[-1]))
    pair = int(np.searchsorted(ends, number, side="right"))
    more, less = divmod(pair, len(steps))
    transfer = number - int(ends[pair] - ways[more, less]) + 1
    steps[more] += transfer
    steps[less] -= transfer
    return space.removed_by(steps.tolist())


def mutate(
    removed: Removed, space: Space, max_transfer: int, max_steps: int, rng: np.random.Generator
) -> Removed:
    """A child: tau switches, tau the smaller of two draws from 1..max_steps (Eq. 6).

    It may equal its parent.
    """
    for _ in range(rng.integers(1, max_steps + 1, size=2).min()):
        removed = switch_budget(removed, space, max_transfer, rng)
    return removed
