"""What an action is: a request, how it runs, and how what came of it is told.

Its command with help, --json and --dry-run, its job with the row in the list, and the method
`Model.run` follow from it; see `listing`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from analysis.errors import UserError
from analysis.numbers.words import plain, plain_rows
from pruning.requests.model import ActionRequest, ModelRequest
from pruning.requests.recipe_steps import SearchRequest
from pruning.spec.base import validated
from pruning.tasks import Steps
from pruning.tasks.probing import probed, way_of

if TYPE_CHECKING:
    import pandas as pd

    from pruning.plan.plan import PruningPlan

# Fields that stored requests of earlier versions have.
_FORMER: Final = ("names",)
Asked = TypeVar("Asked", bound=ActionRequest)
Value = TypeVar("Value")
Cells = Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people; of a narrow window the columns `spare` are left out, last first."""

    title: str
    columns: Sequence[str]
    rows: Cells
    spare: Sequence[str] = ()
    whole: Sequence[str] = ()  # columns whose words stay on one line

    @classmethod
    def of(cls, title: str, frame: pd.DataFrame) -> Table:
        """A pandas table without its index; absent values are empty."""
        return cls(title, tuple(map(str, frame.columns)), plain_rows(frame))


@dataclass(frozen=True, slots=True)
class Note:
    """Words besides the result, which a person may leave out."""

    words: str


@dataclass(frozen=True, slots=True)
class Line:
    """A command line besides the result, to be copied in one piece; it may be left out too."""

    words: str


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts for people, next to each other below their names; `values` has them for --json.

    They may be long, and a person's own: a job does not keep them.
    """

    texts: Mapping[str, str]
    values: Mapping[str, object]


Section = Table | Note | Line | Texts | str


@dataclass(frozen=True, slots=True)
class Call(Generic[Asked]):
    """A request, and the files that a command names beside it."""

    request: Asked
    plans: tuple[Path, ...] = ()  # from which its plans were read
    out: Path = Path()  # the file that is written


def call_of_a_job(request: Asked) -> Call[Asked]:
    """A request without files: commands that come next name them as usual."""
    more = (f"plan-{number}.json" for number in range(2, request.num_plans + 1))
    plans = ("plan.json", *more)[: request.num_plans]
    return Call(request, tuple(map(Path, plans)), Path(request.writes))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action."""

    sentence: str  # for the end of a command, and for the list of jobs
    numbers: Mapping[str, object]  # by name, for --json: bytes, counts and fractions as numbers
    shown: Sequence[Section] = ()  # before the sentence, in this order
    following: Sequence[str] = ()  # command lines that come next
    # The content of the file that the request `writes`.
    content: pd.DataFrame | PruningPlan | Mapping[str, Any] | None = None
    # Where the result lies, below the sentence of a command: others may see a list of jobs.
    lies_in: Path | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """Sentence and numbers as a job keeps them: numbers that are not finite are null."""
        text = json.dumps({"sentence": self.sentence, **self.numbers}, default=plain)
        values: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
        return values


@dataclass(frozen=True, slots=True)
class Action(Generic[Asked, Value]):
    """An action.

    A job's title has `{about}`, a model, plan or folder, and `{request}`.
    """

    request: type[Asked]  # its options are those of the command
    run: Callable[[Asked], Steps[Value]]  # imports heavy libraries when it starts
    tell: Callable[[Call[Asked], Value], Outcome]
    example: str  # the words of a command line, for the help
    title: str  # in the list of jobs
    place: str = ""  # the part of a page that lists its jobs besides Start
    cost: Callable[[Call[Asked]], Steps[Outcome]] | None = None  # what it would take: --dry-run

    def steps(self, call: Call[Asked]) -> Steps[Outcome]:
        """Run it, and tell what came of it."""
        return self.tell(call, (yield from self._run(call.request)))

    def job(self, values: dict[str, Any]) -> Steps[dict[str, Any]]:
        """Run a stored request; what a job keeps of it."""
        present = {name: value for name, value in values.items() if name not in _FORMER}
        call = call_of_a_job(validated(self.request, present))
        value = yield from self._run(call.request)
        try:
            return self.tell(call, value).plain
        except UserError as error:  # all is stored by now, though it cannot be told
            return {"sentence": f"stored; {error}"}

    def _run(self, request: Asked) -> Steps[Value]:
        """Run it, with a time left from the start."""
        steps = self.run(request)
        if not isinstance(request, ModelRequest | SearchRequest):
            return steps
        return probed(steps, lambda: way_of(request))
