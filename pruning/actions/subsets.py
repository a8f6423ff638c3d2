"""Quality against calibration size: plans ranked by parts of the tokens, and repairs on fewer."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, model_validator

from analysis.corpora.sequences import TOKEN_SHARDS
from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.words import counted
from analysis.ranking.choose import run_by_corpus
from analysis.ranking.experts import can_rank
from analysis.stats.manifest import Run
from analysis.stats.shards import TOKEN_PARTS, stats_of
from analysis.stats.store import StatsStore, stats_store
from pruning.actions.action import Action, Call, Outcome, Table
from pruning.option import Option
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.planning.make import make_plan
from pruning.planning.ranking import Ranking
from pruning.records.repair_files import with_repair_files
from pruning.records.subsets import SubsetRecord, SubsetStore, subset_table
from pruning.requests.evaluation import HeldOutRequest, NamedCriterion, RankedRequest
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS, RepairRequest
from pruning.spec import options, plan_options
from pruning.spec.base import command_line
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.loading import check_records_folder, run_settings
from pruning.tasks.repair import repair_run, shared_options

if TYPE_CHECKING:
    import pandas as pd


class SubsetsRequest(RankedRequest, HeldOutRequest):
    """Plans by parts of the calibration tokens of each run."""

    asked_by = "subsets"
    writes = "subsets.csv"
    criteria: Annotated[
        tuple[NamedCriterion, ...],
        options.EACH_ONCE,
        Option("Criterion that reads calibration text, such as reap or ean; repeatable."),
    ] = Field(min_length=1)
    sparsity: plan_options.Sparsity
    granularity: Literal["expert"] = "expert"
    repair: Annotated[
        options.Switch,
        Option("Also repair the plan of all tokens on shares of text, three draws of each."),
    ] = False
    stream_layers: options.StreamLayers = False
    hidden_states_dir: options.HiddenStatesDir | None = None

    @model_validator(mode="after")
    def _read_text(self) -> "SubsetsRequest":
        for criterion in self.criteria:
            if get_criterion(criterion).source != "routed":
                raise PlanError(
                    f"{criterion} reads no calibration tokens, so parts of them say nothing; give "
                    "one that does, such as reap."
                )
        return self


SEEDS = (42, 43, 44)  # of the text of repairs


def _run(request: SubsetsRequest) -> Steps[list[SubsetRecord]]:
    """Evaluate plans by eighths, quarters, halves and all of each run; by corpus, then by plan.

    With `repair`, also the plan of all corpora's tokens, repaired on as many shares of text.
    """
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    check_records_folder(request.stats_dir, SubsetStore(store.directories), model.identity)
    corpora = request.calibrated_on or tuple(
        run_by_corpus(store.of_model(model.identity, "routed"))
    )
    plans: list[PruningPlan] = []
    for criterion in request.criteria:
        for corpus in corpora:
            plans += _by_parts(_ranking(request, criterion, (corpus,), model, store))
        if request.repair:
            full = _ranking(request, criterion, corpora, model, store)
            plans += yield from _repairs(request, fit_plan(make_plan(full, full.spec), model))
    draws = yield from drawn_corpora(request, model, store)
    from pruning.engine.run import Evaluations, run_evaluations

    settings = run_settings(request, max(draw.sequences.longest for draw in draws))
    work = Evaluations(model, plans, draws, ("nll",), settings, SubsetStore(store.directories))
    records = yield from run_evaluations(work)
    return [record for record in records if isinstance(record, SubsetRecord)]


def _ranking(
    request: SubsetsRequest,
    criterion: str,
    corpora: tuple[str, ...],
    model: MoEModel,
    store: StatsStore,
) -> Ranking:
    """A criterion on all tokens of corpora."""
    spec = request.spec_by(criterion, sparsity=request.sparsity).changed(corpora=corpora)
    return Study.of(request, model, store).ranking(spec)


def _by_parts(ranking: Ranking) -> Iterator[PruningPlan]:
    """The plans by each part of the tokens of one run."""
    (run,), criterion = ranking.choice.runs, ranking.criterion
    for count in TOKEN_PARTS:
        for first in range(0, TOKEN_SHARDS, count):
            stats = stats_of(run, range(first, first + count))
            if not can_rank(criterion, stats):
                raise PlanError(
                    f"{criterion.name} reads sums that runs do not keep in parts; leave it out."
                )
            choice = replace(ranking.choice, stats=stats, runs=(Run(run.path, stats.manifest),))
            part = replace(ranking, choice=choice, tokens=choice)
            plan = make_plan(part, ranking.spec)
            tokens = sum(corpus.num_counted for corpus in stats.manifest.corpora)
            provenance = replace(plan.provenance, tokens=tokens)
            yield fit_plan(replace(plan, provenance=provenance), ranking.model)


def _repairs(request: SubsetsRequest, plan: PruningPlan) -> Steps[list[PruningPlan]]:
    """A plan repaired on shares of the default number of tokens, with several draws of text."""
    directories = stats_store(request.stats_dir).directories
    repaired = []
    for count in TOKEN_PARTS:
        tokens = DEFAULT_REPAIR_TOKENS * count // TOKEN_SHARDS
        for seed in SEEDS:
            values = {**shared_options(request), "plan": plan.to_dict()}
            record = yield from repair_run(RepairRequest(**values, tokens=tokens, seed=seed))
            repaired.append(with_repair_files(replace(plan, repair=record.reference), directories))
    return repaired


def _tell(call: Call[SubsetsRequest], records: list[SubsetRecord]) -> Outcome:
    """What plans add to the loss by the number of tokens, and the chart of it."""
    request, table = call.request, subset_table(records)
    columns = ["corpus", "criterion", "calibrated_on", "repaired_on", "tokens"]
    summary = table.groupby(columns, sort=False)["increase"].agg(["mean", "min", "max", "count"])
    return Outcome(
        counted(len(table), "evaluation"),
        {"rows": len(table)},
        (_by_tokens(f"loss increase at sparsity {request.sparsity}", summary.reset_index()),),
        (command_line("plot", "loss-by-tokens", request.model, "-o", "tokens.html"),),
        table,
    )


def _by_tokens(title: str, summary: "pd.DataFrame") -> Table:
    """A row for each share of tokens; what is empty or equal in all rows goes without."""
    names = {"calibrated_on": "ranked on", "repaired_on": "repaired on", "count": "plans"}
    same = [name for name in ("corpus", "repaired_on") if len(summary[name].unique()) == 1]
    corpora = summary["corpus"].unique()
    where = f" on {corpora[0]}" if len(corpora) == 1 else ""
    repaired = summary["repaired_on"].iloc[0] if "repaired_on" in same else ""
    how = f", repaired on {repaired}" if repaired else ""
    return Table.of(f"{title}{where}{how}", summary.drop(columns=same).rename(columns=names))


ACTION: Final = Action(
    SubsetsRequest,
    _run,
    _tell,
    "subsets demo --criterion ean --sparsity 50% --calibrated-on demo-code --corpus demo-math "
    "--samples 8",
    "subsets of {about}",
    "explore.tokens",
)
