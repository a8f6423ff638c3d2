"""What the steps of the demo are made of: plans, requests as data, and the records they give."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from analysis.criteria import get_criterion
from pruning.schedules import MEASURED
from pruning.spec.spec import PlanSpec, RankingSpec, spec_of
from tools.demo.corpora import CALIBRATED, EVALUATED

RUNS, WEIGHTS = "runs", "weights"  # calibrations and weight statistics, which are folders


class Key(NamedTuple):
    """Which record it is, apart from its numbers and digests."""

    kind: str  # folder of the records, RUNS or WEIGHTS
    about: str = ""  # the plan or ranking, see `about`
    corpus: str = ""  # or prompt


def about(
    spec: Mapping[str, Any], *, repaired: bool = False, bits: str = "", searched: bool = False
) -> str:
    """Words of a plan: its spec as canonical JSON, and what the spec does not say."""
    words = [json.dumps(spec, sort_keys=True) if spec else "original"]
    words += ["repaired"] * repaired + ["searched"] * searched + [f"in {bits}"] * bool(bits)
    return " ".join(words)


def ranked(ranking: RankingSpec) -> str:
    """Words of a ranking without a budget, as of curves and bins."""
    return about({"ranking": ranking.model_dump(mode="json", exclude_defaults=True)})


def _needs_of(ranking: RankingSpec) -> Iterator[Key]:
    """The statistics that a ranking reads."""
    source = get_criterion(ranking.criterion).source
    if source == "routed":
        yield from (Key(RUNS, corpus=corpus) for corpus in ranking.corpora)
    elif ranking.by_neuron:  # the newest calibration says how often experts are chosen
        yield from (Key(RUNS, corpus=corpus) for corpus in CALIBRATED)
    elif source == "weights":
        yield Key(WEIGHTS)


@dataclass(frozen=True)
class Plan:
    """A plan that a request is about."""

    spec: PlanSpec | None = None  # None: the original model
    repair_tokens: int = 0  # that its repair is fitted on; 0: none
    searched: bool = False  # its counts are the best of the search of its spec

    @cached_property
    def about(self) -> str:
        """See `about`."""
        spec = self.spec.to_json() if self.spec else {}
        return about(spec, repaired=bool(self.repair_tokens), searched=self.searched)

    @property
    def cuts_neurons(self) -> bool:
        """Whether it removes neurons, whose sizes need measured routing."""
        return bool(self.spec and self.spec.by_neuron)

    def needs(self) -> Iterator[Key]:
        """The records that it is made of."""
        if not self.spec:
            return
        yield from _needs_of(self.spec.ranking)
        if self.repair_tokens:
            yield Key("repairs", self.about)
        if self.searched:
            yield Key("searches", about(self.spec.to_json()))
        if self.spec.spread.schedule == MEASURED:  # by the curves on all corpora that have some
            order = ranked(self.spec.ranking)
            yield from (Key("sensitivity", order, corpus) for corpus in EVALUATED)


def plans_by(
    criteria: Iterable[str],
    blends: Iterable[tuple[str, ...]],
    budgets: Iterable[Mapping[str, Any]],
    **fields: Any,
) -> tuple[Plan, ...]:
    """Every criterion on every blend of corpora at every budget; those that read no text once."""
    plans = dict[str, Plan]()
    for criterion, blend, budget in product(criteria, blends, budgets):
        corpora = blend if get_criterion(criterion).source == "routed" else ()
        plan = Plan(spec_of(criterion=criterion, corpora=corpora, **budget, **fields))
        plans.setdefault(plan.about, plan)
    return tuple(plans.values())


# Kinds whose requests are not divided: every record is one of the same key.
WHOLE = ("subsets", "lenses")


@dataclass(frozen=True)
class Order:
    """One request of a kind of job, as data; it gives a record for each plan and corpus."""

    task: str  # as in `app.jobs.kinds`, or "subsets"
    kind: str  # of its records, see `Key`
    plans: tuple[Plan, ...] = ()
    corpora: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ranking: RankingSpec | None = None  # what is measured without a plan: curves, bins, subsets
    records: int = 1  # of each key

    def keys(self) -> Counter[Key]:
        """The records that it gives -> how many of each key."""
        if self.kind == "lenses":
            return Counter({Key(self.kind): self.records})
        words = [plan.about for plan in self.plans] or [self._unplanned]
        formats = self.options.get("bits", ("",))
        words = [f"{name} in {bits}" if bits else name for name, bits in product(words, formats)]
        places = self.corpora or (self.options.get("prompt", ""),)
        return Counter({Key(self.kind, *pair): self.records for pair in product(words, places)})

    @property
    def _unplanned(self) -> str:
        if self.ranking is not None:
            return f"{ranked(self.ranking)}{self.options.get('order', '')}"
        return "original" if self.task in ("evaluate", "benchmark", "variance") else ""

    def needs(self) -> set[Key]:
        """The records of other orders that it reads."""
        needed = {key for plan in self.plans for key in plan.needs()}
        if self.ranking is not None:
            needed.update(_needs_of(self.ranking))
        return needed - self.keys().keys()

    def narrowed(self, keys: Collection[Key]) -> "Order | None":
        """The part that gives these records, each as the whole order does; None if none."""
        mine = [key for key in self.keys() if key in keys]
        if not mine or self.kind in WHOLE:
            return self if mine else None
        corpora = tuple(
            corpus for corpus in self.corpora if any(key.corpus == corpus for key in mine)
        )
        first_cut = next((plan for plan in self.plans if plan.cuts_neurons), None)
        words = [key.about.partition(" in ") for key in mine]
        plans = tuple(
            plan
            for plan in self.plans
            # The first plan of neurons decides the routing by which all plans are sized.
            if plan is first_cut or any(plan.about == name for name, _, _ in words)
        )
        options = dict(self.options)
        if "bits" in options:
            options["bits"] = tuple(
                option for option in options["bits"] if any(option == bits for _, _, bits in words)
            )
        return replace(self, plans=plans, corpora=corpora, options=options)


@dataclass(frozen=True)
class Step:
    """A row of the table: requests that are made one after the other, and where they ship."""

    name: str
    orders: tuple[Order, ...]
    ships: str = ""  # file of lines, or folder of files, in the repository; empty: nothing

    @property
    def kind(self) -> str:
        """The kind of its records."""
        return self.orders[0].kind

    def keys(self) -> Counter[Key]:
        """The records that it makes."""
        return sum((order.keys() for order in self.orders), Counter[Key]())

    def needs(self) -> set[Key]:
        """The records of other steps that it reads."""
        return {key for order in self.orders for key in order.needs()} - self.keys().keys()

    def narrowed(self, keys: Collection[Key]) -> "Step | None":
        """See `Order.narrowed`."""
        orders = tuple(filter(None, (order.narrowed(keys) for order in self.orders)))
        return replace(self, orders=orders) if orders else None


def narrowed(steps: Iterable[Step], keys: Collection[Key]) -> tuple[Step, ...]:
    """The parts of the steps that give these records, and all that those need."""
    steps, wanted = tuple(steps), set(keys)
    while True:
        parts = tuple(filter(None, (step.narrowed(wanted) for step in steps)))
        needed = {key for part in parts for key in part.needs()} - wanted
        if not needed:
            return parts
        wanted |= needed
