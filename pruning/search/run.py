"""The search: evolution and fitness, each candidate scored once, every score logged at once.

The first line of search.jsonl identifies the search. Each further line is a candidate with its
score, or a completed generation. A search redraws everything else, so it resumes from the scores.
"""

import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from filelock import Timeout

from analysis.errors import PlanError
from analysis.files.json_text import parse_json
from analysis.numbers.arrays import FloatArray
from analysis.progress import Progress
from pruning.measures.append_log import (
    AppendLog,
    appending,
    damaged,
    locked,
    parsed_lines,
    plain_json,
    whole_lines,
)
from pruning.plan.allocation import Removed
from pruning.requests.search_settings import SearchSettings
from pruning.search.evolution import Candidate, initial_state, next_state
from pruning.search.space import Space


@dataclass(frozen=True, slots=True, eq=False)
class BlockFitness:
    """Fitness on one block of samples."""

    values: FloatArray  # (samples of the block,) higher is better
    layers: int  # decoder layers that ran


class Fitness(Protocol):
    """Measures candidates on the search samples, in blocks of a fixed order."""

    num_blocks: int
    num_layers: int  # decoder layers that run for a block if nothing is reused

    def prepare(self, candidates: Sequence[Removed]) -> Generator[Progress, None, float]:
        """Compute what these candidates share, before they are measured; seconds for each."""
        ...

    def block(self, removed: Removed, number: int) -> BlockFitness:
        """Fitness of a candidate on one block."""
        ...

    def hold(self, candidates: Sequence[Removed]) -> None:
        """Keep what helps the children of these parents, best first. Changes no value."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """The measured fitness of a candidate."""

    samples: FloatArray  # (n,) fitness on each sample
    layers: int  # layer evaluations, each on one block
    seconds: float

    @property
    def fitness(self) -> float:
        """Mean over the samples."""
        return float(self.samples.mean())


SCHEMA_VERSION = 1
LOG_NAME = "search.jsonl"


class SearchLog:
    """The open log of a search; without a file it writes nothing, as another process does so."""

    def __init__(self, scores: dict[Removed, Score], lines: AppendLog | None = None) -> None:
        self._lines = lines or AppendLog()
        self.scores = scores  # removed -> score

    def score(self, candidate: Candidate, score: Score) -> None:
        """Append a candidate's score, which survives the end of this process."""
        self.scores[candidate.removed] = score
        self._lines.append(
            {
                "candidate": candidate.number,
                "generation": candidate.generation,
                "parent": candidate.parent,
                "origin": candidate.origin,
                "removed": list(candidate.removed),
                "fitness": score.fitness,
                "samples": score.samples.tolist(),
                "layers": score.layers,
                "seconds": round(score.seconds, 4),
            }
        )

    def generation(self, summary: Mapping[str, Any]) -> None:
        """Append the summary of a generation, and sync: it survives a loss of power."""
        self._lines.append({"complete": dict(summary)})
        self._lines.sync()


@contextmanager
def open_log(path: Path, header: Mapping[str, Any]) -> Iterator[SearchLog]:
    """The log at this path, new or continued; a PlanError if it is of another search.

    The header is plain JSON of all that decides the search.
    """
    first = {"schema_version": SCHEMA_VERSION, "search": plain_json(header)}
    scores: dict[Removed, Score] = {}
    try:
        with locked(path):
            lines = whole_lines(path)
            if lines:
                _check_header(path, lines[0], first)
            for number, raw in parsed_lines(path, lines):
                try:
                    if "complete" not in raw:
                        scores[tuple(map(int, raw["removed"]))] = _score(raw)
                except (ValueError, KeyError, TypeError, OverflowError) as error:
                    raise damaged(path, number) from error
            with appending(path, lines, first) as log:
                yield SearchLog(scores, log)
    except Timeout as error:
        raise PlanError(f"Another process is searching in {path.parent}; wait for it.") from error


def _check_header(path: Path, line: bytes, expected: Mapping[str, Any]) -> None:
    try:
        header = parse_json(line)
    except ValueError as error:
        raise PlanError(f"{path} is no log of a search; choose another --out.") from error
    if header == expected:
        return
    was = header.get("search") if isinstance(header, dict) else None
    was = was if isinstance(was, dict) else {}
    changed = sorted(key for key, value in expected["search"].items() if was.get(key) != value)
    raise PlanError(
        f"{path} is the log of another search (it differs in {', '.join(changed) or 'its form'}); "
        "choose another --out, or remove the file."
    )


