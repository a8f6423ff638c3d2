"""The search: evolution and fitness, each candidate scored once, every score kept at once.

A search redraws everything but the scores, so it resumes from these.
"""

import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from analysis.errors import PlanError
from analysis.progress import Progress, Whole, changed
from pruning.plan.units import Removed
from pruning.requests.search_settings import SearchSettings
from pruning.search.ahead import ahead_of
from pruning.search.costs import RunCosts, SearchTally
from pruning.search.evolution import Candidate, initial_state, next_state
from pruning.search.scores import BlockFitness, Score, Scores
from pruning.search.space import Space


class Fitness(Protocol):
    """Measures candidates on the search samples, in blocks of a fixed order."""

    num_blocks: int
    num_layers: int  # decoder layers that run for a block if nothing is reused
    ahead: int  # candidates to begin before one is measured; 0 if that gains nothing

    def open(self) -> AbstractContextManager[None]:
        """Candidates are measured inside; an error there reaches all processes."""
        ...

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Compute what these candidates share, before they are measured; seconds for each."""
        ...

    def begin(self, removed: Removed) -> None:
        """Begin to run a candidate, in the order in which candidates are measured."""
        ...

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Fitness of a candidate on one block."""
        ...

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Keep what helps the children of these parents, best first. Changes no value."""
        ...


@dataclass(frozen=True, eq=False)
class Task:
    """A search problem without its fitness."""

    space: Space
    seeds: Mapping[str, Removed]  # schedule -> allocation to start from
    settings: SearchSettings


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """The state of a search after a generation, or when it was stopped."""

    candidates: tuple[Candidate, ...]  # candidates that have a score, by number
    scores: Mapping[int, Score]  # by number
    generations: tuple[tuple[int, ...], ...]  # members of each complete generation
    is_finished: bool  # whether all generations are complete
    whole_layers: int  # layer evaluations of one candidate without reuse

    @property
    def best(self) -> Candidate:
        """The best over all generations; ties go to the lower number."""
        number = min(self.scores, key=lambda n: (-self.scores[n].fitness, n))
        return next(candidate for candidate in self.candidates if candidate.number == number)

    @property
    def layers(self) -> int:
        """Layer evaluations of all candidates."""
        return sum(score.layers for score in self.scores.values())

    @property
    def seconds(self) -> float:
        """Measuring time of all candidates, over all runs."""
        return sum(score.seconds for score in self.scores.values())


def search(
    task: Task,
    fitness: Fitness,
    scores: Scores,
    publish: Callable[[SearchOutcome], None],
    costs: RunCosts | None = None,
) -> Generator[Progress, None, SearchOutcome]:
    """Algorithm 1 of arXiv:2603.06003.

    Scores that the table has are not measured again, so an interrupted search resumes. `publish`
    gets the state after each generation, and when the search ends early, unless it is killed.
    """
    running, is_done = _Search(task, fitness, scores, costs or RunCosts()), False
    try:
        while not is_done:
            yield from running.score()
            publish(running.outcome())
            yield running.generation_progress()
            is_done = not running.breed()
    finally:
        if running.scores and not is_done:
            publish(running.outcome())
    return running.outcome()


def remaining(task: Task, scores: Scores, costs: RunCosts) -> Whole:
    """What is left of a search: it is drawn again as far as the table has its scores."""
    drawn = _Evolution(task, scores, costs)
    while True:
        new, unknown, _ = drawn.begin()
        if unknown:
            return drawn.whole
        drawn.scores |= {at.number: scores.known[at.removed] for at in new}
        drawn.end()
        if not drawn.breed():
            return drawn.whole


class _Evolution:
    """A population, and the scores of all candidates so far."""

    def __init__(self, task: Task, scores: Scores, costs: RunCosts) -> None:
        self._tally = SearchTally(costs, task.settings.max_steps)
        self._space, self._settings, self._table = task.space, task.settings, scores
        self._state = initial_state(task.space, task.settings, task.seeds)
        self._generations: list[tuple[int, ...]] = []
        self.scores: dict[int, Score] = {}

    @property
    def _is_last(self) -> bool:
        # If only one allocation is feasible, there is nothing to switch.
        return self._space.size == 1 or self._state.generation == self._settings.generations

    def breed(self) -> bool:
        """Make the next population; False if there is none."""
        if self._is_last:
            return False
        fitness = {number: score.fitness for number, score in self.scores.items()}
        self._state = next_state(self._state, fitness, self._space, self._settings)
        return True

    def begin(self) -> tuple[list[Candidate], list[Removed], list[int]]:
        """A generation: its new candidates, those without a score, and the numbers of parents."""
        state, parents = self._state, self._best(self._generations[-1] if self._generations else ())
        # Sorted, so that candidates with equal first layers share one run of these.
        new = [candidate for candidate in state.candidates if candidate.number not in self.scores]
        new.sort(key=lambda candidate: candidate.removed)
        self._table.look_up([candidate.removed for candidate in new])
        unknown = [
            candidate.removed for candidate in new if candidate.removed not in self._table.known
        ]
        kept = [state.candidates[number].removed for number in parents]
        self._tally.begin(unknown, kept, are_children=state.generation > 0)
        return new, unknown, parents

    def end(self) -> None:
        """All candidates of the generation have a score."""
        self._generations.append(self._state.members)

    def _best(self, numbers: tuple[int, ...]) -> list[int]:
        """The elites among candidates, best first."""
        ordered = sorted(numbers, key=lambda number: (-self.scores[number].fitness, number))
        return ordered[: self._settings.elites]

    @property
    def _to_come(self) -> int:
        """Candidates of generations to come."""
        settings = self._settings
        generations = settings.generations - self._state.generation
        children = generations * (settings.population - settings.elites)
        return min(children, self._space.size - len(self._state.candidates))

    @property
    def whole(self) -> Whole:
        """How far the search is."""
        generations = self._settings.generations - self._state.generation
        return self._tally.whole(self._to_come, generations)


class _Search(_Evolution):
    """A search in progress."""

    def __init__(self, task: Task, fitness: Fitness, scores: Scores, costs: RunCosts) -> None:
        super().__init__(task, scores, costs)
        self._fitness = fitness
        self._clock = 0.0  # when the last candidate was measured
        self._begun: list[Removed] = []  # that run, and are not measured yet

    def score(self) -> Generator[Progress, None, None]:
        """Score every new candidate of the population."""
        new, unknown, parents = self.begin()
        seconds = 0.0
        if unknown:
            seconds = yield from changed(self._fitness.prepare(unknown), self._preparing)
            self._tally.prepared()
        self._clock = time.monotonic()
        with self._fitness.open():
            for candidate in ahead_of(new, self._begin, self._fitness.ahead):
                yield self._progress()
                removed, score = candidate.removed, self._table.known.get(candidate.removed)
                self.scores[candidate.number] = score or self._measure(removed, seconds)
                self._begun = [other for other in self._begun if other != removed]
                layers = self.scores[candidate.number].layers / self._fitness.num_blocks
                if score:
                    self._tally.known(layers)
                else:
                    self._tally.measured(removed, layers)
                self._hold(parents)
        self.end()
        self._table.sync()

    def _begin(self, candidate: Candidate) -> None:
        if candidate.removed not in self._table.known:
            self._fitness.begin(candidate.removed)
            self._begun.append(candidate.removed)

    def _hold(self, parents: Sequence[int]) -> None:
        """Keep the next parents as far as known, and those of candidates still to be scored.

        Any that runs may become a parent too.
        """
        state = self._state
        scored = tuple(number for number in state.members if number in self.scores)
        numbers = dict.fromkeys([*self._best(scored), *parents])
        kept = [state.candidates[number].removed for number in numbers]
        self._fitness.hold([*kept, *self._begun])

    def _measure(self, removed: Removed, before: float) -> Score:
        blocks = [
            self._fitness.block(removed, number) for number in range(self._fitness.num_blocks)
        ]
        whole = BlockFitness.joined(blocks)
        if not np.isfinite(whole.sums).all():
            raise PlanError(
                f"The model gives no finite fitness when its layers lose {list(removed)} experts; "
                "try --dtype float32, or another corpus."
            )
        # Since the one before: this one may have begun while others were measured.
        started, self._clock = self._clock, time.monotonic()
        return self._table.add(removed, whole, before + self._clock - started)

    def outcome(self) -> SearchOutcome:
        """The state of the search."""
        return SearchOutcome(
            candidates=tuple(
                candidate for candidate in self._state.candidates if candidate.number in self.scores
            ),
            scores=dict(self.scores),
            generations=tuple(self._generations),
            is_finished=self._is_last and len(self._generations) == self._state.generation + 1,
            whole_layers=self._fitness.num_blocks * self._fitness.num_layers,
        )

    def _preparing(self, step: Progress) -> Progress:
        """A step that prepares the candidates of the generation."""
        if step.whole:
            self._tally.prepare(step.whole)
        return replace(step, whole=self.whole)

    def _progress(self, note: str = "") -> Progress:
        at = f"generation {self._state.generation} of {self._settings.generations}"
        total = len(self._state.candidates) + self._to_come
        done, unit = len(self.scores), "candidates"
        return Progress("searching", done, total, unit, note, at, self.whole)

    def generation_progress(self) -> Progress:
        """The complete generation, and the cost so far, in one line."""
        outcome = self.outcome()
        best = outcome.scores[outcome.best.number].fitness
        median = statistics.median(self.scores[number].fitness for number in self._generations[-1])
        layers = outcome.whole_layers * len(self.scores)
        return self._progress(
            f"generation {self._state.generation}: best {best:.5f}, median {median:.5f}, "
            f"{len(self.scores)} candidates, {layers / max(1, outcome.layers):.2f}x fewer layers"
        )
