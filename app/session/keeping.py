"""Cache of computed tables, keyed by arguments."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import streamlit as st

from analysis.criteria import Criterion
from analysis.model import MoEModel
from analysis.stats.blend import Mixture
from analysis.stats.choose import CorpusWeight, choose_stats
from analysis.stats.store import Run, StatsStore, load_expert_stats, load_weight_stats
from analysis.stats.tables import ExpertStats, NoStats, WeightStats
from app.charts.choices import PathChoice
from app.charts.context import itself
from app.charts.coverage import mixture
from app.charts.evaluations import stored_results
from app.charts.neuron_cut import neuron_field, rank_for, ranks_within
from app.charts.overlap_by_tokens import parts_of
from app.tables.experts import Sources
from pruning.evaluate.benchmarks.record import BenchmarkStore
from pruning.evaluate.bins import BinsStore
from pruning.evaluate.quality import stored_losses
from pruning.evaluate.record import AnswerStore, EvaluationStore
from pruning.evaluate.store import readable_records
from pruning.evaluate.variances import VarianceStore
from pruning.neurons.cuts import NeuronField
from pruning.neurons.widths import WidthChoice
from pruning.plan import PruningPlan
from pruning.planning.measured import Order, order_of
from pruning.planning.neurons import Arena, arena_of
from pruning.planning.ranking import Selection
from pruning.requests.plan import SpecRequest
from pruning.schedules import Spending
from pruning.search.store import KnownSearch
from pruning.sensitivity.curves import Sensitivity
from pruning.sensitivity.record import SensitivityStore
from pruning.spec import BudgetSpec, PlanSpec

P = ParamSpec("P")
T = TypeVar("T")
_MOST: Final = 128
# Functions with large results -> number of cached results.
_LARGE: Final[dict[Callable[..., Any], int]] = {
    load_expert_stats: 32,
    load_weight_stats: 16,
    choose_stats: 16,
    itself: 32,
    mixture: 8,
    parts_of: 8,
    rank_for: 8,
    neuron_field: 6,
    ranks_within: 8,
    arena_of: 12,
    order_of: 8,
    readable_records: 8,
    stored_losses: 4,
    stored_results: 4,
}
_numbers = count()
_numbered: WeakKeyDictionary[object, int] = WeakKeyDictionary()


def run_key(run: Run) -> tuple[str, str]:
    """Path, digest and groups of a run; groups can be added later."""
    return str(run.path), " ".join((run.manifest.digest, *run.manifest.groups))


def _number(value: object) -> int:
    """A number per object, for immutable values that are not compared by content."""
    return _numbered.setdefault(value, next(_numbers))


def _file_key(path: Path) -> tuple[object, ...]:
    """The current state of a file; only its path if it is gone."""
    try:
        seen = path.stat()
    except OSError:
        return (str(path),)
    return (str(path), seen.st_mtime_ns, seen.st_size, seen.st_ino)


_HASHES: Final[dict[Any, Callable[[Any], object]]] = {
    **dict.fromkeys((ExpertStats, WeightStats, NoStats, Mixture), _number),
    **dict.fromkeys((NeuronField, Arena, Order, Sensitivity), _number),
    Selection: lambda selection: (
        selection.model.identity,
        selection.request.model_dump_json(),
        *map(_number, filter(None, (selection.choice, selection.tokens, selection.sensitivity))),
    ),
    Spending: lambda spending: (spending.budget.to_dict(), spending.constraints.to_dict()),
    CorpusWeight: str,
    Criterion: lambda criterion: criterion.name,
    Fraction: str,
    KnownSearch: lambda search: (str(search.path), search.order, sorted(search.kept.items())),
    type(Path()): _file_key,
    Sources: lambda sources: (
        {corpus: _number(stats) for corpus, stats in sources.routed.items()},
        sources.weights and _number(sources.weights),
    ),
    MoEModel: lambda model: (model.identity, model.name, str(model.checkpoint.path)),
    PathChoice: repr,
    PruningPlan: lambda plan: plan.digest,
    Run: run_key,
    SpecRequest: SpecRequest.model_dump_json,
    PlanSpec: PlanSpec.model_dump_json,
    BudgetSpec: BudgetSpec.model_dump_json,
    WidthChoice: repr,
    **dict.fromkeys(
        (AnswerStore, BenchmarkStore, BinsStore, EvaluationStore, SensitivityStore, VarianceStore),
        lambda store: (type(store).__name__, store.state()),
    ),
    # Functions of a store depend on all of its runs.
    StatsStore: lambda store: [run_key(run) for run in store.runs()],
}


def remembered(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a function, cached for equal arguments; do not mutate it."""
    found: T = _keeping(function)(*args, **named)
    return found


@cache
def _keeping(function: Callable[P, T]) -> Callable[P, T]:
    most = _LARGE.get(function, _MOST)
    return st.cache_resource(max_entries=most, hash_funcs=_HASHES, show_spinner=False)(function)
