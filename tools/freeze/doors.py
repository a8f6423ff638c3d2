"""All that the tool takes from the product: when modules move, only this file changes."""

import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE
from analysis.drain import drain
from analysis.errors import UserError
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore, stats_store
from app.charts.listing import CHARTS
from app.charts.published import PAPER_CHARTS, TABLES, blocks_of
from app.cli import COMMANDS, load, main
from pruning.benchmarks.record import BenchmarkStore
from pruning.records.bins import BinsStore
from pruning.records.evaluation import EvaluationStore
from pruning.records.kept_answers import AnswerStore
from pruning.records.lens import LensStore
from pruning.records.repair import RepairStore
from pruning.records.sensitivity import SensitivityStore
from pruning.records.subsets import SubsetStore
from pruning.records.variances import VarianceStore
from pruning.requests.plan import SpecRequest
from pruning.schedules import SCHEDULES
from pruning.search.store import SearchStore
from pruning.spec.base import validated
from pruning.study import Study

EXPERT_CRITERIA = tuple(CRITERIA)
NEURON_ONES = tuple(NEURON_CRITERIA)
EXPONENTS = tuple(",".join(map(str, variant)) for variant in RANKABLE)
SCHEDULE_NAMES = tuple(SCHEDULES)
CHART_NAMES = tuple(CHARTS)
PAPER_CHART_NAMES = tuple(PAPER_CHARTS)
PAPER_TABLES = tuple(TABLES)
SHIPPED = SHIPPED_STATS
DEMO = "demo"
Refusal = UserError

_STORES = (
    AnswerStore, BenchmarkStore, BinsStore, EvaluationStore, LensStore, RepairStore,
    SensitivityStore, SubsetStore, VarianceStore,
)  # fmt: skip


def blocks(table: str) -> list[str]:
    """The blocks of a paper's table."""
    return list(blocks_of(table))


def command_names() -> list[str]:
    """The words of every command and group."""
    names = []
    for name in COMMANDS:
        members = getattr(load(name), "commands", {})
        names += [name, *(f"{name} {member}" for member in members)]
    return names


def plan(values: Mapping[str, Any]) -> tuple[str, str]:
    """Digest of the plan of the demo that a spec asks for; its plan.json, then its notes."""
    request = validated(SpecRequest, {"model": DEMO, **values})
    study = Study.of(request, load_model_index(DEMO), stats_store())
    made, _ = drain(study.make(request.plan))
    return made.digest, made.to_json() + "\n".join(made.notes)


def run_command(words: Sequence[str]) -> tuple[str, str]:
    """How `moeprune` ends with these words, and its standard output.

    The end is the exit status, or an exception that the program does not handle.
    """
    output, arguments = io.StringIO(), sys.argv
    sys.argv = ["moeprune", *words]
    try:
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            main()
    except SystemExit as end:
        return str(end.code or 0), output.getvalue()
    except Exception as error:  # noqa: BLE001  (a traceback is frozen as what it says)
        return f"{type(error).__name__}: {error}", output.getvalue()
    finally:
        sys.argv = arguments
    return "0", output.getvalue()


def records() -> dict[str, list[str]]:
    """Kind of record -> those that ship for the demo, whole, each as a line of JSON."""
    store, identity = StatsStore(SHIPPED_STATS), load_model_index(DEMO).identity
    listed = {
        "runs": [run.manifest.run_id for run in store.runs()],
        "searches": list(SearchStore(store.directories).paths()),
    }
    for kind in _STORES:
        found = kind(store.directories).records(identity)
        listed[kind.kind.folder] = [_line(record.to_dict()) for record in found]
    return listed


def _line(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n"
