"""The recipe of a plan, a first recipe for a model, and the controls for a recipe."""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from analysis.demo.listing import DEMO_CORPORA
from analysis.files.shipped import DEMO_MODEL
from analysis.model.moe_model import MoEModel
from pruning.plan.budget import Budget, possible_share
from pruning.plan.constraints import Constraints
from pruning.plan.sizes import format_bytes, format_count, size_report, size_up
from pruning.plan.units import expert_units
from pruning.planning.ranking import Ranking
from pruning.requests.recipe import Recipe, RepairSection
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.requests.repair import RepairOptions, RepairRequest
from pruning.search.store import search_in
from pruning.spec.base import validated


def recipe_of(ranking: Ranking, repair: RepairRequest | None = None) -> Recipe:
    """The recipe that reproduces the plan of a ranking, and its repair, in the repair's dtype."""
    place, spec, search = ranking.place, ranking.spec, None
    file = spec.spread.schedule_file
    searched = search_in(file) if file else None
    if searched and searched.recipe:
        recipe = recipe_from_yaml(searched.recipe.read_text(encoding="utf-8"))
        return recipe.model_copy(update={"model": place.model, "repair": _section(repair)})
    if searched:
        facts = {key: getattr(searched, key) for key in ("corpus", "samples", "fitness")}
        search, spec = {**searched.settings, **facts}, searched.spec
    sampling = _sampling(ranking) if spec.ranking.corpora else {}
    values = {"model": place.model, "plan": spec, "search": search, **sampling}
    if repair:
        values |= {"repair": _section(repair), "dtype": repair.dtype}
    return validated(Recipe, values)


def _section(repair: RepairRequest | None) -> RepairSection | None:
    if repair is None:
        return None
    return RepairSection(**repair.model_dump(include=set(RepairOptions.model_fields)))


def _sampling(ranking: Ranking) -> dict[str, Any]:
    """The settings of the calibrations if all share them, so that the recipe finds them again."""
    manifests = [run.manifest for run in (ranking.tokens or ranking.choice).runs]
    samplings = [
        {"tokens": sum(corpus.num_tokens for corpus in manifest.corpora)}
        | {
            key: manifest.settings[key]
            for key in ("seq_len", "seed", "dtype")
            if key in manifest.settings
        }
        for manifest in manifests
        if manifest.kind == "routed"
    ]
    alike = bool(samplings) and samplings.count(samplings[0]) == len(samplings)
    # Texts are read without arguments, beside conversations with them.
    prepared = [corpus.prepared for manifest in manifests for corpus in manifest.corpora]
    arguments = [
        preparation["template_args"] for preparation in prepared if "template_args" in preparation
    ]
    has_one = bool(arguments) and arguments.count(arguments[0]) == len(arguments)
    return (samplings[0] if alike else {}) | ({"template_args": arguments[0]} if has_one else {})


_MULTIPLE, _MANY = 8, 64  # layers with this many experts keep a multiple, for expert parallelism


def recipe_template(model: MoEModel, named: str, out: str, corpora: Sequence[str] = ()) -> str:
    """recipe.yaml as text, ready for `moeprune prune`, with the model's numbers in comments.

    `named` is the folder, hub id or `demo` that the recipe names; `out`, the export's folder;
    `corpora` rank and evaluate, instead of the demo's or the hub's.
    """
    counts = [layer.num_experts for layer in model.layers]
    is_many = min(counts) >= _MANY and not any(count % _MULTIPLE for count in counts)
    multiple = _MULTIPLE if is_many else 1
    limits = Constraints(multiple)
    share, budget = possible_share(model, limits)
    report = size_report(model)
    own, evaluated = ["c4"], "wikitext2"
    if named == DEMO_MODEL:
        own = [corpus.name for corpus in DEMO_CORPORA.values() if corpus.is_usual]
        evaluated = "demo-stories"
    if corpora:
        own, evaluated = list(corpora), corpora[0]
    units = expert_units(model.layers, limits)
    most, least = units.sizes[0] - units.least[0], units.sizes[0] - units.most[0]
    lines = (
        f"# {model.name}: {model.family.label}, {len(model.layers)} layers with "
        f"{_span(counts)} experts, {model.layers[0].top_k} per token.",
        f"# {format_bytes(report.bytes_before)} in {model.dtype}, "
        f"{format_count(report.params_before)} parameters, "
        f"{format_count(report.active_before)} active per token.",
        "schema_version: 1",
        f"model: {_in_yaml(named)}",
        "",
        "# Calibration corpora that rank the experts: names, hub:OWNER/NAME, or files. Several are",
        "# blended: [c4, {corpus: my.jsonl, weight: 2}].",
        f"corpora: {_in_yaml(own)}",
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
        f"# Layers can keep {least} to {most} experts here.",
        f"limits: {{multiple_of: {multiple}}}",
        "",
        "# repair: {}   # refit the kept experts, and compare with the plan as it is",
        "",
        "# What the plan loses, on documents that calibration does not read.",
        f"evaluate: {{corpus: {_in_yaml(evaluated)}, fitness: [esap, nll], samples: 32}}",
        "",
        f"export: {{out: {_in_yaml(out)}, verify: true}}",
    )
    return "\n".join(lines) + "\n"


def _in_yaml(value: str | list[str]) -> str:
    """A value as one line of YAML, inside brackets too."""
    line = yaml.safe_dump([value], default_flow_style=True, width=float("inf")).strip()
    return line.removeprefix("[").removesuffix("]")


def _budget_lines(model: MoEModel, share: int, budget: Budget) -> Iterator[str]:
    kept = [
        layer.num_experts - least for layer, least in zip(model.layers, budget.floors, strict=True)
    ]
    same = size_up(round((1 - share / 100) * size_report(model).bytes_before))
    yield f"# How much goes: {share}% of the bytes leaves {_span(kept)} experts in each layer."
    yield f"budget: {{shrink: {share}%}}"
    yield f"# budget: {{target_size: {same}}}   # the same size"
    yield "# budget: {sparsity: 50%}   # half of each layer's experts"
    yield ""


def _span(counts: list[int]) -> str:
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))
