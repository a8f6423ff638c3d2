"""One run of a search: its definition, the model that it loads, the files that it writes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout

from analysis.calibration.distributed import Processes, join
from analysis.calibration.loading import (
    CalibrationSettings,
    offload_space,
    resolve_device,
    resolve_dtype,
)
from analysis.errors import PlanError
from analysis.files.durable import write_durably
from analysis.files.json_text import plain_json
from analysis.files.locking import locked
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.progress import NOTHING, Progress
from pruning.engine.candidate import MeasureSettings
from pruning.measurements.table import Measurements
from pruning.measures.drawn_samples import DrawnSamples
from pruning.measures.samples import make_samples
from pruning.plan.constraints import Constraints
from pruning.plan.plan import Provenance, PruningPlan, model_ref
from pruning.plan.selection import allocation_of, select_experts
from pruning.plan.units import Removed
from pruning.requests.recipe import Recipe
from pruning.requests.recipe_file import save_recipe
from pruning.search.costs import RunCosts, search_parts, search_passes
from pruning.search.fitness import (
    RunFitness,
    StreamedRuns,
    load_for,
    masked_fitness,
    subject_of,
)
from pruning.search.run import Fitness, SearchOutcome, Task, search
from pruning.search.scores import Scores
from pruning.search.shared_runs import SharedRuns, load_search_share, shared_subject
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
    table: Measurements  # in which scores are looked up and kept

    def plan(self, removed: Removed) -> PruningPlan:
        """The plan that removes so many experts of each layer, the last of the order."""
        return select_experts(
            self.ranking,
            allocation_of(self.model.layers, removed),
            model=model_ref(self.model),
            provenance=self.provenance,
            constraints=self.constraints,
        )

    def scores(self, processes: Processes) -> Scores:
        """The scores of its candidates that the table has."""
        header = self.header()
        return Scores(
            table=self.table,
            model=self.model.identity,
            plan_of=self.plan,
            sizes=self.task.space.units.sizes,
            sequences=self.search_samples.sequences,
            measure=self.measure,
            dtype=header["dtype"],
            seed=self.task.settings.seed,
            made={name: header[name] for name in ("batch_size", "device")},
            processes=processes,
        )

    @property
    def costs(self) -> RunCosts:
        """What runs over its samples cost."""
        sequences, by_layers = self.search_samples.sequences, self.running.placement.stream_layers
        tokens, positions = sequences.num_tokens, sequences.num_counted
        return RunCosts.of(self.model, tokens, positions, [self.measure], by_layers=by_layers)

    def header(self) -> dict[str, Any]:
        """All that decides the outcome, as plain JSON."""
        space, sequences = self.task.space, self.search_samples.sequences
        return {
            "model": {"name": self.model.name, "identity": self.model.identity},
            "spec": self.provenance.spec,
            "runs": list(self.provenance.runs),
            "order": order_digest(self.ranking),
            "rooms": [
                [least, most, space.units.step]
                for least, most in zip(space.units.least, space.units.most, strict=True)
            ],
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

    The folder gets the recipe, the result and the plan of the best candidate so far after every
    generation, the plan named as unfinished until the end; scores go to the table of measurements.
    Under a launcher, processes share the layers, see `SharedRuns`, or the samples where layers are
    streamed. For `max_bytes` see `MaskedRuns`.

    Raises:
        PlanError: another process searches in the folder, or it has another search.
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

    with _locked_by_first(folder, processes):
        if finished := _finished(folder, header, processes):
            count = len(finished.entries)
            yield Progress("searching", count, count, "candidates", whole=NOTHING)
            return finished
        if processes.is_first:
            yield from problem.table.notes(problem.model.identity)
        with offload_space(problem.running.placement) as offload:
            costs = problem.costs
            parts = search_parts(costs, problem.task.settings)
            making = make_fitness(problem, folder, processes, max_bytes, offload)
            fitness = yield from parts.by_phase(making)
            scores = problem.scores(processes)
            searching = search(problem.task, fitness, scores, publish, costs)
            yield from parts.run("searching", searching)
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
    seed = problem.task.settings.seed
    measured = MeasureSettings((problem.measure,), seed)
    if running.placement.stream_layers:
        samples = make_samples(sequences, running.batch_size, processes)
        runs = StreamedRuns(model, samples, running, problem.plan, measured, folder)
        return RunFitness(runs, problem.measure)
    samples = make_samples(sequences, running.batch_size)
    if processes.world > 1:
        passes = search_passes(problem.costs, problem.task.settings)
        costs = problem.costs.by_layer(passes)
        share = yield from load_search_share(model, sequences, running, costs)
        shared = yield from shared_subject(model, share, samples, problem.plan)
        # All candidates remove equally many, so two that differ do so in at least two layers.
        return RunFitness(SharedRuns(shared, measured, max_bytes, 2), problem.measure)
    loaded = yield from load_for(model, sequences, running, offload)
    subject = yield from subject_of(model, loaded, samples, problem.plan)
    return masked_fitness(subject, problem.measure, seed, max_bytes)


@contextmanager
def _locked_by_first(folder: Path, processes: Processes) -> Iterator[None]:
    """Keep other searches out of the folder, for which the first process holds the lock."""
    with ExitStack() as stack:
        with processes.together():
            if processes.is_first:
                try:
                    stack.enter_context(locked(folder / RESULT_NAME))
                except Timeout as error:
                    raise PlanError(
                        f"Another process is searching in {folder}; wait for it."
                    ) from error
        yield


def _finished(folder: Path, header: Mapping[str, Any], processes: Processes) -> SearchResult | None:
    """The finished result of this search, if it is there; a PlanError if it is of another one."""
    path, is_finished = folder / RESULT_NAME, False
    with processes.together():
        if processes.is_first and path.is_file():
            previous = load_search(path)
            _check_header(path, previous.header, plain_json(header))
            is_there = previous.is_finished and (folder / PLAN_NAME).is_file()
            is_finished = is_there and previous.header == plain_json(header)
    if not processes.share(is_finished):
        return None
    with processes.together():
        return load_search(path)


def _check_header(path: Path, was: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    names = dict.fromkeys([*header, *was])
    changed = [name for name in names if _kept(was, name) != _kept(header, name)]
    if changed:
        raise PlanError(
            f"{path} is of another search (it differs in {', '.join(sorted(changed))}); "
            "choose another --out, or remove the file."
        )


def _kept(header: Mapping[str, Any], name: str) -> Any:
    """A part of a header that a longer search keeps: generations decide no draw and no score."""
    part = header.get(name)
    if name == "settings" and isinstance(part, dict):
        return {key: value for key, value in part.items() if key != "generations"}
    return part
