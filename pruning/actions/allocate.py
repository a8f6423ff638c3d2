"""Allocate: experts and bits of every layer within a size, by measured sensitivities."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import floor
from typing import Annotated, Final

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from analysis.corpora.spec import name_among
from analysis.errors import PlanError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from pruning.actions.action import Action, Call, Note, Outcome, Table
from pruning.measures.curves import from_cost
from pruning.measures.result import MEASURES
from pruning.option import Option
from pruning.plan.bits import FORMATS, OWN, FormatName
from pruning.plan.budget import GIB, Budget, parse_gib
from pruning.plan.plan import PruningPlan, keep_all, kept_by_layer
from pruning.plan.sizes import format_bytes, weight_bytes
from pruning.planning.layer_options import (
    LayerOption,
    bytes_besides,
    cheapest,
    cheapest_alike,
    check_size,
    cost_of,
    layer_options,
    plan_with_bits,
)
from pruning.planning.make import units_of
from pruning.planning.measured import order_of
from pruning.planning.measured_bits import bits_costs
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.evaluation import NamedCriterion
from pruning.requests.following import evaluate_command
from pruning.requests.model import ModelRequest
from pruning.schedules import MEASURED
from pruning.spec import options, plan_options
from pruning.spec.base import command_line, option_words
from pruning.spec.spec import spec_of
from pruning.study import Study
from pruning.tasks import Steps
from pruning.tasks.loading import open_plan

Costs = Mapping[str, tuple[Mapping[str, float], ...]]  # corpus -> layer -> format -> cost


class AllocateRequest(ModelRequest):
    """Experts and bits of every layer within a size."""

    asked_by = "allocate"
    writes = "allocated.json"
    target_size: plan_options.TargetSize
    criterion: Annotated[
        NamedCriterion | None,
        Option("Criterion whose order experts go in, as measured; without one all stay."),
    ] = None
    calibrated_on: tuple[options.CalibratedOn, ...] = ()
    gate: options.Gate = "applied"
    plans: Annotated[
        tuple[
            Annotated[options.Plan, Option("plan.json whose experts stay; only bits differ.")], ...
        ],
        BeforeValidator(lambda value: (value,) if isinstance(value, Mapping) else value),
        Field(max_length=1),
    ] = ()
    bits: Annotated[
        tuple[
            Annotated[FormatName, Option("Format to use; repeatable. Default: all measured.")], ...
        ],
        options.SEVERAL,
        options.EACH_ONCE,
    ] = ()
    measured_on: tuple[
        Annotated[
            plan_options.MeasuredOn,
            Option("Corpus of the sensitivities; repeatable. Default: all.", ("--measured-on",)),
        ],
        ...,
    ] = ()
    cost: Annotated[plan_options.Cost, Option("Cost to minimise.")] = "esap"
    stats_dir: options.StatsDir | None = None

    @model_validator(mode="after")
    def _says_once_what_stays(self) -> "AllocateRequest":
        if self.plans and self.criterion:
            raise ValueError("--plan says which experts stay; leave --criterion out")
        if self.calibrated_on and not self.criterion:
            raise ValueError("--calibrated-on is of a --criterion; name it too")
        return self

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return floor(parse_gib(str(self.target_size)) * GIB)


@dataclass(frozen=True, eq=False)
class Allocated:
    """The plan, and what was weighed."""

    plan: PruningPlan
    chosen: tuple[LayerOption, ...]
    alike: tuple[LayerOption, ...] | None  # the best that treats all layers alike
    corpora: tuple[str, ...]  # that costs are means of


def _run(request: AllocateRequest) -> Steps[Allocated]:
    model = load_model_index(request.model, revision=request.revision)
    store = stats_store(request.stats_dir)
    known = SensitivityStore(store.directories)
    yield from known.table.notes(model.identity)
    in_bits = _chosen_costs(request, model, known)
    if request.criterion:
        made = yield from _by_order(request, model, in_bits)
    else:
        made = _of_experts(request, model, in_bits)
    check_size(model, made.plan, request.nbytes)
    return made


def _chosen_costs(request: AllocateRequest, model: MoEModel, known: SensitivityStore) -> Costs:
    """What formats cost on the corpora asked for; a PlanError if they were not measured."""
    costs = bits_costs(model, known, request.cost)
    names = [name_among(costs, corpus) for corpus in request.measured_on] or sorted(costs)
    missing = [name for name in names if name not in costs]
    measured = [
        {bits for layer in costs[name] for bits in layer} for name in names if name in costs
    ]
    lacking = {bits for bits in request.bits if not all(bits in own for own in measured)}
    if missing or lacking or not names:
        words = [
            *("sensitivity", request.model, "--criterion", request.criterion or "CRITERION"),
            *(word for name in names or ("CORPUS",) for word in ("--corpus", name)),
            *(word for name in sorted(request.bits) or ("4",) for word in ("--bits", name)),
            *option_words(request, only=("revision", "stats_dir")),
        ]
        what = f"in {', '.join(sorted(lacking))} " if lacking and not missing else ""
        raise PlanError(
            f"What layers lose {what}was not measured{' on ' if missing else ''}"
            f"{', '.join(missing)} yet; run `{command_line(*words)}` first."
        )
    wanted = {OWN, *(request.bits or FORMATS)}
    return {
        name: tuple(
            {bits: layer[bits] for bits in layer if bits in wanted} for layer in costs[name]
        )
        for name in names
    }


def _mean(by_corpus: Costs) -> list[dict[str, float]]:
    """Of each layer, format -> mean cost over corpora; a PlanError if these differ in formats."""
    formats = {corpus: frozenset(costs[0]) - {OWN} for corpus, costs in by_corpus.items()}
    if len(set(formats.values())) > 1:
        words = [
            f"in {', '.join(name for name in FORMATS if name in own)} on {corpus}"
            for corpus, own in formats.items()
        ]
        raise PlanError(
            f"What layers lose was measured {'; '.join(words)}. Name corpora with the same formats "
            "(--measured-on), or formats that all have (--bits), or measure the others."
        )
    layers = zip(*by_corpus.values(), strict=True)
    return [
        {bits: float(np.mean([costs[bits] for costs in layer])) for bits in layer[0]}
        for layer in layers
    ]


def _of_experts(request: AllocateRequest, model: MoEModel, in_bits: Costs) -> Allocated:
    """Bits alone, of all experts or of those that a plan keeps."""
    plan = keep_all(model)
    if request.plans:
        plan = open_plan(request.plans[0], model, stats_store(request.stats_dir)).in_own_bits
    if plan.kept_neurons:
        raise PlanError("The plan removes neurons; bits by layer are given to whole experts.")
    kept = kept_by_layer(plan, model)
    removal = [
        {layer.num_experts - stay: 0.0} for layer, stay in zip(model.layers, kept, strict=True)
    ]
    every = layer_options(model, lambda _: plan, removal, _mean(in_bits))
    size = (request.nbytes, bytes_besides(model, plan))
    chosen = cheapest(every, *size)
    made = plan_with_bits(model, plan, chosen)
    return Allocated(made, chosen, cheapest_alike(every, *size), tuple(in_bits))


def _by_order(request: AllocateRequest, model: MoEModel, in_bits: Costs) -> Steps[Allocated]:
    """Experts in the order of a criterion, and bits."""
    spec = spec_of(
        criterion=request.criterion,
        corpora=request.calibrated_on,
        gate=request.gate,
        target_size=request.target_size,
        schedule=MEASURED,
        cost=request.cost,
        measured_on=request.measured_on,
    )
    spec = spec if spec.reads_text else spec.changed(corpora=())
    study = Study.of(request, model, stats_store(request.stats_dir))
    ranking = yield from study.rank(spec)
    curves = [own for own in ranking.curves_for(spec).curves if own.corpus in in_bits]
    if not curves:
        raise PlanError(
            "Removal and bits were measured on different corpora; measure both at once with "
            "`moeprune sensitivity --bits`."
        )
    order, units = order_of(ranking, spec), units_of(ranking, spec)
    removal = [
        {
            number: float(np.mean([own.layers[at].at(number) for own in curves]))
            for number in range(least, most + 1, units.step)
            if number <= min(int(own.layers[at].removed[-1]) for own in curves)
        }
        for at, (least, most) in enumerate(zip(units.least, units.most, strict=True))
    ]
    corpora = {own.corpus: in_bits[own.corpus] for own in curves}
    every = layer_options(model, order.plan_of, removal, _mean(corpora))
    size = (request.nbytes, bytes_besides(model, keep_all(model)))
    chosen = cheapest(every, *size)
    removed = tuple(option.removed for option in chosen)
    made = ranking.provenance(spec, units, Budget(sum(removed), "size", request.target_size))
    # Its spec would make another plan: one without bits.
    plan = replace(order.plan_of(removed), provenance=replace(made, spec={}))
    allocated = plan_with_bits(model, plan, chosen)
    return Allocated(allocated, chosen, cheapest_alike(every, *size), tuple(corpora))


def _tell(call: Call[AllocateRequest], made: Allocated) -> Outcome:
    """The allocation, beside the best that treats all layers alike, and what comes next."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    nbytes = weight_bytes(model, made.plan)
    cost = from_cost(request.cost, cost_of(made.chosen))
    label = MEASURES[request.cost].label
    layers = [
        {
            "layer": layer.index,
            "experts": layer.num_experts - option.removed,
            "bits": option.bits,
            "bytes": option.nbytes,
        }
        for layer, option in zip(model.layers, made.chosen, strict=True)
    ]
    rows = [
        (*(entry[name] for name in ("layer", "experts", "bits")), format_bytes(option.nbytes))
        for entry, option in zip(layers, made.chosen, strict=True)
    ]
    return Outcome(
        f"{format_bytes(nbytes)}, predicted {label} {cost:.4f}",
        {"bytes": nbytes, "cost": cost, "layers": layers},
        (
            Table("experts and bits by layer", ("layer", "experts", "bits", "size"), rows),
            *map(Note, _notes(request, model, made)),
        ),
        (evaluate_command(request, model, {call.out: made.plan}),),
        made.plan,
    )


def _notes(request: AllocateRequest, model: MoEModel, made: Allocated) -> Iterator[str]:
    label = MEASURES[request.cost].label
    yield f"Costs of layers add up to what is predicted, on {', '.join(made.corpora)}; evaluate it."
    if made.alike:
        some = made.alike[0]
        stay = [
            layer.num_experts - option.removed
            for layer, option in zip(model.layers, made.alike, strict=True)
        ]
        bits = FORMATS[some.bits].label if some.bits in FORMATS else "bits as they are"
        cost = from_cost(request.cost, cost_of(made.alike))
        yield (
            f"All layers alike, at most this size: {'/'.join(map(str, sorted({*stay})))} experts, "
            f"{bits}, predicted {label} {cost:.4f}."
        )
    if len({option.removed for option in made.chosen}) > 1:
        yield "Layers differ in experts: only load_pruned loads it this small."


ACTION: Final = Action(
    AllocateRequest,
    _run,
    _tell,
    "allocate demo --target-size 4MiB",
    "bits by layer of {about} to {request.target_size}",
)
