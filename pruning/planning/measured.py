"""Sensitivity: the order that layers lose experts or neurons in, and what was measured of it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.cache_keys import IdentityKey, most_results
from analysis.corpora.spec import name_among
from analysis.errors import PlanError
from analysis.files.naming import digest_of
from analysis.model.moe_model import MoEModel
from analysis.stats.store import StatsStore
from pruning.measures.curves import Curves, Sensitivity, curves_of, with_samples
from pruning.measures.names import CostName
from pruning.plan.budget import Budget
from pruning.plan.constraints import Constraints
from pruning.plan.plan import Provenance, PruningPlan, kept_by_layer, model_ref
from pruning.plan.selection import (
    allocation_of,
    kept_experts,
    neurons_left,
    select_experts,
    widths_left,
)
from pruning.plan.sizes import BYTES, total_size, weight_bytes, width_sizes
from pruning.plan.units import Removed, Units, expert_units
from pruning.planning.make import neuron_units_of, neurons_removed, plan_with
from pruning.planning.ranking import Ranking
from pruning.records.sensitivity import OrderRef, SensitivityRecord, SensitivityStore
from pruning.schedules import MEASURED
from pruning.search.store import order_digest
from pruning.spec.spec import BudgetSpec, PlanSpec, SpreadSpec


@dataclass(frozen=True, eq=False)
class Order(IdentityKey):
    """The order in which layers lose experts or neurons, for any budget."""

    ref: OrderRef
    sizes: Mapping[int, int]  # experts or neurons of each layer, by decoder index
    units: Units  # what layers can lose, a row each; a plan's constraints may leave less
    plan_of: Callable[[Removed], PruningPlan]  # the plan in which each layer loses this many
    # Bytes of all weights under that plan; of neurons without padding.
    bytes_of: Callable[[Removed], int]
    # Experts that stay in each layer, where layers lose none of them, but experts per token.
    stay: Removed | None = None

    def removed_by(self, plan: str, kept: Sequence[int]) -> Removed | None:
        """What each layer loses under a plan of this digest; None if it is not in this order.

        `kept` is what stays of each layer: of all plans with these counts one is in the order.
        """
        removed = tuple(size - stay for size, stay in zip(self.sizes.values(), kept, strict=True))
        try:
            return removed if self.plan_of(removed).digest == plan else None
        except PlanError:  # no plan in this order loses this many
            return None


@most_results(8)
def order_of(ranking: Ranking, spec: PlanSpec) -> Order:
    """The order by a criterion, under those constraints of a spec that change it.

    These are pinned and dropped experts and, for neurons, multiple and floor. The others only limit
    how many a layer loses.
    """
    spec = ranking.settled(spec)
    return _neurons(ranking, spec) if spec.by_neuron else _experts(ranking, spec)


def removed_by(plan: PruningPlan, sizes: Mapping[int, int], model: MoEModel) -> Removed:
    """Experts or neurons that each layer loses under a complete plan; `sizes` are the order's."""
    stay = kept_by_layer(plan, model)
    return tuple(size - left for size, left in zip(sizes.values(), stay, strict=True))


def _experts(ranking: Ranking, spec: PlanSpec) -> Order:
    model = ranking.model
    limits, layers = spec.constraints_for(model), model.layers
    fixed = Constraints(pinned=limits.pinned, dropped=limits.dropped)
    table, digest = ranking.table, order_digest(ranking.table)
    if fixed.held:
        digest = digest_of({"order": digest, **fixed.to_dict()})

    def plan_of(removed: Removed) -> PruningPlan:
        ref = model_ref(ranking.model)
        # Layers that lose nothing yet keep their dropped experts too.
        cut = {layer.index for layer, count in zip(layers, removed, strict=True) if count}
        dropped = {layer: ids for layer, ids in fixed.dropped.items() if layer in cut}
        limits = replace(fixed, dropped=dropped)
        return select_experts(table, allocation_of(layers, removed), model=ref, constraints=limits)

    ref = _order_ref(ranking, spec, digest)
    sizes = {layer.index: layer.num_experts for layer in layers}

    def bytes_of(removed: Removed) -> int:
        return weight_bytes(ranking.model, plan_of(removed))

    return Order(ref, sizes, expert_units(layers, fixed), plan_of, bytes_of)


def _order_ref(ranking: Ranking, spec: PlanSpec, digest: str) -> OrderRef:
    corpora = ranking.choice.corpora if spec.ranking.reads_text else ()
    ranked_by = spec.ranking.model_copy(update={"corpora": corpora})
    limits = spec.limits.model_copy(update={"protect": (), "set": {}})
    free = {"budget": BudgetSpec(), "spread": SpreadSpec()}  # it is the order of any amount
    sections = spec.model_copy(update={"ranking": ranked_by, "limits": limits, **free})
    return OrderRef(ranked_by.criterion, ranked_by.granularity, digest, sections.to_json())


