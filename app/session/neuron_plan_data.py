"""What the Plan and Export pages compute of plans of neurons, cached by what it depends on."""

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model import MoEModel, is_expert_weight
from analysis.stats.store import NEURONS
from app.charts.context import Context
from app.session.data import settings, shown_model, shown_stats_dir
from app.session.plan_state import imported_plan
from pruning.atoms.selection import AtomScope
from pruning.atoms.sizes import atom_sizes
from pruning.atoms.summary import atom_summary
from pruning.atoms.widths import WidthChoice, WidthMode
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan, fit_plan
from pruning.planning.make import Decision, make_plan
from pruning.planning.neuron_plan import NeuronPlanChoice, ShownNeurons, plan_request
from pruning.planning.neuron_scopes import SideBySide, scopes_of, side_by_side
from pruning.planning.neurons import Arena, arena_of, check_cuttable
from pruning.planning.ranking import Ranking, select_measured
from pruning.requests.plan import PlanRequest
from pruning.sizes import SizeReport, format_bytes, size_report
from pruning.surgery.width_sizes import WidthOption, width_option

# Weights that a page reads while a person waits: about a second.
MOST_BYTES_READ = 1 << 28


@dataclass(frozen=True, eq=False)
class ReadyNeurons:
    """The numbers of every neuron that one criterion gives, under one set of constraints.

    Args:
        key: names them, for caches.
        model: whose neurons.
        request: its budget and scope are those on screen.
        ranking: the numbers.
    """

    key: str
    model: MoEModel
    request: PlanRequest
    ranking: Ranking

    def arena(self, scope: AtomScope) -> Arena:
        """The neurons that compete in a scope."""
        asked = self.request.model_copy(update={"atom_scope": str(scope)})
        limits = asked.constraints.to_dict()
        return _arena(f"{self.key} {scope} {limits}", asked, self.ranking)


def request_of(context: Context, choice: NeuronPlanChoice) -> PlanRequest:
    """The plan that the controls ask for.

    Raises:
        UserError: values that do not fit together.
    """
    reads_text = context.criterion is not None and context.criterion.source == "routed"
    base = {
        "model": shown_model(context.model),
        "corpora": context.corpora if reads_text else (),
        "stats_dir": shown_stats_dir(),
    }
    return plan_request(choice, context.sparsity, base)


def lacks_statistics(context: Context) -> bool:
    """Whether the criterion reads statistics of neurons that a chosen corpus has none of."""
    if context.criterion is None or context.criterion.source != "routed":
        return False
    used = [run for corpus, run in context.runs.items() if context.weights[corpus] > 0]
    return not used or any(NEURONS not in run.manifest.files for run in used)


def bytes_to_read(model: MoEModel) -> int:
    """Bytes of the experts' weights."""
    items = (item for located in model.located.values() for item in located)
    return sum(item.entry.nbytes for item in items if is_expert_weight(item.slot))


def reads_too_much(request: PlanRequest, model: MoEModel) -> bool:
    """Whether the criterion reads more weights than a page may."""
    reads_weights = get_criterion(request.criterion).source == "weights"
    return reads_weights and bytes_to_read(model) > MOST_BYTES_READ


def ready_neurons(context: Context, choice: NeuronPlanChoice) -> ReadyNeurons:
    """The numbers of every neuron; for views that lack nothing, see `lacks_statistics`.

    Raises:
        UserError: values that do not fit together; and see `ready_for`.
    """
    return ready_for(context, request_of(context, choice))


def ready_for(context: Context, request: PlanRequest) -> ReadyNeurons:
    """The numbers of every neuron that a request reads.

    Raises:
        UserError: statistics that cannot be read, or weights out of which no neurons can be cut.
    """
    check_cuttable(context.model)
    if reads_too_much(request, context.model):
        raise PlanError(
            f"{request.criterion} reads {format_bytes(bytes_to_read(context.model))} of weights, "
            f"which a page does not wait for; run `{request.command()}` and open plan.json here."
        )
    runs = (
        [context.runs[corpus].manifest.digest for corpus in context.runs] if request.corpora else []
    )
    key = " ".join((context.model.identity, request.criterion, *request.corpora, *runs))
    return ReadyNeurons(key, context.model, request, _ranking(key, request, context.model))


