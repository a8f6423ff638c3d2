"""Exports of each family and the engines' answers to them, once for all rows."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import gettempdir

import pytest
from engines.asking import ask_engine, row
from engines.checkpoints import engine_case, save, write_cuts
from filelock import FileLock
from threads import one_thread  # noqa: F401

from analysis.files.durable import write_durably
from pruning.serving.engine_results import RESULTS, Row, results
from tools.engines.environments import python_of

Rows = Mapping[str, Row]


@pytest.fixture(scope="session")
def rows_of(tmp_path_factory, request) -> Callable[[str, str], Rows]:
    """`rows_of(engine, case)`: cut -> its row; they are written with --write-engine-results."""
    made: dict[tuple[str, str], Rows] = {}

    def get(engine: str, name: str) -> Rows:
        if python_of(engine) is None:
            pytest.skip(f"no environment of {engine}: python -m tools.engines {engine}")
        if (engine, name) not in made:
            folder = tmp_path_factory.mktemp(f"{engine}-{name}")
            rows = [item for item in request.session.items if hasattr(item, "callspec")]
            asked = [item.callspec.params for item in rows]
            cuts = {params["cut"] for params in asked if params.get("engine") == engine}
            made[engine, name] = _measure(engine, name, folder, cuts)
            shutil.rmtree(folder)
            if request.config.getoption("--write-engine-results"):
                with FileLock(Path(gettempdir()) / "moeprune-engine-results.lock"):
                    _write(made[engine, name].values())
        return made[engine, name]

    return get


def _measure(engine, name, folder, cuts) -> Rows:
    case = engine_case(name)
    model = save(case, folder / "original")
    written = write_cuts(model, folder, cuts)
    there = {cut: path for cut, path in written.items() if not isinstance(path, str)}
    versions, answers = ask_engine(engine, list(there.values()), folder)
    said = dict(zip(there, answers, strict=True))
    said |= {cut: {"failed": why} for cut, why in written.items() if cut not in there}
    return {
        cut: row(engine, versions, case, model, cut, said[cut], there.get(cut)) for cut in written
    }


def _write(new: Iterable[Row]) -> None:
    """Put rows in place of those of the same engine, case and cut."""
    results.cache_clear()  # another process may have written
    rows = {row.id: row for row in (*results(), *new)}
    lines = ",\n".join(json.dumps(asdict(rows[name])) for name in sorted(rows))
    write_durably(RESULTS, f"[\n{lines}\n]\n".encode())
