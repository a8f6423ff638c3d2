"""The table of all that ships with the demo: which requests make it, and where it lies."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from analysis.criteria import CRITERIA, NEURON_CRITERIA, RANKABLE, get_criterion, unified
from analysis.criteria.base import Granularity
from pruning.planning.choice import scopes_of
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS
from pruning.schedules import MEASURED
from pruning.spec.spec import RankingSpec
from tools.demo.corpora import BLEND, CALIBRATED, CODE, EVALUATED, EXCERPTS, MATH, PROMPT
from tools.demo.orders import RUNS, WEIGHTS, WHOLE, Key, Order, Plan, Step, plans_by
from tools.demo.unread_plans import EXPERTS_KEPT

ALONE = tuple((corpus,) for corpus in BLEND)
SHARES: tuple[dict[str, Any], ...] = tuple({"sparsity": share} for share in ("25%", "50%", "75%"))
HALF, QUARTER = ({"sparsity": "50%"},), ({"sparsity": "25%"},)
DRAWS = ("random", *(f"random:{seed}" for seed in range(1, 20)))  # of Random
EVERY_MEASURE = ("esap", "sap", "kl", "nll", "ppl")
ANSWERED = (*EVERY_MEASURE, "right")
BITS = ("8", "6", "5", "4", "mxfp4", "3", "2")
GROUPS = ("router", "damage", "gradient", "dense")
FLOAT32 = {"dtype": "float32"}
# Every criterion of whole experts but Random, whose draws have a line of their own.
RANKED = tuple(
    name
    for name in dict.fromkeys((*CRITERIA, *(unified(*exponents).name for exponents in RANKABLE)))
    if not name.startswith("random") and get_criterion(name).score
)
BLENDABLE = tuple(name for name in RANKED if name != "camera-p")
OPENING = "ean"  # the criterion of the plan that the dashboard opens with
# Schedules that ship with one criterion; a new one ships once it is named here and measured.
SHAPED = ("global-rescaled", "frequency", "early", "middle", "late")
EXPERTS, NEURONS = {"remove": 77}, {"remove": 4928}  # of the same bytes


def _evaluated(plans: Iterable[Plan] = (), **options: Any) -> Order:
    values = FLOAT32 | {"measures": EVERY_MEASURE, "batch_size": 8} | options
    return Order("evaluate", "evaluations", tuple(plans), EVALUATED, values)


def _repaired(plans: Iterable[Plan], tokens: int = DEFAULT_REPAIR_TOKENS) -> tuple[Plan, ...]:
    return tuple(replace(plan, repair_tokens=tokens) for plan in plans)


EAN = plans_by(("ean",), (BLEND,), HALF)
EAN_GLOBAL = plans_by(("ean",), (BLEND,), HALF, schedule="global")
EAN_REPAIRED = _repaired(EAN)
REAP = plans_by(("reap",), (BLEND,), HALF)
REAP_CODE = plans_by(("reap",), ((CODE,),), HALF)
REAP_REPAIRED = _repaired(REAP, 32_768)
RANDOM = plans_by(("random",), ((),), HALF)
SEARCHES = plans_by(("ean", "frequency", "reap", "seer"), ((CODE,),), HALF)
FREQUENCY_REPAIRED = _repaired(plans_by(("frequency",), (BLEND,), SHARES))


def _calibrated() -> Iterator[Order]:
    for corpus in CALIBRATED:
        options = FLOAT32 | {"tokens": 65_536, "groups": GROUPS}
        yield Order("calibrate", RUNS, (), (corpus,), options)


def _curves() -> Iterator[Order]:
    def order(corpora: tuple[str, ...], ranking: RankingSpec, **options: Any) -> Order:
        return Order("sensitivity", "sensitivity", (), corpora, options, ranking)

    yield order(EVALUATED, RankingSpec(criterion=OPENING, corpora=BLEND))
    heapr = RankingSpec(criterion="heapr", granularity="neuron", corpora=(CODE,))
    yield order(EVALUATED, heapr, **FLOAT32)
    reap = RankingSpec(criterion="reap", corpora=(CODE,))
    yield order((MATH,), reap, samples=16, sparsities=("50%",), refine=2)


def _repairs(plans: Iterable[Plan], **options: Any) -> Iterator[Order]:
    for plan in plans:
        yield Order("repair", "repairs", (plan,), (), FLOAT32 | options)


def _compared() -> Iterator[Order]:
    """The evaluations with every measure, and those in fewer bits."""
    plans = [Plan()]
    for blends, criteria in (
        ((BLEND,), ("reap", "frequency", "man", "ean", "damage")),
        (ALONE, ("reap", "frequency", "man")),
        (((),), ("aimer", *DRAWS)),
    ):
        plans += plans_by(criteria, blends, SHARES)
    for schedule in ("global", "global-rescaled"):
        plans += plans_by(("ean",), (BLEND,), SHARES, schedule=schedule)
    plans += (replace(plan, searched=True) for plan in SEARCHES)
    yield _evaluated((*plans, *REAP_REPAIRED, *EAN_REPAIRED), measures=ANSWERED)
    lighter = (Plan(), *plans_by(("ean",), (BLEND,), SHARES), *EAN_REPAIRED)
    yield _evaluated(lighter, measures=("nll", "right"), bits=BITS)


def _of_same_bytes() -> Iterator[Order]:
    """Neurons and experts of the same bytes, by corpus; plans that read none by themselves."""
    scopes = (("heapr", "global"), ("heapr", "layer"), ("camera-p", "layer"))
    spreads = (("heapr", "global"), ("heapr", "uniform"), ("reap", "uniform"))
    for corpora in ALONE:
        plans: list[Plan] = []
        for name, scope in scopes:
            plans += plans_by((name,), (corpora,), (NEURONS,), **_neurons(scope))
        for name, schedule in spreads:
            plans += plans_by((name,), (corpora,), (EXPERTS,), schedule=schedule)
        yield _evaluated(plans)
    neurons = plans_by(("neuron-norms", "random"), ((),), (NEURONS,), **_neurons("global"))
    yield _evaluated((*neurons, *plans_by(("random",), ((),), (EXPERTS,))))
    yield _evaluated(plans_by(DRAWS[1:5], ((),), (EXPERTS,)))


def _neurons(scope: str) -> dict[str, str]:
    return {"granularity": "neuron", "neuron_scope": scope}


def _grid(plans: Iterable[Plan]) -> Order:
    return _evaluated(plans, measures=("nll",), batch_size=64)


def _spread_evenly() -> Order:
    alone = plans_by(RANKED, ALONE, SHARES, schedule="uniform")
    return _grid((*plans_by(BLENDABLE, (BLEND,), SHARES, schedule="uniform"), *alone))


def _spread_over_layers() -> Order:
    return _grid(plans_by(BLENDABLE, (BLEND,), SHARES, schedule="global"))


def _rest_of_grid() -> Iterator[Order]:
    shaped = [plans_by((OPENING,), (BLEND,), SHARES, schedule=schedule) for schedule in SHAPED]
    measured = [
        plans_by((criterion,), (blend,), SHARES, schedule=MEASURED)
        for criterion, blend in ((OPENING, BLEND), ("reap", (CODE,)))
    ]
    yield _grid((*sum(shaped + measured, ()), *FREQUENCY_REPAIRED))
    for corpora in (BLEND, (CODE,), ()):  # an order each, as the routing of the first counts
        yield _grid(_neurons_of_grid(corpora))


def _neurons_of_grid(corpora: tuple[str, ...]) -> Iterator[Plan]:
    for name in NEURON_CRITERIA:
        reads_text = get_criterion(name).source == "routed"
        if reads_text == bool(corpora) and (name, corpora) != ("camera-p", BLEND):
            for scope in scopes_of(name):
                yield from plans_by((name,), (corpora,), SHARES, **_neurons(scope))
    if corpora == (CODE,):
        fields = {"granularity": "neuron", "schedule": MEASURED}
        yield from plans_by(("heapr",), (corpora,), SHARES, **fields)


def _unread() -> Order:
    """Plans that test the band of predicted losses: no curve or shipped evaluation has them."""
    shares = tuple({"sparsity": share} for share in ("15%", "35%", "60%"))
    plans: list[Plan] = []
    for criterion, corpora in (("ean", BLEND), ("reap", (CODE,))):
        ways: tuple[dict[str, str], ...] = ({}, {"schedule": "global"}, {"schedule": "middle"})
        for way in (*ways, {"schedule": MEASURED, "cost": "nll"}):
            plans += plans_by((criterion,), (corpora,), shares, **way)
        for kept in EXPERTS_KEPT[criterion]:
            budget = {"remove": 192 - sum(kept), "set": dict(enumerate(kept))}
            plans += plans_by((criterion,), (corpora,), (budget,))
    neurons: tuple[dict[str, Any], ...] = (_neurons("global"), _neurons("layer"))
    neurons += tuple(_neurons("layer") | {"protect": (layer,)} for layer in (0, 4))
    for way in (*neurons, {"granularity": "neuron", "schedule": MEASURED, "cost": "nll"}):
        plans += plans_by(("heapr",), ((CODE,),), shares, **way)
    return _evaluated(plans, measures=("nll",))


def _hidden_states() -> Iterator[Order]:
    for corpora in ALONE:
        plans = plans_by(("frequency", "reap", "aimer", *DRAWS[:5]), (corpora,), HALF)
        yield Order("variance", "variances", (Plan(), *plans), corpora, FLOAT32)


def _bins() -> Iterator[Order]:
    rows: list[tuple[Granularity, str, dict[str, str]]] = [
        ("neuron", name, {}) for name in ("heapr", "camera-p", "neuron-norms", "random")
    ]
    rows += [("neuron", "heapr", {"order": "index"})]
    experts = ("reap", "frequency", "aimer", "man", "heapr", "random")
    rows += [("expert", name, {}) for name in experts]
    for corpus in (CODE, MATH):
        for granularity, name, options in rows:
            reads_text = get_criterion(name).source == "routed"
            ranking = RankingSpec(
                criterion=name, granularity=granularity, corpora=(corpus,) if reads_text else ()
            )
            yield Order("bins", "bins", (), (corpus,), FLOAT32 | options, ranking)


def _benchmarks() -> Iterator[Order]:
    options = FLOAT32 | {"batch_size": 16}
    yield Order("benchmark", "benchmarks", options=options)
    plans = plans_by(("reap", "frequency", "man"), ALONE, (*QUARTER, *HALF))
    plans += plans_by(("aimer", *DRAWS[:5]), ((),), (*QUARTER, *HALF))
    for plan in plans:
        yield Order("benchmark", "benchmarks", (plan,), (), options)


def _asked() -> Order:
    plans = (*EAN_GLOBAL, *EAN, *REAP_CODE, *RANDOM, *REAP_REPAIRED, *EAN_REPAIRED)
    return Order("ask", "answers", plans, (), FLOAT32 | {"prompt": PROMPT, "max_new_tokens": 48})


def _scored() -> Iterator[Order]:
    plans = (*EAN_REPAIRED, *EAN_GLOBAL, *EAN, *REAP, *REAP_CODE, *RANDOM)
    for excerpt in EXCERPTS:
        yield Order("ask", "lenses", plans, (), FLOAT32 | {"excerpt": excerpt})


def _subsets() -> Order:
    ranking = RankingSpec(criterion="reap", corpora=(MATH,))
    options = FLOAT32 | {"sparsity": "50%", "samples": 16, "repair": True}
    # Eighths, quarters, halves and all of a run; three repairs on each of these shares of text.
    return Order("subsets", "subsets", (), (MATH,), options, ranking, records=15 + 12)


def _table() -> Iterator[Step]:
    yield Step("weights", (Order("weights", WEIGHTS),), "cached_stats")
    yield Step("calibrations", tuple(_calibrated()), "cached_stats")
    yield Step("curves", tuple(_curves()), "cached_stats/sensitivity")
    for plan in SEARCHES:
        order = Order("search", "searches", (plan,), (), {"corpus": MATH, "batch_size": 16})
        name = plan.spec.ranking.criterion if plan.spec else ""
        yield Step(f"search-{name}", (order,), "cached_stats/searches")
    shipped = (*REAP_REPAIRED, *EAN_REPAIRED)
    yield Step("repairs", tuple(_repairs(shipped)), "cached_stats/repairs")
    yield Step("repairs-of-grid", tuple(_repairs(FREQUENCY_REPAIRED, batch_size=64)))
    yield Step("compared", tuple(_compared()), "cached_stats/evaluations/demo.jsonl")
    yield Step("same-bytes", tuple(_of_same_bytes()), "cached_stats/evaluations/demo.jsonl")
    for name, orders in (
        ("grid-even", (_spread_evenly(),)),
        ("grid-global", (_spread_over_layers(),)),
        ("grid-rest", tuple(_rest_of_grid())),
    ):
        yield Step(name, orders, "cached_stats/evaluations/demo-grid.jsonl")
    yield Step("unread", (_unread(),), "tests/pruning/sensitivity/fresh/evaluations/plans.jsonl")
    yield Step("subsets", (_subsets(),), "cached_stats/subsets/demo.jsonl")
    yield Step("hidden-states", tuple(_hidden_states()), "cached_stats/variances/demo.jsonl")
    yield Step("bins", tuple(_bins()), "cached_stats/bins/demo.jsonl")
    yield Step("answers", (_asked(),), "cached_stats/answers/demo.jsonl")
    yield Step("lens", tuple(_scored()), "cached_stats/lenses/demo.jsonl")
    yield Step("benchmarks", tuple(_benchmarks()), "cached_stats/benchmarks/demo.jsonl")


def _once(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps without the plans that an earlier step has."""
    known = set[Key]()
    for step in steps:
        orders = []
        for order in step.orders:
            if order.kind in WHOLE:
                orders.append(order)
                continue
            plans = [
                plan
                for plan in order.plans
                if not replace(order, plans=(plan,)).keys().keys() <= known
            ]
            if plans or not order.plans:
                orders.append(replace(order, plans=tuple(plans)))
            known |= orders[-1].keys().keys() if orders else set()
        yield replace(step, orders=tuple(orders))


STEPS = tuple(_once(_table()))
