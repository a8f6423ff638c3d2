"""One run of a search: its definition, the model that it loads, the files that it writes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.calibration.distributed import Processes, join
from analysis.calibration.loading import (
    CalibrationSettings,
    offload_space,
    resolve_device,
    resolve_dtype,
)
from analysis.errors import PlanError
from analysis.files.durable import write_durably
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.progress import Progress
from pruning.engine.candidate import MeasureSettings
from pruning.measures.append_log import plain_json
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.result import DECODED
from pruning.measures.samples import make_samples
from pruning.plan.allocation import Removed
from pruning.plan.constraints import Constraints
from pruning.plan.plan import Provenance, PruningPlan, model_ref, select_experts
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import save_recipe
from pruning.schedules.base import allocation_of
from pruning.search.decoding import DecodingFitness
from pruning.search.fitness import (
    RunFitness,
    SharedFitness,
    StreamedRuns,
    load_for,
    masked_fitness,
    subject_of,
)
from pruning.search.run import (
    LOG_NAME,
    Fitness,
    Score,
    SearchLog,
    SearchOutcome,
    Task,
    open_log,
    search,
)
from pruning.search.store import (
    PLAN_NAME,
    RECIPE_NAME,
    RESULT_NAME,
    UNFINISHED_PLAN_NAME,
    SearchResult,
    load_search,
    order_digest,
    result_of,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """A search, ready to run."""

    model: MoEModel  # to prune
    ranking: pd.DataFrame  # the fixed order within layers, see `select_experts`
    constraints: Constraints
    provenance: Provenance  # of the plans
    task: Task
    search_samples: DrawnSamples
    measure: str  # name of the fitness, of MEASURES
    running: CalibrationSettings  # dtype, device, batch size
    recipe: Recipe  # of the search; stored next to the result

    def plan(self, removed: Removed) -> PruningPlan:
        """The plan that removes so many experts of each layer, the last of the order."""
        return select_experts(
            self.ranking,
            allocation_of(self.model.layers, removed),
            model=model_ref(self.model),
            provenance=self.provenance,
            constraints=self.constraints,
        )

    def header(self) -> dict[str, Any]:
        """All that decides the outcome, as plain JSON."""
        space, sequences = self.task.space, self.search_samples.sequences
        return {
            "model": {"name": self.model.name, "identity": self.model.identity},
            "spec": self.provenance.spec,
            "runs": list(self.provenance.runs),
            "order": order_digest(self.ranking),
            "rooms": [[room.least, room.most, room.step] for room in space.rooms],
            "removed": space.total,
            "initial": {name: list(removed) for name, removed in self.task.seeds.items()},
            "settings": self.task.settings.to_dict(),
            "fitness": self.measure,
            "corpus": {
                "name": sequences.corpus,
                "digest": sequences.digest,
                "samples": len(sequences.rows),
                "num_documents": self.search_samples.num_documents,
                **self.search_samples.facts,
            },
            # These change the last bits of values, and a bit may decide which of two is an elite.
            "batch_size": self.running.batch_size,
            "dtype": resolve_dtype(self.running.dtype, self.model),
            "device": resolve_device(self.running.device).type,
        }


def run_search(
    problem: Problem, folder: Path, *, max_bytes: int | None = None
) -> Generator[Progress, None, SearchResult]:
    """Run the search in a folder to its end, resumed if it was interrupted.

    The folder gets the log, and after every generation the recipe, the result and the plan of the
    best candidate so far, named as unfinished until the end. Under a launcher, processes share the
    samples. For `max_bytes` see `MaskedRuns`.
    """
    processes, header = join(), problem.header()
    published: list[SearchResult] = []

    def publish(outcome: SearchOutcome) -> None:
        published.append(result_of(outcome, problem.model.layers, header))
        if not processes.is_first:
            return
        # The result last, since it states the counts of the plan next to it.
        best, is_last = problem.plan(published[-1].best_entry.removed), outcome.is_finished
        best.save(folder / (PLAN_NAME if is_last else UNFINISHED_PLAN_NAME))
        (folder / (UNFINISHED_PLAN_NAME if is_last else PLAN_NAME)).unlink(missing_ok=True)
        save_recipe(problem.recipe, folder / RECIPE_NAME)
        path = folder / RESULT_NAME
        try:
            write_durably(path, published[-1].to_json().encode())
        except OSError as error:
            raise PlanError(f"The result cannot be written to {path}: {error.strerror}.") from error

    with _open_shared_log(folder, header, processes) as log:
        if processes.share(all((folder / name).is_file() for name in (RESULT_NAME, PLAN_NAME))):
            with processes.together():
                previous = load_search(folder / RESULT_NAME)
            if previous.is_finished and previous.header == plain_json(header):
                count = len(previous.entries)
                yield Progress("searching", count, count, "candidates")
                return previous
        with offload_space(problem.running.placement) as offload:
            fitness = yield from make_fitness(problem, folder, processes, max_bytes, offload)
            yield from search(problem.task, fitness, log, publish)
    with processes.together():
        pass  # no process reads the files before the first one has written them
    return published[-1]


def make_fitness(
    problem: Problem,
    folder: Path,
    processes: Processes,
    max_bytes: int | None = None,
    offload: Path | None = None,
) -> Generator[Progress, None, Fitness]:
    """Load the model and run it over the samples.

    Streamed layers load later, and an interrupted pass leaves in `folder` what it resumes from.
    `offload` takes weights that fit nowhere else; for `max_bytes` see `MaskedRuns`.
    """
    model, sequences, running = problem.model, problem.search_samples.sequences, problem.running
    fitness: Fitness
    seed = problem.task.settings.seed
    if running.placement.stream_layers:
        samples = make_samples(sequences, running.batch_size, processes)
        measured = MeasureSettings((problem.measure,), seed)
        runs = StreamedRuns(model, samples, running, problem.plan, measured, folder)
        fitness = RunFitness(runs, problem.measure)
        return fitness if processes.world == 1 else SharedFitness(fitness, processes)
    samples = make_samples(sequences, running.batch_size)
    with processes.together():
        loaded = yield from load_for(model, sequences, running, offload)
        if problem.measure in DECODED:
            fitness = DecodingFitness(loaded, model.family, samples, problem.plan, seed)
        else:
            subject = yield from subject_of(model, loaded, samples, problem.plan)
            fitness = masked_fitness(subject, problem.measure, seed, max_bytes)
    return fitness if processes.world == 1 else SharedFitness(fitness, processes)


@contextmanager
def _open_shared_log(
    folder: Path, header: Mapping[str, Any], processes: Processes
) -> Iterator[SearchLog]:
    """The open log in the first process, and its scores in all processes."""
    path = folder / LOG_NAME
    settings = {key: value for key, value in header["settings"].items() if key != "generations"}
    # The number of generations decides no draw and no score, so a longer search continues.
    log_header = {**header, "settings": settings}
    opened = open_log(path, log_header) if processes.is_first else nullcontext(SearchLog({}))
    with ExitStack() as stack:
        with processes.together():
            log = stack.enter_context(opened)
        plain = [
            [list(removed), score.samples.tolist(), score.layers, score.seconds]
            for removed, score in log.scores.items()
        ]
        for removed, samples, *others in processes.share(plain):
            log.scores[tuple(removed)] = Score(np.array(samples, dtype=np.float64), *others)
        yield log
