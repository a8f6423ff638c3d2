"""Commands of actions: each follows from a row of the table, see `pruning.actions.listing`."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.model.opening import load_model_index
from app.cli import options
from app.cli.derive import Handler, command
from app.cli.files import save_plan, write_result, write_table
from app.console import finish, follow, note, note_command, say, show_table, show_texts
from pruning.actions.action import Action, Call, Line, Note, Outcome, Section, Table, Texts
from pruning.actions.listing import SENTENCES, action
from pruning.plan.plan import PruningPlan
from pruning.plan.plan_file import load_plan
from pruning.requests.model import ModelRequest
from pruning.tasks import Steps

_TABLES = (".csv", ".parquet")
# Action -> the module of its command, if that has more options than follow from the row.
_OWN = {
    "calibrate": "app.cli.calibrate",
    "sweep": "app.cli.sweep",
    "benchmark": "app.cli.benchmark",
    "export": "app.cli.ship",
    "search": "app.cli.prune",
}


@cache
def action_command(name: str) -> Handler:
    """The command of an action."""
    row = action(name)
    own = import_module(_OWN[name]) if name in _OWN else None
    made: Handler = getattr(own, name) if own else command(row.request)(_handler(row))
    # Of its own docstring the first line is for readers of the code.
    more = (inspect.getdoc(made) or "").split("\n\n")[1:]
    words = [SENTENCES[name], *more, f"Example: moeprune {row.example}"]
    made.__name__, made.__doc__ = name, "\n\n".join(words)
    return made


def _handler(row: Action[Any, Any]) -> Handler:
    """Runs an action, and prints what came of it."""

    def handler(
        request: Any,
        *,
        plans: tuple[Path, ...] = (),
        out_file: Path = Path(),
        dry_run: bool = False,
    ) -> None:
        if plans:
            _check_plans(request, plans)
        perform(row, Call(request, plans, out_file), dry_run=dry_run)

    handler.__signature__ = inspect.Signature(_own_parameters(row))  # type: ignore[attr-defined]
    return handler


def _own_parameters(row: Action[Any, Any]) -> list[inspect.Parameter]:
    """The options of the command that are no part of the request."""
    parameters = []
    if name := row.request.writes:
        kind: Any = options.OutTable if Path(name).suffix in _TABLES else options.Out
        parameters.append(_parameter("out_file", kind, Path(name)))
    if row.cost:
        kind = options.Cost
        parameters.append(_parameter("dry_run", kind, default=False))
    return parameters


def _parameter(name: str, kind: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _check_plans(request: ModelRequest, files: Iterable[Path]) -> None:
    """Refuse a plan of another model by the name of its file, which a request does not know."""
    if not request.model:  # the plan names it
        return
    model = load_model_index(request.model, revision=request.revision)
    for path in files:
        load_plan(path, model=model)


def perform(
    row: Action[Any, Any],
    call: Call[Any],
    *,
    dry_run: bool = False,
    run: Callable[[Steps[Outcome]], Outcome] = follow,
) -> None:
    """Run an action, or say what it would take, and print what came of it.

    `run` shows how far it is.
    """
    outcome = run(row.cost(call) if row.cost and dry_run else row.steps(call))
    show(outcome.shown)
    write(outcome, call)
    end(outcome, call)


def show(parts: Iterable[Section]) -> None:
    """Print what stands before the sentence."""
    for part in parts:
        match part:
            case Table():
                show_table(part.title, part.columns, part.rows, part.spare, part.whole)
            case Note():
                note(part.words)
            case Line():
                note_command(part.words)
            case Texts():
                show_texts(part.texts, part.values)
            case _:
                say(part)


def write(outcome: Outcome, call: Call[Any]) -> None:
    """Write the file, if there is one."""
    match outcome.content:
        case None:
            pass
        case PruningPlan() as plan:
            # Whether it may be replaced was checked before the work.
            save_plan(plan, call.out, force=True)
        case Mapping() as values:
            write_result(call.out, values)
        case table:
            write_table(table, call.out)


def end(outcome: Outcome, call: Call[Any]) -> None:
    """Print the sentence, with the name of the file, and the commands that come next."""
    said, numbers = outcome.sentence, outcome.numbers
    if outcome.content is not None:
        said, numbers = f"{call.out}: {said}", {"file": str(call.out), **numbers}
    if outcome.lies_in is not None:
        said = f"{said}\n{outcome.lies_in}"
    finish(said, numbers, *outcome.following)