def _neurons(ranking: Ranking, spec: PlanSpec) -> Order:
    # Protected layers do not change the order of the others.
    limits = spec.limits.model_copy(update={"protect": ()})
    free = {"limits": limits, "spread": SpreadSpec(schedule=MEASURED)}
    units = neuron_units_of(ranking, spec.model_copy(update=free))
    pools, experts = units.by_pool, kept_experts(ranking.model.layers, units.limits)
    layers = tuple(dict.fromkeys(layer for layer, _ in units.experts))

    def spent(removed: Removed) -> tuple[Removed, dict[int, tuple[int, ...]]]:
        """What each expert loses, and who stays in layers that lose whole ones."""
        floors = tuple(max(*pair) for pair in zip(removed, pools.least, strict=True))
        cut = {layer for layer, count in zip(layers, removed, strict=True) if count}
        by_expert = neurons_removed(units, Budget(sum(floors), "count", "", floors))
        by_expert = tuple(
            count if layer in cut else 0
            for (layer, _), count in zip(units.experts, by_expert, strict=True)
        )
        return by_expert, {layer: ids for layer, ids in experts.items() if layer in cut}

    def plan_of(removed: Removed) -> PruningPlan:
        by_expert, stays = spent(removed)
        neurons = neurons_left(units, by_expert, stays)
        return plan_with(ranking.model, stays, neurons, Provenance())

    def bytes_of(removed: Removed) -> int:
        sizes = width_sizes(ranking.model, widths_left(units, *spent(removed)))
        return int(total_size(sizes.disk)[BYTES])

    ref = _order_ref(ranking, spec, neuron_order_digest(units))
    return Order(ref, dict(zip(layers, pools.sizes, strict=True)), pools, plan_of, bytes_of)


def neuron_order_digest(units: Units) -> str:
    """SHA-256 of the order in which neurons go, which does not depend on the budget."""
    members = [units.experts[rows] for rows in units.runs]
    sha = hashlib.sha256(repr(members).encode())
    for rows, queue in zip(units.runs, units.queues, strict=True):
        sha.update(queue.astype("<i4").tobytes())
        for row in range(rows.start, rows.stop):
            layer, expert = units.experts[row]
            sha.update(f"{layer}:{expert}:{units.least[row]}:{units.step}".encode())
            sha.update(units.order(row)[::-1].astype("<i4").tobytes())
    return sha.hexdigest()


def sensitivity_on(
    corpus: str, ranking: Ranking, spec: PlanSpec, store: StatsStore
) -> Sensitivity | None:
    """The sensitivity of an order on this corpus, else on all measured ones."""
    curve_store = SensitivityStore(store.directories)
    spread = spec.spread.model_copy(update={"measured_on": (corpus,)})
    there = spec.model_copy(update={"spread": spread})
    return find_sensitivity(ranking, there, curve_store) or find_sensitivity(
        ranking, spec, curve_store
    )


def find_sensitivity(
    ranking: Ranking, spec: PlanSpec, known: SensitivityStore
) -> Sensitivity | None:
    """The sensitivity of an order on the corpora asked for, else on all measured ones."""
    every = order_sensitivity(ranking, spec, known)
    return sensitivity_of(every, spec.spread)


def sensitivity_of(every: Sensitivity | None, spread: SpreadSpec) -> Sensitivity | None:
    """The curves on the corpora asked for, else on all measured ones; None if some are missing."""
    by_corpus = {curve.corpus: curve for curve in every.curves} if every else {}
    names = tuple(name_among(by_corpus, corpus) for corpus in spread.measured_on)
    corpora = names or tuple(sorted(by_corpus))
    if not corpora or any(corpus not in by_corpus for corpus in corpora):
        return None
    chosen = tuple(by_corpus[corpus] for corpus in dict.fromkeys(corpora))
    return Sensitivity(chosen, spread.cost, spread.across)


def order_sensitivity(
    ranking: Ranking, spec: PlanSpec, known: SensitivityStore
) -> Sensitivity | None:
    """The sensitivity of an order on every measured corpus, the latest first; None without any."""
    return every_curve(order_of(ranking, spec), ranking.model, spec.spread.cost, known)


def every_curve(
    order: Order, model: MoEModel, cost: CostName, known: SensitivityStore
) -> Sensitivity | None:
    """The same of an order."""
    by_corpus: dict[str, Curves] = {}
    for record in known.of_order(model.identity, order.ref.digest):
        corpus = str(record.corpus["name"])
        if corpus not in by_corpus and (curves := _curves(known, record, cost)):
            by_corpus[corpus] = curves
    return Sensitivity(tuple(by_corpus.values()), cost) if by_corpus else None


def _curves(known: SensitivityStore, record: SensitivityRecord, cost: CostName) -> Curves | None:
    points = known.points(record)
    curves = curves_of(points, len(record.layers), cost)
    if curves is None:
        return None
    if cost == "nll":
        curves = with_samples(curves, points)
    return replace(curves, name=record.record_id, corpus=str(record.corpus["name"]))
