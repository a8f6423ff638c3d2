"""The recipe of a plan, a first recipe for a model, and the controls for a recipe."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import yaml

from analysis.criteria import NEURON_CRITERIA
from analysis.errors import PlanError
from analysis.model import DEMO_MODEL, MoEModel
from analysis.sparsity import parse_sparsity
from pruning.budget import GIB, Budget, possible_share
from pruning.constraints import Constraints, ranges, rooms_of
from pruning.planning.choice import (
    HAND,
    MULTIPLES,
    SPARSITY_STEP,
    WIDTH_MULTIPLES,
    counts_text,
    possible_percents,
    shrink_sparsities,
)
from pruning.planning.ranking import Selection
from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.requests.base import validated
from pruning.requests.options import experts_words
from pruning.schedules import MEASURED
from pruning.search.store import search_in
from pruning.sizes import format_bytes, format_count, size_report
from pruning.spec import PlanSpec, given


def recipe_of(selection: Selection) -> Recipe:
    """The recipe that reproduces the plan of a selection."""
    request, spec, search = selection.request, selection.spec, None
    file = spec.spread.schedule_file
    searched = search_in(file) if file else None
    if searched and searched.recipe:
        own = recipe_from_yaml(searched.recipe.read_text(encoding="utf-8"))
        return own.model_copy(update={"model": request.model})
    if searched:
        facts = {key: getattr(searched, key) for key in ("corpus", "samples", "fitness")}
        search, spec = {**searched.settings, **facts}, searched.spec
    sampling = _sampling(selection) if spec.ranking.corpora else {}
    values = {"model": request.model, "plan": spec, "search": search, **sampling}
    return validated(Recipe, values)


def _sampling(selection: Selection) -> dict[str, Any]:
    """The settings of the calibrations if all share them, so that the recipe finds them again."""
    manifests = [run.manifest for run in (selection.tokens or selection.choice).runs]
    made = [
        {"tokens": sum(corpus.num_tokens for corpus in each.corpora)}
        | {key: each.settings[key] for key in ("seq_len", "seed", "dtype") if key in each.settings}
        for each in manifests
        if each.kind == "routed"
    ]
    return made[0] if made and made.count(made[0]) == len(made) else {}


def not_here(what: str) -> str:
    """Why controls cannot show a recipe, and what to do instead."""
    return (
        f"The recipe asks for {what}, which this page has no control for; run it with "
        "`moeprune run`, then open its plan here."
    )


def controls_of(recipe: Recipe, model: MoEModel) -> dict[str, Any]:
    """The plan controls for a recipe, by their keys in the URL; refuses what none can show."""
    spec, layers = recipe.plan, {layer.index for layer in model.layers}
    limits, spread, budget = spec.limits, spec.spread, spec.budget
    criterion, widths = spec.ranking.criterion, budget.width_multiple_of
    unfit: dict[str, object] = {
        "sensitivity": recipe.sensitivity,
        "a repair": recipe.repair is not None,
        "measured_on, cost or across": given(spread, ("measured_on", "cost", "across")),
        f"multiple_of: {limits.multiple_of}": limits.multiple_of not in MULTIPLES,
        "floor": limits.floor,
        "lock": spread.lock,
    }
    if spec.by_neuron:
        percent, unit = _share(spec)
        unfit["kept_neurons"] = spread.kept_neurons
        unfit[f"criterion: {criterion}"] = criterion not in NEURON_CRITERIA
        unfit[f"width_multiple_of: {widths}"] = widths not in WIDTH_MULTIPLES
        controls = {
            "unit": unit,
            "neurons": criterion,
            "scope": MEASURED if spread.is_measured else spread.scope,
            "width": budget.width_mode,
            "width_multiple": widths,
            "neuron_multiple": limits.multiple_of,
            "pin": " ".join(experts_words(limits.pin)),
            "drop": " ".join(experts_words(limits.drop)),
        }
    else:
        percent, share_of = _place(spec, model)
        differ = spread.schedule != "uniform" or limits.protect or limits.set
        unfit["uneven"] = budget.uneven
        unfit["shrink where layers differ"] = budget.shrink is not None and differ
        unfit |= {key: getattr(limits, key) for key in ("pin", "drop")}
        unfit["a schedule file"] = spread.schedule_file
        unfit["search, as a recipe"] = recipe.search
        unfit["set for some layers only"] = limits.set and set(limits.set) != layers
        controls = {
            "budget": share_of,
            "gate": spec.ranking.gate,
            "schedule": spread.schedule,
            "multiple": limits.multiple_of,
        }
        if limits.set:
            controls |= {"schedule": HAND, "counts": counts_text(limits.set), "locked": ""}
    for what, is_unfit in unfit.items():
        if is_unfit:
            raise PlanError(not_here(what))
    shared = {"granularity": spec.ranking.granularity, "sparsity": percent}
    return {**shared, **controls, "protect": ranges(limits.protect)}


def _place(spec: PlanSpec, model: MoEModel) -> tuple[int, str]:
    """The slider step of a budget of experts, and what it is a share of."""
    budget = spec.budget
    text = budget.sparsity or budget.shrink
    if text is None:
        raise PlanError(not_here("a budget other than a sparsity or a share of the bytes"))
    shrunk = shrink_sparsities(model, spec.limits.multiple_of)
    wanted = parse_sparsity(text)
    for percent in shrunk if budget.shrink else possible_percents(model):
        if wanted == Fraction(percent, 100):
            return percent, "bytes" if budget.shrink else "experts"
    for percent, sparsity in shrunk.items():
        if budget.sparsity and wanted == parse_sparsity(sparsity):
            return percent, "bytes"
    raise PlanError(not_here(f"{'shrink' if budget.shrink else 'sparsity'}: {text}"))


def _share(spec: PlanSpec) -> tuple[int, str]:
    """The slider step of a budget of neurons, and what it is a share of."""
    budget = spec.budget
    share = budget.sparsity or budget.params_share or budget.shrink
    if not share:
        file = "kept_neurons" if spec.spread.kept_neurons is not None else ""
        raise PlanError(not_here(file or "a target size or a number of neurons"))
    percent = 100 * parse_sparsity(share)
    if percent % SPARSITY_STEP or percent >= 100:
        raise PlanError(not_here(f"a share of {share}"))
    if budget.sparsity:
        return int(percent), "neurons"
    return int(percent), "params" if budget.params_share else "bytes"


_MULTIPLE, _MANY = 8, 64  # layers with this many experts keep a multiple, for expert parallelism


def recipe_template(model: MoEModel, named: str, out: str) -> str:
    """recipe.yaml as text, ready for `moeprune run`, with the model's numbers in comments.

    `named` is the folder, hub id or `demo` that the recipe names; `out`, the export's folder.
    """
    counts = [layer.num_experts for layer in model.layers]
    is_many = min(counts) >= _MANY and not any(count % _MULTIPLE for count in counts)
    multiple = _MULTIPLE if is_many else 1
    limits = Constraints(multiple)
    share, budget = possible_share(model, limits)
    report = size_report(model)
    own, evaluated = ("demo-math", "demo-prose") if named == DEMO_MODEL else ("c4", "wikitext2")
    room = rooms_of(model.layers, limits)[0]
    lines = (
        f"# {model.name}: {model.family.label}, {len(model.layers)} layers with "
        f"{_span(counts)} experts, {model.layers[0].top_k} per token.",
        f"# {format_bytes(report.bytes_before)} in {model.dtype}, "
        f"{format_count(report.params_before)} parameters, "
        f"{format_count(report.active_before)} active per token.",
        "schema_version: 1",
        f"model: {yaml.safe_dump(named).splitlines()[0]}",
        "",
        "# Calibration corpora that rank the experts: names, hub:OWNER/NAME, or files. Several are",
        "# blended: [c4, {corpus: my.jsonl, weight: 2}].",
        f"corpora: [{own}]",
        # The dtype of the calibrations that ship with the demo.
        *(["dtype: float32"] if named == DEMO_MODEL else []),
        "# tokens: 65536   # of each corpus",
        "# calibrate: {stream_layers: true}   # one layer at a time, for models larger than memory",
        "",
        "# How experts are ranked: reap, ean, frequency, ... (aimer needs no corpus).",
        "criterion: reap",
        "",
        *_budget_lines(model, share, budget),
        "# Which layers lose more. uniform: all keep the same number, which serving engines need.",
        "schedule: uniform",
        f"# Layers can keep {room.size - room.most} to {room.size - room.least} experts here.",
        f"limits: {{multiple_of: {multiple}}}",
        "",
        "# repair: {}   # refit the kept experts, and compare with the plan as it is",
        "",
        "# What the plan loses, on a corpus that ranked nothing.",
        f"evaluate: {{corpus: {evaluated}, fitness: [esap, nll], samples: 32}}",
        "",
        f"export: {{out: {yaml.safe_dump(out).splitlines()[0]}, verify: true}}",
    )
    return "\n".join(lines) + "\n"


def _budget_lines(model: MoEModel, share: int, budget: Budget) -> Iterator[str]:
    kept = [
        layer.num_experts - gone for layer, gone in zip(model.layers, budget.floors, strict=True)
    ]
    gib = (1 - share / 100) * size_report(model).bytes_before / GIB
    yield f"# How much goes: {share}% of the bytes leaves {_span(kept)} experts in each layer."
    yield f"budget: {{shrink: {share}%}}"
    yield f"# budget: {{target_size: {gib:.4g}GiB}}   # the same size"
    yield "# budget: {sparsity: 50%}   # half of each layer's experts"
    yield ""


def _span(counts: list[int]) -> str:
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))
