"""How a plan is asked for on a page: slider steps, counts by hand, names for people."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from analysis.corpora.account import CONVERSATIONS, row_facts
from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import get_criterion
from analysis.errors import PlanError, StatsError
from analysis.families.base import MoELayer
from analysis.model.moe_model import MoEModel
from analysis.stats.manifest import Run
from pruning.plan.budget import Budget, SizeTarget, even_budget, sparsity_budget
from pruning.plan.layer_words import parse_numbers, ranges
from pruning.plan.units import NeuronScope, Units, expert_units
from pruning.schedules import MEASURED, SCHEDULES, fit_counts
from pruning.search.store import SEARCH
from pruning.spec.plan_options import ModeName

SPARSITY_STEP = 5


@lru_cache(maxsize=32)
def possible_percents(model: MoEModel) -> list[int]:
    """Slider steps: the sparsities in percent that leave every router enough experts.

    One that removes nothing is refused, except 0.
    """
    most = min((layer.num_experts - layer.least_kept) / layer.num_experts for layer in model.layers)
    kinds = tuple({replace(layer, index=0): layer for layer in model.layers}.values())
    units = expert_units(kinds)

    def is_possible(percent: int) -> bool:
        budget = sparsity_budget(units, f"{percent}%")
        return percent == 0 or (budget.total > 0 and not units.misfits(budget.floors))

    return list(filter(is_possible, range(0, int(most * 100) + 1, SPARSITY_STEP)))


@lru_cache(maxsize=32)
def possible_shrinks(model: MoEModel) -> list[int]:
    """Slider steps: the shares of the checkpoint's bytes that can go, in percent.

    Empty if layers differ in experts, as no share leaves them equal numbers.
    """
    if len({layer.num_experts for layer in model.layers}) > 1:
        return []
    steps = []
    for percent in range(0, 100, SPARSITY_STEP):
        try:
            even_budget(model, SizeTarget("shrink", f"{percent}%"))
        except PlanError:
            break  # more than can go
        steps.append(percent)
    return steps


def percent_removing(model: MoEModel, removed: int) -> int | None:
    """The slider step that removes this many experts in all; None if there is none."""
    units = expert_units(model.layers)
    for percent in possible_percents(model):
        if removed == sparsity_budget(units, f"{percent}%").total:
            return percent
    return None


HAND = "hand"
# Counts of a file become counts by hand: a server must not read a path that a browser names.
SCHEDULE_NAMES = (*(name for name in SCHEDULES if name != "file"), SEARCH, HAND)
MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
MOST_TEXT = 2000
# Fields of a budget that are a share -> of what.
EXPERT_BUDGETS: Mapping[str, str] = {"sparsity": "Experts", "shrink": "Bytes"}
NEURON_BUDGETS: Mapping[str, str] = {
    "sparsity": "Neurons",
    "params_share": "All parameters",
    "shrink": "Bytes on disk",
}
WIDTH_MODES: tuple[ModeName, ...] = ("uniform", "per-layer", "ragged")
WIDTH_MULTIPLES = (*MULTIPLES, 128)
SCOPES: Mapping[NeuronScope, str] = {
    NeuronScope.GLOBAL: "Global",
    NeuronScope.LAYER: "Per layer",
    NeuronScope.EXPERT: "Per expert",
}
_LONGEST_NAME, _OWN_DIGITS = 16, 8
_MOST_LISTED = 12  # counts of an example
_COUNTS = re.compile(r"\d{1,5}(\.\d{1,5})*")
_MOST_SAID = 60  # characters of counts in a message
_MOST_REASONS = 3  # in a message; the rest is a number


class CountsError(PlanError):
    """Counts by hand that do not fit the sparsity or the constraints."""

    def __init__(self, reason: str, nearest: Mapping[int, int], percent: int | None) -> None:
        super().__init__(reason)
        self.nearest = nearest  # layer -> experts kept, of the nearest plan
        self.percent = percent  # the slider step that the counts spend, if there is one


def scopes_of(criterion: str) -> tuple[NeuronScope, ...]:
    """The scopes in which a criterion can compare neurons."""
    within = get_criterion(criterion).within_layers
    return tuple(scope for scope in SCOPES if scope is not NeuronScope.GLOBAL or not within)


def schedule_label(name: str) -> str:
    """A schedule for people; for `search:demo-reap` also which search, long names cut."""
    kind, _, search = name.partition(":")
    if kind == SEARCH:
        short = search if len(search) <= _LONGEST_NAME else search[-_OWN_DIGITS:]
        return f"Searched: {short}" if search else "Searched"
    return "By hand" if name == HAND else SCHEDULES[name].label


def layers_in(text: str) -> frozenset[int]:
    """Layers from text such as "0,5-7", which may be empty."""
    return parse_numbers(text, what="layers") if text.strip() else frozenset()


def counts_text(kept: Mapping[int, int]) -> str:
    """Counts as in the URL: 16.16.12, layers in order."""
    return ".".join(str(kept[layer]) for layer in sorted(kept))


def counts_example(layers: Sequence[MoELayer]) -> str:
    """Half of the experts of each layer as counts are typed; of many layers the ends alone."""
    half = [str(max(layer.least_kept, -(-layer.num_experts // 2))) for layer in layers]
    if len(half) <= _MOST_LISTED:
        return ".".join(half)
    return f"{half[0]}.{half[1]}. ... .{half[-1]} with {len(half)} numbers"


def counts_in(text: str, layers: Iterable[MoELayer]) -> dict[int, int]:
    """Layer -> experts kept, from `counts_text`: one number per sparse layer."""
    layers = tuple(layers)
    numbers = text.strip().split(".")
    if not _COUNTS.fullmatch(text.strip()) or len(numbers) != len(layers):
        raise PlanError(
            f"The counts {text[:80]!r} are not one number for each of {len(layers)} sparse layers, "
            f"such as {counts_example(layers)}."
        )
    return {layer.index: int(number) for layer, number in zip(layers, numbers, strict=True)}


def check_counts(model: MoEModel, asked: Mapping[int, int], units: Units, budget: Budget) -> None:
    """Check counts by hand.

    Raises:
        CountsError: they spend another budget, or a layer cannot keep its count.
    """
    nearest = fit_counts(units, budget, asked).counts
    if nearest == asked:
        return
    broken = _impossible(units, asked)
    size, total = model.num_experts, budget.total
    removed, reasons = size - sum(asked.values()), broken
    if removed != total:
        keeps = f"they keep {size - removed} of {size} experts, the sparsity keeps {size - total}"
        reasons = [keeps, *broken]
    percent = None if broken else percent_removing(model, removed)
    raise CountsError(
        f"The counts by hand, {counts_text(asked)[:_MOST_SAID]}, do not fit: {'; '.join(reasons)}.",
        nearest,
        percent,
    )


def _impossible(units: Units, kept: Mapping[int, int]) -> list[str]:
    """Why layers cannot keep these counts, layers with one reason together."""
    problems: dict[str, list[int]] = {}
    rows = zip(units.layers, units.sizes, strict=True)
    for row in units.misfits([size - kept[layer.index] for layer, size in rows]):
        layer, size = units.layers[row], units.sizes[row]
        number, low, high = kept[layer.index], size - units.most[row], size - units.least[row]
        steps = f" in steps of {units.step}" if units.step > 1 else ""
        why = f"can keep {low} to {high}{steps}, and its router picks {layer.top_k}"
        if layer.index in units.limits.protected:
            why = f"is protected and keeps {high}"
        problems.setdefault(f"cannot keep {number} experts: each {why}", []).append(layer.index)
    words = [
        f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)} {why}"
        for why, layers in problems.items()
    ]
    more = [f"{len(words) - _MOST_REASONS} more like these"] if len(words) > _MOST_REASONS else []
    return words[:_MOST_REASONS] + more


_SCHEDULES: Final = {
    "uniform": "",
    MEASURED: "measured layers",  # its loss may be a prediction
    "neurons by global": "neurons global",
    "neurons by layer": "neurons per layer",
    "neurons by expert": "neurons per expert",
}


def row_counts(runs: Iterable[Run]) -> dict[str, dict[str, int]]:
    """Corpus -> what calibrations counted of its rows, if some had tools or were left out."""
    counts = {}
    for corpus in (corpus for run in runs for corpus in run.manifest.corpora):
        facts = row_facts(corpus.prepared)
        if facts.keys() - {CONVERSATIONS}:
            counts[corpus.name] = facts
    return counts


def corpora_words(corpora: Sequence[str]) -> str:
    """One corpus or a blend, for people; an even blend of many by their number.

    `corpora` are as --calibrated-on takes them.
    """
    if len(corpora) < 2:
        return "".join(corpora)
    if len(set(map(_weight, corpora))) == 1 and len(corpora) > 2:
        return f"blend of {len(corpora)} corpora"
    return f"blend of {', '.join(corpora)}"


def _weight(corpus: str) -> float:
    try:
        return parse_corpus_weight(corpus).weight
    except StatsError:  # the name alone, in a record of another program
        return 1.0


def schedule_words(schedule: str) -> str:
    """A plan's schedule for people; empty for the default, uniform."""
    return _SCHEDULES.get(schedule, schedule)
