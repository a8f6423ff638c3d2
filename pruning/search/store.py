"""Searches stored next to the statistics: shipped ones and those of jobs. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from analysis.errors import PlanError
from analysis.json_text import parse_json
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.stats.store import digest_of
from pruning.evaluate.store import first_problem
from pruning.search.result import RESULT_NAME, SearchResult, load_search

FOLDER: Final = "searches"
RECIPE_NAME: Final = "recipe.yaml"
SEARCH: Final = "search"
"""Name of the schedule of plans that a search found."""


class KnownSearch(BaseModel):
    """A search that was found in a folder of statistics."""

    model_config = ConfigDict(frozen=True)

    search_id: str  # name of its file or folder
    path: Path  # of its search.json
    result: SearchResult  # what it found so far
    identity: str = Field(validation_alias=AliasPath("model", "identity"))
    criterion: str  # name of what orders the experts within layers
    order: str  # see `order_digest`
    removed: int  # experts that all layers lose together
    fitness: str  # name of the measure
    # Name of the corpus that candidates were judged on, and how many of its samples.
    corpus: str = Field(validation_alias=AliasPath("corpus", "name"))
    samples: int = Field(validation_alias=AliasPath("corpus", "samples"))
    batch_size: int  # samples of one forward
    constraints: Mapping[str, Any]  # what plans respect, see `Constraints.to_dict`
    settings: Mapping[str, Any]  # see `SearchSettings.to_dict`

    @property
    def kept(self) -> dict[int, int]:
        """Layer -> experts kept by the best candidate."""
        table = self.result.schedule()
        return dict(zip(table["layer"].tolist(), table["kept"].tolist(), strict=True))

    @property
    def recipe(self) -> Path | None:
        """The recipe that it runs by, which is there if a job made it."""
        path = self.path.with_name(RECIPE_NAME)
        return path if self.path.name == RESULT_NAME and path.is_file() else None

    @property
    def uniform(self) -> float | None:
        """Fitness of the uniform schedule; None where the search did not begin with it."""
        return next((e.fitness for e in self.result.entries if e.origin == "uniform"), None)

    def parameters(self) -> dict[str, Any]:
        """What its plans say of how they were made."""
        return schedule_parameters(self.settings, self.fitness, self.corpus, self.samples)

    def check_layers(self, model: MoEModel) -> None:
        """Refuse a search with other layers than the model whose identity it names."""
        layers = {layer.index: layer.num_experts for layer in model.layers}
        if dict(self.result.experts) != layers:
            raise PlanError(f"{self.path} has other layers than {model.name}; remove the file.")


def schedule_parameters(
    settings: Mapping[str, Any], fitness: str, corpus: str, samples: int
) -> dict[str, Any]:
    """Facts on the search of a plan, besides its criterion and budget."""
    return {**settings, "fitness": fitness, "corpus": corpus, "samples": samples}


def order_digest(ranking: pd.DataFrame) -> str:
    """SHA-256 of the order of the experts within each layer: what a search takes as given."""
    ordered = ranking.sort_values(["layer", "rank"])
    order = {str(layer): rows["expert"].tolist() for layer, rows in ordered.groupby("layer")}
    return digest_of({"order": order})


def read_known(path: Path) -> KnownSearch:
    """The search in a search.json, or in a file of that form with another name.

    Raises a PlanError where it cannot be read or does not say which search it is.
    """
    result = load_search(path)
    name = path.parent.name if path.name == RESULT_NAME else path.stem
    own = {"search_id": name, "path": path, "result": result}
    try:
        known = KnownSearch.model_validate({**result.header, **own})
    except ValidationError as error:
        reason = first_problem(error)
        raise PlanError(f"{path} does not say which search it is ({reason}); remove it.") from error
    if any(sum(entry.removed) != known.removed for entry in result.entries):
        raise PlanError(f"{path} holds candidates of another budget than its own; remove it.")
    return known


def search_in(path: Path) -> KnownSearch | None:
    """The search that a schedule file holds; None where it is another file of numbers."""
    if path.suffix != ".json":
        return None
    try:
        raw = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None  # whoever reads its numbers says what is wrong
    is_search = isinstance(raw, dict) and {"search", "candidates"} <= raw.keys()
    return read_known(path) if is_search else None


class SearchStore:
    """Searches of one or more folders of statistics; new ones go to the first."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._folders = tuple(directory / FOLDER for directory in directories)

    def folder(self, search_id: str) -> Path:
        """Where a search of this name runs."""
        return self._folders[0] / search_id

    def paths(self) -> dict[str, Path]:
        """Name -> file of every search that has a result; of one name the first folder's."""
        found: dict[str, Path] = {}
        for folder in self._folders:
            for path in sorted(folder.glob(f"*/{RESULT_NAME}")):
                found.setdefault(path.parent.name, path)
            for path in sorted(folder.glob("*.json")):
                if path.name != RESULT_NAME:
                    found.setdefault(path.stem, path)
        return dict(sorted(found.items()))

    def of_model(
        self,
        model: MoEModel,
        on_problem: Callable[[PlanError], None] | None = None,
        read: Callable[[Path], KnownSearch] = read_known,
    ) -> list[KnownSearch]:
        """The searches of a model by name; damaged ones are reported and left out.

        `on_problem` gets what is wrong with a file; `read` is `read_known`, or the same with a
        memory.
        """
        found = []
        for path in self.paths().values():
            try:
                known = read(path)
                if known.identity == model.identity:
                    known.check_layers(model)
                    found.append(known)
            except PlanError as error:
                if on_problem:
                    on_problem(error)
        return found


def best_fitting(known: Sequence[KnownSearch], criterion: str, removed: int) -> KnownSearch | None:
    """Of the searches by a criterion on a budget the one that looked longest; None without one."""
    fitting = [each for each in known if (each.criterion, each.removed) == (criterion, removed)]
    return max(fitting, key=lambda each: each.samples * len(each.result.entries), default=None)
