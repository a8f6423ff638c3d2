"""Traffic: whether a plan still fits what users ask, by the experts that a server chose for it."""

from typing import Annotated, Final

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from analysis.stats.grid import Grid
from analysis.stats.manifest import COUNTS_ALONE
from analysis.stats.store import StatsStore, stats_store
from analysis.traffic.importing import TrafficImport, count_traffic, usual_name
from analysis.traffic.layout import Layout
from pruning.actions.action import Action, Call, Note, Outcome, Table
from pruning.option import Option
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.plan_file import plan_from_dict
from pruning.planning.traffic_fit import TrafficFit, fit_of, kept_by
from pruning.requests.model import ActionRequest
from pruning.spec import options
from pruning.spec.base import command_line, option_words
from pruning.tasks import Steps


class TrafficRequest(ActionRequest):
    """A plan, and answers of a server that runs the model it was made for."""

    asked_by = "traffic"
    plan: Annotated[options.Plan, Option(place="PLAN")]
    traces: options.Traces
    model: Annotated[
        options.Text | None,
        Option(
            "The plan's model; default: as the statistics that are here describe it.",
            takes="MODEL",
        ),
    ] = None
    revision: options.Revision | None = None
    count: options.Count = "all"
    skip_bad_rows: options.SkipBadRows = 0
    allow_small_ids: options.AllowSmallIds = False
    stats_dir: options.StatsDir | None = None

    def command(self, plans: tuple[str, ...] = ("plan.json",), out: str = "") -> str:
        """The equivalent command line; `plans` names the file that holds the plan."""
        del out  # nothing is written
        traces = map(str, self.traces)
        return command_line("traffic", plans[0], *traces, *option_words(self))


def _run(request: TrafficRequest) -> Steps[TrafficFit]:
    """Count the traffic, and compare what the plan keeps of it and of every calibration."""
    plan, store = plan_from_dict(request.plan), stats_store(request.stats_dir)
    layout = _layout(request, plan, store)
    kept_by(plan, Grid(layout.layers))  # what it refuses need not be counted
    paths = tuple(dict.fromkeys(request.traces))
    asked = TrafficImport(
        paths,
        usual_name(paths),
        request.count,
        request.skip_bad_rows,
        allows_small_ids=request.allow_small_ids,
    )
    if_pruned = f"Serve {layout.name} itself, and give its answers."
    counted = yield from count_traffic(layout, asked, if_pruned)
    return fit_of(plan, layout.layers, counted, store)


def _layout(request: TrafficRequest, plan: PruningPlan, store: StatsStore) -> Layout:
    """The layers of the plan's model."""
    if request.model:
        model = load_model_index(request.model, revision=request.revision)
        fit_plan(plan, model)
        return Layout(model.name, model.layers, model.depth)
    runs = store.of_model(plan.model.identity, "routed", "weights", COUNTS_ALONE)
    if not runs:
        raise PlanError(
            f"No statistics of {plan.model.name} are here to tell its layers; name the checkpoint "
            "with --model."
        )
    return Layout(plan.model.name, runs[0].manifest.model.layers)


def _tell(call: Call[TrafficRequest], fit: TrafficFit) -> Outcome:
    """Shares by layer and corpus, and what they come to."""
    request = call.request
    numbers = {
        "held": fit.today.whole,
        "best": fit.most,
        "requests": fit.num_requests,
        "tokens": fit.num_tokens,
        "chance": fit.chance,
        "layers": [
            {
                "layer": layer.index,
                "held": float(fit.today.layers[row]),
                "best": float(fit.best[row]),
                **{name: float(held.layers[row]) for name, held in fit.corpora.items()},
            }
            for row, layer in enumerate(fit.sparse)
        ],
        "corpora": [
            {
                "corpus": name,
                "run": held.run.manifest.run_id if held.run else "",
                "held": held.whole,
                "overlap": held.overlap,
                "ranked": name in fit.ranked,
            }
            for name, held in fit.corpora.items()
        ],
    }
    model = request.model or fit.plan.model.name
    fields = ("revision", "count", "skip_bad_rows", "allow_small_ids", "stats_dir")
    place = option_words(request, only=fields)
    imported = command_line("runs", "import", *map(str, request.traces), "--model", model, *place)
    words = fit.finding("today's routed choices")
    return Outcome(words, numbers, (Note(fit.words), *_tables(fit)), (imported,))


def _tables(fit: TrafficFit) -> tuple[Table, ...]:
    names = list(fit.corpora)
    rows: list[list[object]] = [
        [layer.index, fit.today.layers[row], fit.best[row]]
        + [fit.corpora[name].layers[row] for name in names]
        for row, layer in enumerate(fit.sparse)
    ]
    whole = [fit.today.whole, fit.most, *(fit.corpora[n].whole for n in names)]
    by_layer = Table(
        "Share of routed choices that the plan's experts hold",
        ("layer", "today", "best for today", *names),
        [*rows, ["all", *whole]],
        spare=tuple(names),
    )
    near = [
        [name, held.overlap, held.whole, "yes" if name in fit.ranked else ""]
        for name, held in fit.corpora.items()
    ]
    columns = ("corpus", "overlap with today", "held", "ranked the plan")
    title = "Corpora" if fit.chance is None else f"Corpora, nearest first (chance {fit.chance:.2f})"
    by_corpus = Table(title, columns, near)
    return (by_layer, by_corpus) if near else (by_layer,)


ACTION: Final = Action(
    TrafficRequest,
    _run,
    _tell,
    "traffic plan.json monday.jsonl",
    "traffic beside {about}",
)
