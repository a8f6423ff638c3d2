"""Searches as files next to the statistics, shipped or run by jobs, and as tables. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError, model_validator

from analysis.errors import PlanError, wrong_schema
from analysis.families.base import MoELayer
from analysis.files.content import read_whole
from analysis.files.json_text import parse_json
from analysis.files.naming import digest_of
from analysis.files.text_file import read_text_file
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from pruning.measures.result import MEASURES, SampleCount, check_possible
from pruning.measures.store import SEAL, Count, check_seal, first_problem, seal_of
from pruning.plan.units import Removed
from pruning.search.run import SearchOutcome
from pruning.spec.spec import PlanSpec

SCHEMA_VERSION = 1
RESULT_NAME = "search.json"
PLAN_NAME = "plan.json"
REPAIRED_NAME = "repaired.json"  # of a recipe with the key repair
UNFINISHED_PLAN_NAME = "unfinished.plan.json"  # of the best so far, until the search ends
HISTORY_COLUMNS = {
    "generation": "int64",
    "candidate": "int64",
    "fitness": "float64",
    "parent": "Int64",
    "origin": "object",
    "is_new": "bool",
}
SCHEDULE_COLUMNS = ("layer", "experts", "kept", "removed", "density")


class Entry(NamedTuple):
    """A candidate and its score; an array in the file."""

    number: Count  # see `Candidate`, as for the next three
    generation: Count
    parent: Count | None
    origin: str
    fitness: float  # mean over samples, higher is better
    samples: Count  # how many it saw
    removed: Removed  # experts that each layer loses


class SearchResult(BaseModel):
    """What a search found, complete or so far."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, allow_inf_nan=False)

    header: Mapping[str, Any] = Field(validation_alias="search")  # all that decides it, plain JSON
    experts: Mapping[int, int]  # decoder index of each sparse layer -> its experts
    entries: tuple[Entry, ...] = Field(validation_alias="candidates")  # all with a score, by number
    generations: tuple[tuple[int, ...], ...]  # members of each complete generation
    best: int = Field(validation_alias=AliasPath("best", "candidate"))  # number of a candidate
    is_finished: bool = Field(validation_alias="finished")  # whether all generations are complete
    # candidates, layers (layer evaluations), whole_layers (those without reuse), seconds; depends
    # on interruptions and the machine.
    cost: Mapping[str, int | float]

    @model_validator(mode="after")
    def _candidates_fit_together(self) -> Self:
        numbers = {entry.number for entry in self.entries}
        references = {self.best, *(number for members in self.generations for number in members)}
        if missing := sorted(references - numbers):
            raise ValueError(f"candidate {missing[0]} is named, but not there")
        for entry in self.entries:
            if len(entry.removed) != len(self.experts):
                raise ValueError("a candidate has not one number for each layer")
            pairs = zip(entry.removed, self.experts.values(), strict=True)
            if not all(0 <= count <= every for count, every in pairs):
                raise ValueError(f"candidate {entry.number} removes what layers do not have")
        if missing_costs := {"candidates", "layers", "whole_layers", "seconds"} - set(self.cost):
            raise ValueError(f"its cost lacks {min(missing_costs)}")
        check_possible("cost", *self.cost.values())
        measure = MEASURES.get(str(self.header.get("fitness")))
        scores = [entry.fitness for entry in self.entries if entry.fitness is not None]
        if measure:
            check_possible(measure.name, *scores, sign=1 if measure.higher_is_better else -1)
        return self

    @property
    def best_entry(self) -> Entry:
        """The best candidate."""
        return next(entry for entry in self.entries if entry.number == self.best)

    def history(self) -> pd.DataFrame:
        """Table of HISTORY_COLUMNS, one row per member of a generation."""
        by_number = {entry.number: entry for entry in self.entries}
        rows = [
            (
                number,
                entry.number,
                entry.fitness,
                entry.parent,
                entry.origin,
                entry.generation == number,
            )
            for number, members in enumerate(self.generations)
            for entry in map(by_number.__getitem__, members)
        ]
        return pd.DataFrame(rows, columns=list(HISTORY_COLUMNS)).astype(HISTORY_COLUMNS)

    def schedule(self, number: int | None = None) -> pd.DataFrame:
        """Table of SCHEDULE_COLUMNS of a candidate, by default the best."""
        entry_number = self.best if number is None else number
        removed = next(entry.removed for entry in self.entries if entry.number == entry_number)
        rows = [
            (layer, experts, experts - count, count, (experts - count) / experts)
            for (layer, experts), count in zip(self.experts.items(), removed, strict=True)
        ]
        return pd.DataFrame(rows, columns=list(SCHEDULE_COLUMNS))

    def to_json(self) -> str:
        """The text of search.json, one line per candidate."""
        best = self.best_entry
        pairs = zip(self.experts.items(), best.removed, strict=True)
        parts = {
            "schema_version": json.dumps(SCHEMA_VERSION),
            "search": _object(self.header),
            "experts": json.dumps({str(layer): count for layer, count in self.experts.items()}),
            "finished": json.dumps(self.is_finished),
            "best": _object(
                {
                    "candidate": best.number,
                    "generation": best.generation,
                    "fitness": best.fitness,
                    "kept": {str(layer): experts - count for (layer, experts), count in pairs},
                }
            ),
            "cost": json.dumps(dict(self.cost)),
            "generations": _array(self.generations),
            "candidates": _array(self.entries),
        }
        content = {key: json.loads(text) for key, text in parts.items()}
        parts[SEAL] = json.dumps(seal_of(content))
        lines = (f"  {json.dumps(key)}: {text}" for key, text in parts.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _object(values: Mapping[str, Any]) -> str:
    """A JSON object with one line per key."""
    lines = (
        f"    {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
    )
    return "{\n" + ",\n".join(lines) + "\n  }"


def _array(values: Iterable[Any]) -> str:
    """A JSON array with one line per element."""
    return "[\n" + ",\n".join(f"    {json.dumps(value)}" for value in values) + "\n  ]"


def progress_of(history: pd.DataFrame) -> pd.DataFrame:
    """Table `generation, best, median, num_new` of a search's history.

    `best` is over all generations so far, `median` over the members; `num_new` counts members that
    no earlier generation had.
    """
    by_generation = history.groupby("generation").agg(
        best=("fitness", "max"), median=("fitness", "median"), num_new=("is_new", "sum")
    )
    return by_generation.assign(best=by_generation["best"].cummax()).reset_index()


def result_of(
    outcome: SearchOutcome, layers: Sequence[MoELayer], header: Mapping[str, Any]
) -> SearchResult:
    """The result of an outcome."""
    entries = [
        Entry(
            candidate.number,
            candidate.generation,
            candidate.parent,
            candidate.origin,
            score.fitness,
            len(score.samples),
            candidate.removed,
        )
        for candidate in outcome.candidates
        for score in (outcome.scores[candidate.number],)
    ]
    cost = {
        "candidates": len(entries),
        "layers": outcome.layers,
        "whole_layers": outcome.whole_layers * len(entries),
        "seconds": round(outcome.seconds, 3),
    }
    return SearchResult(
        header=header,
        experts={layer.index: layer.num_experts for layer in layers},
        entries=tuple(entries),
        generations=outcome.generations,
        best=outcome.best.number,
        is_finished=outcome.is_finished,
        cost=cost,
    )


def result_from_json(text: str | bytes, name: str = "search.json") -> SearchResult:
    """Parse a search.json; a PlanError if it is none."""
    try:
        raw = parse_json(text)
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if isinstance(raw, dict) and version != SCHEMA_VERSION:
            raise PlanError(
                wrong_schema(name, version, SCHEMA_VERSION, "make it with `moeprune search`")
            )
        result = SearchResult.model_validate_json(text, strict=True)
        check_seal(raw.pop(SEAL, None), raw)
    except ValueError as error:
        raise PlanError(f"{name} is no result of a search: {first_problem(error)}.") from error
    return result


def load_search(path: Path) -> SearchResult:
    """The result in a file; a PlanError if it cannot be read."""
    return result_from_json(read_text_file("search", path), str(path))


FOLDER: Final = "searches"
RECIPE_NAME: Final = "recipe.yaml"
SEARCH: Final = "search"  # the schedule of plans that a search found


class KnownSearch(BaseModel):
    """A search in a statistics directory."""

    model_config = ConfigDict(frozen=True)

    search_id: str  # name of its file or folder
    path: Path  # of its search.json
    result: SearchResult
    identity: str = Field(validation_alias=AliasPath("model", "identity"))
    spec: PlanSpec  # what ranks, the budget, what candidates respect
    runs: tuple[str, ...]  # ids of the calibration runs that rank
    order: str  # see `order_digest`
    removed: int  # experts that all layers lose together
    fitness: str  # name of the measure
    corpus: str = Field(validation_alias=AliasPath("corpus", "name"))  # of the search samples
    samples: int = Field(validation_alias=AliasPath("corpus", "samples"))
    documents: int | None = Field(validation_alias=AliasPath("corpus", "num_documents"))
    batch_size: int
    settings: Mapping[str, Any]  # see `SearchSettings.to_dict`

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Its file, the order that it took, and the best that it knows."""
        return (str(self.path), self.order, sorted(self.kept.items()))

    @property
    def criterion(self) -> str:
        """What orders the experts within layers."""
        return self.spec.ranking.criterion

    @property
    def kept(self) -> dict[int, int]:
        """Layer -> experts kept by the best candidate."""
        table = self.result.schedule()
        return dict(zip(table["layer"].tolist(), table["kept"].tolist(), strict=True))

    @property
    def recipe(self) -> Path | None:
        """Its recipe; only searches of jobs have one."""
        path = self.path.with_name(RECIPE_NAME)
        return path if self.path.name == RESULT_NAME and path.is_file() else None

    @property
    def uniform(self) -> float | None:
        """Fitness of the uniform schedule; None if the search did not start from it."""
        return next((e.fitness for e in self.result.entries if e.origin == "uniform"), None)

    @property
    def count(self) -> SampleCount:
        """The samples that it judged by."""
        return SampleCount(self.samples, self.documents)

    def parameters(self) -> dict[str, Any]:
        """What its plans record of it."""
        return schedule_parameters(self.settings, self.fitness, self.corpus, self.samples)

    def check_layers(self, model: MoEModel) -> None:
        """Refuse a search whose layers are not those of the model that it names."""
        layers = {layer.index: layer.num_experts for layer in model.layers}
        if dict(self.result.experts) != layers:
            raise PlanError(f"{self.path} has other layers than {model.name}; remove the file.")


def schedule_parameters(
    settings: Mapping[str, Any], fitness: str, corpus: str, samples: int
) -> dict[str, Any]:
    """What plans record of their search, besides criterion and budget."""
    return {**settings, "fitness": fitness, "corpus": corpus, "samples": samples}


def order_digest(ranking: pd.DataFrame) -> str:
    """SHA-256 of the order of experts within each layer, which a search takes as given."""
    ordered = ranking.sort_values(["layer", "rank"])
    order = {str(layer): rows["expert"].tolist() for layer, rows in ordered.groupby("layer")}
    return digest_of({"order": order})


def read_known(path: Path) -> KnownSearch:
    """The search in a file of the form of search.json; a PlanError if it cannot be read."""
    result = load_search(path)
    name = path.parent.name if path.name == RESULT_NAME else path.stem
    file_fields = {"search_id": name, "path": path, "result": result}
    if "spec" not in result.header:
        raise PlanError(
            f"{path} is of an earlier version, which did not record what was asked; make it again "
            "with `moeprune search`, or remove it."
        )
    try:
        search = KnownSearch.model_validate({**result.header, **file_fields})
    except ValidationError as error:
        reason = first_problem(error)
        raise PlanError(f"{path} does not say which search it is ({reason}); remove it.") from error
    if any(sum(entry.removed) != search.removed for entry in result.entries):
        raise PlanError(f"{path} holds candidates of another budget than its own; remove it.")
    return search


def search_in(path: Path) -> KnownSearch | None:
    """The search in a schedule file; None if it is another file of numbers."""
    if path.suffix != ".json":
        return None
    try:
        raw = parse_json(read_whole(path))
    except (OSError, ValueError):
        return None  # the reader of its numbers reports the error
    is_search = isinstance(raw, dict) and {"search", "candidates"} <= raw.keys()
    return read_known(path) if is_search else None


class SearchStore:
    """Searches of one or more statistics directories; new ones go to the first."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._folders = tuple(directory / FOLDER for directory in directories)

    def folder(self, search_id: str) -> Path:
        """The folder in which a search of this name runs."""
        return self._folders[0] / search_id

    def paths(self) -> dict[str, Path]:
        """Name -> file of every search with a result; the first folder with a name wins."""
        paths: dict[str, Path] = {}
        for folder in self._folders:
            for path in sorted(folder.glob(f"*/{RESULT_NAME}")):
                paths.setdefault(path.parent.name, path)
            for path in sorted(folder.glob("*.json")):
                if path.name != RESULT_NAME:
                    paths.setdefault(path.stem, path)
        return dict(sorted(paths.items()))

    def of_model(
        self,
        model: MoEModel,
        on_problem: Callable[[PlanError], None] | None = None,
        read: Callable[[Path], KnownSearch] = read_known,
    ) -> list[KnownSearch]:
        """The searches of a model by name; damaged ones go to `on_problem`.

        `read` is `read_known` or a cached version of it.
        """
        searches = []
        for path in self.paths().values():
            try:
                search = read(path)
                if search.identity == model.identity:
                    search.check_layers(model)
                    searches.append(search)
            except PlanError as error:
                if on_problem:
                    on_problem(error)
        return searches


def best_fitting(
    searches: Sequence[KnownSearch], criterion: str, removed: int
) -> KnownSearch | None:
    """The longest search by a criterion on a budget, in samples x candidates; None without one."""
    fitting = [
        search for search in searches if (search.criterion, search.removed) == (criterion, removed)
    ]
    return max(
        fitting, key=lambda search: search.samples * len(search.result.entries), default=None
    )
