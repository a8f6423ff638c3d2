"""Makes a step: its orders become requests, which run as jobs do. Runs inside a work folder."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from analysis.drain import drain
from analysis.files.shipped import DEMO_MODEL
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import StatsStore
from app.jobs.kinds import KINDS
from pruning.plan.plan import PruningPlan, keep_all
from pruning.records.repair import RepairStore
from pruning.requests.plan import SpecRequest
from pruning.search.store import RESULT_NAME
from pruning.study import Study
from tools.demo.orders import Order, Plan, Step
from tools.demo.work import Work

_RECIPE = """model: {model}
corpora: {corpora}
tokens: 65536
dtype: float32
criterion: {criterion}
budget: {{sparsity: 50%}}
search: {{corpus: {corpus}, samples: 32}}
"""


def make(step: Step, work: Work, on_progress: Callable[[Progress], object]) -> None:
    """Run the orders of a step; what is known is not measured again."""
    maker = Maker(work, step)
    for number, order in enumerate(step.orders):
        values = maker.values(order)
        scale = len(step.orders)

        def tell(progress: Progress, number: int = number, scale: int = scale) -> None:
            done = int(1000 * (number + progress.fraction) / scale)
            on_progress(Progress(progress.phase, done, 1000))

        drain(KINDS[order.task].job(values), tell)
        if order.task == "search":
            criterion = maker.criterion(order)
            work.search(criterion).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{values['out']}/{RESULT_NAME}", work.search(criterion))


@dataclass(frozen=True)
class Maker:
    """Makes the values of requests from the statistics of a work folder."""

    work: Work
    step: Step

    @cached_property
    def model(self) -> MoEModel:
        """The demo model of the work folder."""
        return load_model_index(DEMO_MODEL)

    @cached_property
    def store(self) -> StatsStore:
        """The statistics of the work folder alone."""
        return StatsStore(self.work.stats)

    def values(self, order: Order) -> dict[str, Any]:
        """The values of the order's request."""
        common = {"stats_dir": str(self.work.stats), **order.options}
        if order.task == "search":
            return self._search(order, common)
        common["model"] = DEMO_MODEL
        if excerpt := common.pop("excerpt", None):
            common["text"] = excerpt.read()
        if order.task == "calibrate":
            (common["corpus"],) = order.corpora
        elif order.corpora:
            common["corpora"] = order.corpora
        if order.ranking is not None:
            common |= _ranked_fields(order)
        elif order.task == "repair":
            (plan,) = order.plans
            unrepaired = self.plan(replace(plan, repair_tokens=0))
            common |= {"plan": unrepaired.to_dict(), "tokens": plan.repair_tokens}
        elif order.plans:
            common |= self._plans(order)
        return common

    def _plans(self, order: Order) -> dict[str, Any]:
        # Hidden states of the original model are measured with those of any plan.
        asked = [plan for plan in order.plans if plan.spec or order.task != "variance"]
        return {"plans": tuple(self.plan(plan).to_dict() for plan in asked)}

    def criterion(self, order: Order) -> str:
        """The criterion of an order's only plan."""
        (plan,) = order.plans
        return plan.spec.ranking.criterion if plan.spec else ""

    def _search(self, order: Order, common: dict[str, Any]) -> dict[str, Any]:
        (plan,), criterion = order.plans, self.criterion(order)
        corpora = list(plan.spec.ranking.corpora) if plan.spec else []
        recipe = _RECIPE.format(
            model=DEMO_MODEL, corpora=corpora, criterion=criterion, corpus=common.pop("corpus")
        )
        out = self.work.searches(self.step) / criterion
        return common | {"recipe": recipe, "out": str(out)}

    def plan(self, plan: Plan) -> PruningPlan:
        """The plan, as `moeprune plan` and `repair` make it."""
        if plan.spec is None:
            return keep_all(self.model)
        spec = plan.spec
        if plan.searched:
            spec = spec.changed(schedule_file=self.work.search(spec.ranking.criterion))
        request = SpecRequest(model=DEMO_MODEL, plan=spec, stats_dir=self.work.stats)
        chosen = drain(Study.of(request, self.model, self.store).make(request.plan))[0]
        if not plan.repair_tokens:
            return chosen
        (repair,) = (
            record
            for record in RepairStore([self.work.stats]).records(self.model.identity)
            if record.plan_digest == chosen.digest
        )
        return replace(chosen, repair=repair.reference)


def _ranked_fields(order: Order) -> dict[str, Any]:
    ranking = order.ranking
    fields = ranking.model_dump(include={"granularity"}) if ranking else {}
    if ranking is None:
        return fields
    if order.task == "subsets":
        fields |= {"criteria": (ranking.criterion,)}
    else:
        fields |= {"criterion": ranking.criterion}
    return fields | {"calibrated_on": ranking.corpora}
