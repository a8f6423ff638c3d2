"""The evolution: which candidates there are, generation after generation. Pure; no model here.

Everything follows from the settings and from the fitness of the candidates: each generation draws
from a generator of its own, seeded by (seed, generation). So a search that goes on later, or on
several machines, draws what an uninterrupted one would.

Children differ by level switches: budget moved between two layers (arXiv:2603.06003, Eq. 5-6).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pruning.allocation import Removed
from pruning.search.settings import SearchSettings
from pruning.search.space import Space

# A small feasible set, or one whose elites have few neighbours, may not hold a whole population.
_DRAWS_FOR_EACH = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """An allocation that the search looks at."""

    # In the order in which candidates were found; the first with some fitness wins ties.
    number: int
    removed: Removed  # r, experts that each layer loses
    generation: int  # in which it was found
    # Number of the candidate that it was mutated from; None in the initial population.
    parent: int | None
    origin: str  # schedule that it comes from, "random" or "mutation"


@dataclass(frozen=True, slots=True)
class State:
    """A population, and all candidates found until then."""

    generation: int  # its number; 0 is the initial one
    found: tuple[Candidate, ...]  # all candidates, by number
    # Numbers of the candidates of this population; elites of the last come first.
    members: tuple[int, ...]

    def elites(self, fitness: Mapping[int, float], count: int) -> tuple[int, ...]:
        """The best of the population (TopM of Algorithm 1, line 7); ties to the one found first."""
        ranked = sorted(self.members, key=lambda number: (-fitness[number], number))
        return tuple(ranked[:count])


def best_of(fitness: Mapping[int, float]) -> int:
    """Number of the best of all candidates; ties to the one found first."""
    return min(fitness, key=lambda number: (-fitness[number], number))


def initial_state(space: Space, settings: SearchSettings, seeds: Mapping[str, Removed]) -> State:
    """The initial population: what schedules give, and uniform draws from the feasible set.

    A population is a set, as in Algorithm 1: no allocation occurs twice.

    `seeds` are allocations by schedule, in order; infeasible ones are left out.
    """
    rng = _generator(settings, 0)
    names: dict[Removed, str] = {}
    for name, removed in seeds.items():
        if space.holds(removed):
            names.setdefault(removed, name)
    names = dict(list(names.items())[: settings.population])
    # Where the set is no larger than a population, waiting for its last element could be long.
    for _ in range(_DRAWS_FOR_EACH * settings.population):
        if len(names) == min(settings.population, space.size):
            break
        names.setdefault(space.draw(rng), "random")
    found = tuple(
        Candidate(number, removed, 0, None, origin)
        for number, (removed, origin) in enumerate(names.items())
    )
    return State(0, found, tuple(range(len(found))))


def next_state(
    state: State, fitness: Mapping[int, float], space: Space, settings: SearchSettings
) -> State:
    """Elites stay, and their children fill the population (Algorithm 1, lines 7 to 22).

    `fitness` is that of the members by number, higher is better; the space has more than one
    element.
    """
    generation = state.generation + 1
    rng = _generator(settings, generation)
    elites = state.elites(fitness, settings.elites)
    numbers = {candidate.removed: candidate.number for candidate in state.found}
    found, members = list(state.found), dict.fromkeys(elites)
    for _ in range(_DRAWS_FOR_EACH * settings.population):
        if len(members) == settings.population:
            break
        parent = elites[int(rng.integers(len(elites)))]
        child = mutate(found[parent].removed, space, settings.max_transfer, settings.max_steps, rng)
        if child not in numbers:
            numbers[child] = len(found)
            found.append(Candidate(len(found), child, generation, parent, "mutation"))
        members.setdefault(numbers[child])
    return State(generation, tuple(found), tuple(members))


def _generator(settings: SearchSettings, generation: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, generation])


def num_switches(max_steps: int, rng: np.random.Generator) -> int:
    """tau = the smaller of two draws from 1..max_steps (Eq. 6): mostly few switches."""
    first, second = rng.integers(1, max_steps + 1, size=2)
    return int(min(first, second))


def switch(removed: Removed, space: Space, max_transfer: int, rng: np.random.Generator) -> Removed:
    """Move budget from one layer to another: r_a += Delta, r_b -= Delta.

    The paper draws (a, b, Delta <= max_transfer) until the result is feasible, so each feasible
    triple is equally likely. Here one of those is drawn at once: the same law, and no endless loop.
    Delta counts steps of the space, which are single experts unless layers give and take several
    at a time. The space has more than one element.
    """
    taken = np.array(space.steps_of(removed))
    can_lose = np.minimum(np.array(space.most_steps) - taken, max_transfer)
    # ways[a, b]: how many Delta are feasible for this pair.
    ways = np.minimum(can_lose[:, None], taken[None, :])
    np.fill_diagonal(ways, 0)
    ends = np.cumsum(ways)
    if not ends[-1]:
        raise ValueError("no other allocation is feasible, so there is nothing to switch to")
    drawn = int(rng.integers(ends[-1]))
    pair = int(np.searchsorted(ends, drawn, side="right"))
    more, less = divmod(pair, len(taken))
    transfer = drawn - int(ends[pair] - ways[more, less]) + 1
    taken[more] += transfer
    taken[less] -= transfer
    return space.removed_by(taken.tolist())


def mutate(
    removed: Removed, space: Space, max_transfer: int, max_steps: int, rng: np.random.Generator
) -> Removed:
    """A child: `num_switches` switches, one after the other. It may equal its parent."""
    for _ in range(num_switches(max_steps, rng)):
        removed = switch(removed, space, max_transfer, rng)
    return removed
