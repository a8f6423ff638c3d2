"""The one-page report for decision makers: what a plan saves, and its loss."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.model.moe_model import MoEModel
from app.loaded import CurrentPlan
from app.report.page import rendered
from pruning.plan.plan import PruningPlan, fit_plan
from pruning.plan.size_words import change_words
from pruning.plan.sizes import format_bytes
from pruning.planning.choice import corpora_words
from pruning.planning.front_words import bits_alone
from pruning.records.cost import LossRow, PlanCost, cost_of
from pruning.records.kept_answers import AnswerRecord
from pruning.records.quality import PlanLoss, loss_of
from pruning.records.right_of_plans import RightRow
from pruning.records.verdict import ShipVerdict

_MOST_LETTERS, _MOST_LINES = 240, 6  # of an answer, on one page


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Answers of the original and the pruned model to one prompt."""

    prompt: str
    full: str
    pruned: str


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A row of the table of two plans."""

    name: str
    digest: str
    after: int  # bytes of the export
    change: str  # of the bytes
    loss: PlanLoss | None  # None if it was not measured
    ship: ShipVerdict | None


@dataclass(frozen=True, eq=False)
class DecisionReport:
    """Contents of the page."""

    title: str
    name: str  # of the plan
    before: int  # bytes of all weights
    after: int  # bytes of the export
    verdict: str  # one or two sentences
    rows: tuple[LossRow, ...]  # worst corpus first, then mean and worst; empty if unmeasured
    facts: Mapping[str, str]  # provenance, name -> value
    command: str  # command that makes the plan
    right: tuple[RightRow, ...] = ()  # right answers by corpus; empty if none were checked
    answers: AnswerPair | None = None
    warning: str = ""  # of `super_note`, if there is something to say
    ship: ShipVerdict | None = None  # on the export; None if nothing was asked
    plans: tuple[PlanRow, ...] = ()  # this one and the second; empty without a second

    @property
    def change(self) -> str:
        """The share of the bytes saved, or by how much the export is larger."""
        return _change(self.before, self.after)

    @property
    def most(self) -> float:
        """The largest loss increase of the table, to scale bars by."""
        return max((x for row in self.rows for x in (row.plan, row.random) if x), default=1.0)


def answer_pair(records: Iterable[AnswerRecord], digest: str) -> AnswerPair | None:
    """The newest answers of the original and the plan with this digest, if any."""
    matches = [
        record for record in records if record.plan_digest == digest and len(record.answers) > 1
    ]
    if not matches:
        return None
    newest = max(matches, key=lambda record: record.created_at)
    return AnswerPair(newest.prompt, newest.answers[0].text, newest.answers[1].text)


def _change(before: int, after: int) -> str:
    """The share of the bytes saved, or by how much the export is larger."""
    if after < before:
        return f"{100 * (after / before - 1):.0f}%"
    return change_words(before, after)


def row_of(
    model: MoEModel,
    current: CurrentPlan,
    num_bytes: int,
    losses: Sequence[PlanLoss],
    ship: ShipVerdict | None,
) -> PlanRow:
    """The row of a plan; `num_bytes` are of its export, `losses` of all plans of the model."""
    digest = fit_plan(current.plan, model).digest
    change = _change(model.checkpoint.nbytes, num_bytes)
    return PlanRow(current.name, digest[:8], num_bytes, change, loss_of(losses, digest), ship)


def decision_of(
    model: MoEModel,
    current: CurrentPlan,
    num_bytes: int,
    losses: Sequence[PlanLoss],
    command: str,
) -> DecisionReport:
    """The report of a plan; `num_bytes` are of its export, `losses` of all plans of the model."""
    plan = fit_plan(current.plan, model)
    cost = cost_of(plan, losses)
    return DecisionReport(
        title=f"Should {model.name} be pruned this way?",
        name=current.name,
        before=model.checkpoint.nbytes,
        after=num_bytes,
        verdict=cost.verdict + _bits_words(losses),
        rows=cost.rows,
        right=cost.right,
        facts=_facts(model, plan, cost),
        command=command,
    )


def _bits_words(losses: Sequence[PlanLoss]) -> str:
    """What fewer bits would give instead, or besides."""
    words = bits_alone(losses)
    return f" Without pruning, {words} (simulated); both can be done." if words else ""


def _facts(model: MoEModel, plan: PruningPlan, cost: PlanCost) -> dict[str, str]:
    loss, chance = cost.loss, cost.chance
    provenance, repair = plan.provenance, ", without repair" if plan.repair else ""
    facts = {
        "Model": f"{model.name}, identity {model.identity[:16]}",
        "Plan": f"digest {plan.digest[:16]}",
        "Criterion": provenance.criterion,
        "Calibrated on": corpora_words(provenance.corpora),
        "Schedule": provenance.schedule,
        "Sparsity": provenance.amount,
        "Repair": plan.repair.words if plan.repair else "",
        "Statistics": ", ".join(provenance.runs),
        "Measured": "",
        "Random": f"{chance.draws} draws, mean{repair}" if chance else "",
    }
    if loss:
        way = loss.way or f"at least {loss.count.words} of each held-out corpus"
        facts["Measured"] = f"{way}, {loss.created_at[:10]}"
    return {name: value for name, value in facts.items() if value}


def decision_html(decision: DecisionReport) -> str:
    """The page as HTML: values are escaped, nothing is fetched or run."""
    filters = {"size": format_bytes, "short": _short}
    return rendered("decision.html.jinja", filters, page=decision)


def _short(text: str) -> str:
    text = text.strip()
    excerpt = "\n".join(text.splitlines()[:_MOST_LINES])[:_MOST_LETTERS].rstrip()
    return text if excerpt == text else f"{excerpt} ..."
