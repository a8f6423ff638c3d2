"""Experts against bits: what every size costs, measured, or predicted as a sum of two losses.

A plan in fewer bits loses nearly what the plan loses, plus what the original loses in these bits.
How far that sum is off is measured where both are known. No torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from analysis.cache_keys import most_results
from analysis.errors import StatsError
from analysis.lazy import pd
from analysis.model.moe_model import MoEModel
from analysis.ranking.leaderboard import pareto_front
from pruning.measures.result import interval_of
from pruning.plan.bits import BY_LAYER
from pruning.plan.expert_sizes import fewer_bits
from pruning.plan.plan import NEURON_GRANULARITY, keep_all
from pruning.plan.sizes import BYTES, ModelPart, size_report, size_up
from pruning.records.evaluation import EvaluationStore
from pruning.records.plan_facts import PlanFacts, plan_facts
from pruning.records.quality import LossIncrease, PlanLoss, loss_of, original_in_bits, stored_losses

FRONT_COLUMNS: Final = (
    "plan",
    "criterion",
    "calibrated_on",
    "repaired_on",
    "repair_tokens",
    "schedule",
    "granularity",
    "bits",
    "removed",
    "bytes",
    "mean",
    "low",
    "high",
    "range",
    "worst",
    "worst_on",
    "is_measured",
    "on_front",
)
# What `low` and `high` of a row are, its `range`.
OF_TEXTS: Final = "95% of texts"
OF_SUMS: Final = "largest error"
OF_PLANS: Final = "95% of plans"
_DIGITS: Final = 3  # of a share removed, at which plans compete
Cell = Mapping[str, PlanLoss]  # bits -> loss of one plan in them


@dataclass(frozen=True, eq=False)
class Front:
    """Candidates by size, and how well the sum predicts."""

    # Of FRONT_COLUMNS, by bytes. `plan` is the digest of the plan as it is exported; `low` and
    # `high` are OF_TEXTS, by documents, where measured, else OF_SUMS: `mean` and `most_error`
    # on both sides.
    table: pd.DataFrame
    compared: int  # cells that are both measured and predicted
    mean_error: float  # of these, absolute, in nats per token; NaN without any
    most_error: float
    losses: tuple[PlanLoss, ...]  # that it was made of

    @property
    def plans(self) -> dict[str, PlanLoss]:
        """Digest -> loss of a plan in the checkpoint's own bits, or in bits by layer."""
        return {loss.plan: loss for loss in self.losses if loss.facts.bits in ("", BY_LAYER)}

    def has(self, digest: str, bits: str) -> bool:
        """Whether a plan, by the digest of its export, has a row in these bits."""
        return bool(((self.table["plan"] == digest) & (self.table["bits"] == bits)).any())

    def with_row(self, row: Mapping[str, Any]) -> pd.DataFrame:
        """The table with the row of a plan that does not compete."""
        new_row = pd.DataFrame([{**row, "on_front": False}], columns=list(FRONT_COLUMNS))
        return pd.concat([self.table, new_row], ignore_index=True)

    def with_plan(self, loss: PlanLoss, exported: str) -> pd.DataFrame:
        """The table with the row of a measured plan; `exported` is the digest of its export."""
        if loss.facts.top_k or self.has(exported, loss.facts.bits):
            return self.table
        return self.with_row({**_row(loss, loss), "plan": exported})

    def sum_of(self, digest: str, bits: str) -> LossIncrease | None:
        """The loss predicted for a measured plan in bits; None if either was not measured.

        `digest` is of the plan as it is exported.
        """
        loss, alone = loss_of(self.losses, digest), original_in_bits(self.losses).get(bits)
        return LossIncrease(_sum(loss, alone)) if loss and alone else None

    def ways_to(self, nbytes: int) -> pd.DataFrame:
        """The rows of at most this size, least loss first; a StatsError if none is so small."""
        rows = self.table[self.table["bytes"] <= nbytes]
        if rows.empty:
            least = self.table["bytes"].min()
            raise StatsError(
                f"No candidate takes at most {nbytes:,} bytes; the smallest takes {least:,}. "
                f"Give --target-size {size_up(int(least))} or more, or evaluate plans that keep "
                "less, or in fewer bits."
            )
        return rows.sort_values(["mean", "bytes"], kind="stable", ignore_index=True)


def front_of(model: MoEModel, losses: Iterable[PlanLoss]) -> Front:
    """What the stored losses of a model say of its plans in all bits.

    Of plans that remove the same share, the one that loses least competes, of experts and of
    neurons, repaired and not, and all that were measured in fewer bits. Draws of Random do not. On
    the front is only what was measured. Plans with bits by layer are rows of their own.
    """
    plans: defaultdict[tuple[object, ...], dict[str, PlanLoss]] = defaultdict(dict)
    measured = tuple(
        loss
        for loss in losses
        # Fewer experts per token save no bytes.
        if not (loss.way or loss.missing or loss.is_random or loss.facts.top_k)
    )
    for plan_loss in measured:
        if plan_loss.facts.bits != BY_LAYER:
            plans[_plan_of(plan_loss.facts)][plan_loss.facts.bits] = plan_loss
    cells = [cell for cell in plans.values() if "" in cell]
    original = next((cell for cell in cells if not cell[""].facts.removed), None)
    if original is None:
        cells = [cell for cell in cells if cell[""].facts.removed]
        original = {"": _original_beside(model, measured)}
    saved = _bytes_saved(model)
    rows = [_row(loss, loss) for loss in measured if loss.facts.bits == BY_LAYER]
    errors: list[float] = []
    for cell in [original, *_rivals(cells)]:
        rows.append(_row(cell[""], cell[""]))
        for bits in saved:
            loss, alone = cell.get(bits), original.get(bits)
            if loss and alone and cell is not original:
                errors.append(abs(loss.mean - cell[""].mean - alone.mean))
            if loss:
                rows.append(_row(loss, cell[""]))
            elif alone and (nbytes := _bytes_in(bits, cell[""].facts, saved[bits])):
                rows.append(_sum_row(cell[""], alone, nbytes))
    most = max(errors, default=np.nan)
    table = pd.DataFrame(rows, columns=list(FRONT_COLUMNS))
    table["low"] = table["low"].where(table["is_measured"], table["mean"] - most)
    table["high"] = table["high"].where(table["is_measured"], table["mean"] + most)
    points = table[table["is_measured"]]
    front = pareto_front(points["bytes"], points["mean"], higher_is_better=False)
    table["on_front"] = table.index.isin(points.index[front])
    table = table.sort_values(["bytes", "mean"], kind="stable", ignore_index=True)
    mean = float(np.mean(errors)) if errors else np.nan
    return Front(table, len(errors), mean, most, measured)