def _score(raw: Mapping[str, Any]) -> Score:
    samples = np.array(raw["samples"], dtype=np.float64)
    # An infinite sum has no mean.
    if samples.ndim != 1 or not len(samples) or not math.isfinite(math.fsum(samples)):
        raise ValueError("a fitness is no finite number")
    return Score(samples, int(raw["layers"]), float(raw["seconds"]))


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
    task: Task, fitness: Fitness, log: SearchLog, publish: Callable[[SearchOutcome], None]
) -> Generator[Progress, None, SearchOutcome]:
    """Algorithm 1 of arXiv:2603.06003.

    Scores in the log are not measured again, so an interrupted search resumes. `publish` gets the
    state after each generation, and when the search ends early, unless it is killed.
    """
    running, is_done = _Search(task, fitness, log), False
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


class _Search:
    """A search in progress: a population, and the scores of all candidates so far."""

    def __init__(self, task: Task, fitness: Fitness, log: SearchLog) -> None:
        self._space, self._settings = task.space, task.settings
        self._fitness, self._log = fitness, log
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

    def score(self) -> Generator[Progress, None, None]:
        """Score every new candidate of the population."""
        state, parents = self._state, self._best(self._generations[-1] if self._generations else ())
        # Sorted, so that candidates with equal first layers share one run of these.
        new = [each for each in state.candidates if each.number not in self.scores]
        new.sort(key=lambda each: each.removed)
        unknown = [each.removed for each in new if each.removed not in self._log.scores]
        seconds = (yield from self._fitness.prepare(unknown)) if unknown else 0.0
        for candidate in new:
            yield self._progress()
            score = self._log.scores.get(candidate.removed)
            if score is None:
                score = self._measure(candidate.removed, seconds)
                self._log.score(candidate, score)
            self.scores[candidate.number] = score
            # The next parents as far as known, and the parents of candidates still to be scored.
            scored = tuple(number for number in state.members if number in self.scores)
            numbers = dict.fromkeys([*self._best(scored), *parents])
            self._fitness.hold([state.candidates[number].removed for number in numbers])
        self._generations.append(state.members)
        self._log.generation(self._summary())

    def _best(self, numbers: tuple[int, ...]) -> list[int]:
        """The elites among candidates, best first."""
        ordered = sorted(numbers, key=lambda number: (-self.scores[number].fitness, number))
        return ordered[: self._settings.elites]

    def _measure(self, removed: Removed, before: float) -> Score:
        started = time.monotonic()
        blocks = [
            self._fitness.block(removed, number) for number in range(self._fitness.num_blocks)
        ]
        values = np.concatenate([block.values for block in blocks])
        if not np.isfinite(values).all():
            raise PlanError(
                f"The model gives no finite fitness when its layers lose {list(removed)} experts; "
                "try --dtype float32, or another corpus."
            )
        layers = sum(block.layers for block in blocks)
        return Score(values, layers, before + time.monotonic() - started)

    def outcome(self) -> SearchOutcome:
        """The state of the search."""
        return SearchOutcome(
            candidates=tuple(each for each in self._state.candidates if each.number in self.scores),
            scores=dict(self.scores),
            generations=tuple(self._generations),
            is_finished=self._is_last and len(self._generations) == self._state.generation + 1,
            whole_layers=self._fitness.num_blocks * self._fitness.num_layers,
        )

    def _progress(self, note: str = "") -> Progress:
        settings, generation = self._settings, self._state.generation
        to_come = (settings.generations - generation) * (settings.population - settings.elites)
        phase = f"generation {generation} of {settings.generations}"
        total = len(self._state.candidates) + to_come
        return Progress(phase, len(self.scores), total, "candidates", note)

    def _summary(self) -> dict[str, float | int]:
        """The complete generation, and the cost so far."""
        outcome = self.outcome()
        members = [self.scores[number] for number in self._generations[-1]]
        return {
            "generation": self._state.generation,
            "best": outcome.scores[outcome.best.number].fitness,
            "median": statistics.median(each.fitness for each in members),
            "candidates": len(self.scores),
            "layers": outcome.layers,
            "seconds": round(outcome.seconds, 3),
        }

    def generation_progress(self) -> Progress:
        """The complete generation in one line."""
        now = self._summary()
        layers = self._fitness.num_blocks * self._fitness.num_layers * len(self.scores)
        return self._progress(
            f"generation {now['generation']}: best {now['best']:.5f}, median {now['median']:.5f}, "
            f"{now['candidates']} candidates, {layers / max(1, now['layers']):.2f}x fewer layers"
        )
