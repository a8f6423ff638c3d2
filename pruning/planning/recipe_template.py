"""A first recipe for a model, with comments that hold its own numbers."""

from collections.abc import Iterator

import yaml

from analysis.errors import PlanError
from analysis.model import DEMO_MODEL, MoEModel
from pruning.budget import GIB, Budget, SizeTarget, even_budget
from pruning.constraints import Constraints, rooms_of
from pruning.sizes import format_bytes, format_count, size_report

_SHARES = (40, 30, 20, 10)  # of the bytes, in percent; the first that is possible
_MULTIPLE, _MANY = 8, 64  # of layers with so many experts: expert parallelism divides them


def recipe_template(model: MoEModel, named: str, out: str) -> str:
    """recipe.yaml as text, which `moeprune run` takes as it is.

    Args:
        model: whose layers, experts and sizes the comments say.
        named: the model as the recipe names it: a folder, a hub id or `demo`.
        out: folder of the export.
    """
    counts = [layer.num_experts for layer in model.layers]
    is_many = min(counts) >= _MANY and not any(count % _MULTIPLE for count in counts)
    multiple = _MULTIPLE if is_many else 1
    limits = Constraints(multiple)
    share, budget = _possible(model, limits)
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
        # As the calibrations that ship with it.
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
        f"constraints: {{multiple_of: {multiple}}}",
        "",
        "# What the plan loses, on a corpus that ranked nothing.",
        f"evaluate: {{corpus: {evaluated}, fitness: [esap, nll], samples: 32}}",
        "",
        f"export: {{out: {yaml.safe_dump(out).splitlines()[0]}, verify: true}}",
    )
    return "\n".join(lines) + "\n"


def _possible(model: MoEModel, limits: Constraints) -> tuple[int, Budget]:
    """The largest usual share of the bytes that can go, and its budget."""
    for share in _SHARES:
        try:
            return share, even_budget(model, SizeTarget("shrink", f"{share}%"), limits)
        except PlanError:
            continue
    raise PlanError(
        f"{model.name} cannot shrink by {_SHARES[-1]}% with equal layers: too few experts can go."
    )


def _budget_lines(model: MoEModel, share: int, budget: Budget) -> Iterator[str]:
    kept = [
        layer.num_experts - gone for layer, gone in zip(model.layers, budget.floors, strict=True)
    ]
    gib = (1 - share / 100) * size_report(model).bytes_before / GIB
    yield f"# How much goes: {share}% of the bytes leaves {_span(kept)} experts in each layer."
    yield f"budget: {{shrink: {share}%}}"
    yield f"# budget: {{target_gib: {gib:.4g}}}   # the same size"
    yield "# budget: {sparsity: 50%}   # half of each layer's experts"
    yield ""


def _span(counts: list[int]) -> str:
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))
