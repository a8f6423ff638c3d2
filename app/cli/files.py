"""Files that commands write: places are checked before any work, files are whole or not there."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.errors import PlanError, StatsError
from analysis.files.durable import unwritable, write_durably
from analysis.files.text_file import near_file
from analysis.model.moe_model import MoEModel
from app.console import note
from pruning.option import Option
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.plan_file import load_plan

if TYPE_CHECKING:
    import pandas as pd


REPLACES = Option("Replace a file that is there.")


def check_new_file(value: object, option: Option | None, *, force: bool = False) -> None:
    """Refuse a new file that could not be written, before any work.

    What is there already is replaced only with `force`.
    """
    if option is None or option.file != "new" or not isinstance(value, Path):
        return
    folder = value.absolute().parent
    if reason := unwritable(folder):
        raise StatsError(f"{value} cannot be written ({reason}); name another file with -o.")
    if not folder.is_dir():
        raise StatsError(f"The folder of {value} does not exist; make it first.")
    *others, last = option.endings or (value.suffix,)
    if value.suffix not in (*others, last):
        use = f"{', '.join(others)} or {last}"
        raise StatsError(f"{value.name} has no known ending; use {use}.")
    check_free(value, "is there already", force=force)


def check_file(path: object, option: Option | None) -> None:
    """Refuse a file to read that is not there, or a plan that is none, before any work."""
    if option is None or not isinstance(path, Path):
        return
    if option.file == "plan":
        load_plan(path)
    elif option.file == "existing" and not path.is_file():
        raise StatsError(
            f"{'/'.join(option.flags)}: {str(path)!r} does not exist.{near_file(path)}"
        )


def plan_content(path: Path) -> dict[str, Any]:
    """The content of a plan's file."""
    return load_plan(path).to_dict()


def check_free(path: Path, problem: str, *, force: bool) -> None:
    """Refuse to replace a file; `problem` says what is in the way."""
    if path.exists() and not force:
        raise PlanError(f"{path} {problem}; name another file with -o, or replace it with --force.")


def read_plan(path: Path, model: MoEModel | None, stats_dir: Path | None = None) -> PruningPlan:
    """As `load_plan`; see `check_repair`."""
    plan = load_plan(path, model=model)
    check_repair(plan, model, stats_dir)
    return plan


def check_repair(plan: PruningPlan, model: MoEModel | None, stats_dir: Path | None = None) -> None:
    """Refuse a plan whose repair is here with another content; needs the model to know."""
    if plan.repair and model:
        # Late: jobs are listed without numpy.
        from analysis.stats.store import stats_store
        from pruning.records.repair_files import if_here

        if_here(fit_plan(plan, model), stats_store(stats_dir).directories)


def save_plan(plan: PruningPlan, path: Path, *, force: bool) -> None:
    """Write a plan; another one that is there is replaced only with `force`."""
    if path.exists() and (digest := _digest(path)) != plan.digest:
        problem = f"holds another plan ({digest[:8]})" if digest else "is there and holds no plan"
        check_free(path, problem, force=force)
    content = plan.to_json().encode()
    if path.is_file() and path.read_bytes() == content:
        note(f"{path} is unchanged")
    else:
        plan.save(path)


def _digest(path: Path) -> str:
    """The digest of the plan in a file; nothing if it holds none."""
    try:
        return load_plan(path).digest
    except PlanError:
        return ""


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with _writing(path, "result"):
        write_durably(path, text.encode())


def write_table(table: "pd.DataFrame", path: Path) -> None:
    """Write a table as its name says: parquet, else CSV."""
    if path.suffix != ".parquet":
        write_csv(table, path)
        return
    # Of an open file pandas before 3 takes the name, which pyarrow may read as an address.
    with _writing(path, "table"):
        write_durably(path, table.to_parquet(index=False))


def write_csv(table: "pd.DataFrame", path: Path) -> None:
    """Write a table as CSV, whatever its name."""
    from app.tables.spreadsheets import csv_text

    with _writing(path, "table"):
        write_durably(path, csv_text(table).encode())


@contextmanager
def _writing(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StatsError(f"The {what} cannot be written to {path}: {error.strerror}.") from error