def _original_beside(model: MoEModel, losses: Sequence[PlanLoss]) -> PlanLoss:
    """The original, of evaluations of plans: each measures it on the same samples as its plan.

    Raises:
        StatsError: no plan was evaluated.
    """
    if not losses:
        raise StatsError(
            f"The original was not evaluated: {model.name} has no evaluations yet. Run `moeprune "
            "evaluate`, with a plan or without."
        )
    plan, loss = keep_all(model), losses[-1]
    samples = {
        name: sample.model_copy(update={"nll": sample.full_nll})
        for name, sample in loss.samples.items()
    }
    same = dict.fromkeys(loss.change, 0.0)
    facts = plan_facts(plan, model)
    return replace(loss, plan=plan.digest, facts=facts, change=same, samples=samples)


@most_results(4)
def stored_front(store: EvaluationStore, model: MoEModel) -> Front:
    """`front_of` the stored evaluations of a model."""
    return front_of(model, stored_losses(store, model.identity))


def _plan_of(facts: PlanFacts) -> tuple[object, ...]:
    """What a plan is, whatever its bits; plans of one way to rank differ in what they remove."""
    way = facts.criterion, facts.gate, facts.corpora, facts.schedule, facts.sparsity
    return *way, facts.granularity, facts.repair, round(facts.removed or 0, _DIGITS)


def _rivals(cells: Iterable[Cell]) -> list[Cell]:
    """Plans that compete, see `front_of`, the least pruned first."""
    best: dict[tuple[object, ...], Cell] = {}
    others: list[Cell] = []
    for cell in cells:
        loss = cell[""]
        if not loss.facts.removed:
            continue
        kind = round(loss.facts.removed, _DIGITS), loss.is_repaired, loss.facts.granularity
        if kind not in best or loss.mean < best[kind][""].mean:
            best[kind] = cell
        if len(cell) > 1:
            others.append(cell)
    chosen = [*best.values(), *others]
    distinct = {id(cell): cell for cell in chosen}
    return sorted(distinct.values(), key=lambda cell: cell[""].facts.removed or 0)


def _bytes_saved(model: MoEModel) -> dict[str, int]:
    """Bits that make the checkpoint smaller -> bytes that they save of all its experts."""
    original = keep_all(model)

    def expert_bytes(bits: str) -> int:
        after = size_report(model, replace(original, bits=bits)).after
        return int(after[ModelPart.EXPERTS][BYTES])

    full = expert_bytes("")
    return {bits: full - expert_bytes(bits) for bits in fewer_bits(model)}


def _row(loss: PlanLoss, exported: PlanLoss) -> dict[str, Any]:
    """A measured row; `exported` is the same plan in the checkpoint's own bits."""
    gains = [sample.change for sample in loss.samples.values()]
    low, high = interval_of(gains).tolist() if len(gains) == len(loss.change) else (np.nan,) * 2
    return {
        "plan": exported.plan,
        **{name: value for name, value in loss.facts.columns.items() if name in FRONT_COLUMNS},
        "mean": loss.mean,
        "low": low,
        "high": high,
        "range": OF_TEXTS,
        "worst": loss.worst,
        "worst_on": loss.worst_on,
        "is_measured": True,
    }


def _sum(loss: PlanLoss, alone: PlanLoss) -> dict[str, float]:
    """Corpus -> the loss increase of a plan and of the original in bits together."""
    return {corpus: loss.change[corpus] + alone.change[corpus] for corpus in loss.change}


def _bytes_in(bits: str, facts: PlanFacts, saved: int) -> int | None:
    """Bytes of a plan in bits that save so much of all experts; None if it cannot be known."""
    if facts.granularity == NEURON_GRANULARITY:
        return facts.bytes_in_bits.get(bits)
    return int(facts.columns["bytes"]) - round((1 - (facts.removed or 0)) * saved)


def _sum_row(loss: PlanLoss, alone: PlanLoss, nbytes: int) -> dict[str, Any]:
    """A predicted row: a plan in bits in which only the original, `alone`, was measured."""
    together = LossIncrease(_sum(loss, alone))
    return {
        **_row(loss, loss),
        "bits": alone.facts.bits,
        "bytes": nbytes,
        "mean": together.mean,
        "range": OF_SUMS,
        "worst": together.worst,
        "worst_on": together.worst_on,
        "is_measured": False,
    }