@st.cache_resource(max_entries=8)
def _ranking(key: str, _request: PlanRequest, _model: MoEModel) -> Ranking:
    del key  # part of the cache's key only
    return drain(select_measured(_request, _model, settings().store))


@st.cache_resource(max_entries=12)
def _arena(key: str, _request: PlanRequest, _ranking: Ranking) -> Arena:
    del key
    return arena_of(_ranking, _request)


def shown_neurons(ready: ReadyNeurons) -> ShownNeurons:
    """The plan that is asked for.

    Raises:
        UserError: the budget cannot be met under the constraints.
    """
    made = _decided(f"{ready.key} {ready.request.model_dump_json()}", ready)
    runs = ready.ranking.choice.runs
    return ShownNeurons(made.plan, made.notes, request=ready.request, runs=runs)


def imported_file(context: Context) -> ShownNeurons | None:
    """The plan of neurons that was imported for this model, if it is the one on screen."""
    found = imported_plan(context.model)
    if found is None or found.plan.granularity != ATOMIC_GRANULARITY:
        return None
    return ShownNeurons(found.plan, file=found.file)


@st.cache_resource(max_entries=32)
def _decided(key: str, _ready: ReadyNeurons) -> Decision:
    del key
    return make_plan(_ready.ranking, _ready.request, _ready.arena(_ready.request.scope))


@dataclass(frozen=True, eq=False)
class NeuronSizes:
    """What a plan takes.

    Args:
        table: of `atom_sizes`.
        options: the widths of an export in each width mode, and who reads it; no bytes.
        layers: of `atom_summary`.
        report: of the plan alone, without zeros; FLOPs by the routing of the runs that ranked.
    """

    table: pd.DataFrame
    options: tuple[WidthOption, ...]
    layers: pd.DataFrame
    report: SizeReport

    def refused(self, mode: str) -> str:
        """Why a width mode is not possible; empty where it is."""
        return next(each.refused for each in self.options if str(each.mode) == mode)


def neuron_sizes(
    context: Context, choice: NeuronPlanChoice, plan: PruningPlan, ready: ReadyNeurons | None
) -> NeuronSizes:
    """Sizes of a plan in every width mode; FLOPs by the routing of the runs that ranked."""
    key = f"{context.model.identity} {plan.digest} {ready.key if ready else ''}"
    return _sizes(key, choice.width_multiple, context.model, plan, ready)


@st.cache_resource(max_entries=64)
def _sizes(
    key: str, multiple_of: int, _model: MoEModel, _plan: PruningPlan, _ready: ReadyNeurons | None
) -> NeuronSizes:
    del key
    routing = _ready.ranking.routing if _ready else None
    complete = fit_plan(_plan, _model)
    choices = [WidthChoice(mode, multiple_of) for mode in WidthMode]
    return NeuronSizes(
        atom_sizes(_model, _plan, multiple_of, routing),
        tuple(width_option(_model, complete, choice, weigh=False) for choice in choices),
        atom_summary(_plan, _model),
        size_report(_model, _plan, routing),
    )


def export_option(context: Context, choice: NeuronPlanChoice, plan: PruningPlan) -> WidthOption:
    """What an export writes in the width mode that is chosen, with its bytes."""
    widths = WidthChoice(WidthMode(choice.width_mode), choice.width_multiple)
    return _option(f"{context.model.identity} {plan.digest} {widths}", widths, context.model, plan)


@st.cache_resource(max_entries=32)
def _option(key: str, _widths: WidthChoice, _model: MoEModel, _plan: PruningPlan) -> WidthOption:
    del key
    return width_option(_model, fit_plan(_plan, _model), _widths)


def scopes_beside(ready: ReadyNeurons) -> SideBySide:
    """What each layer loses, and what FLOPs are saved, in every scope that the criterion has."""
    key = f"{ready.key} {ready.request.model_dump_json(exclude={'atom_scope'})}"
    return _beside(key, ready)


@st.cache_resource(max_entries=16)
def _beside(key: str, _ready: ReadyNeurons) -> SideBySide:
    del key
    arenas = {scope: _ready.arena(scope) for scope in scopes_of(_ready.request.criterion)}
    return side_by_side(_ready.request, _ready.model, arenas, _ready.ranking.routing)
