"""A plan as the dashboard asks for one: the choice in the address, and what comes of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.lazy import pd
from analysis.model import MoEModel
from analysis.stats.store import Run
from pruning.allocation import Allocation
from pruning.constraints import Constraints, parse_numbers
from pruning.plan import PruningPlan, model_ref, select_experts
from pruning.planning.ranking import Selection
from pruning.recipe import Recipe
from pruning.recipe_file import recipe_from_yaml
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest
from pruning.schedules import (
    SCHEDULES,
    SIDE_COLUMNS,
    Spending,
    fit_counts,
    side_by_side,
)
from pruning.search.store import SEARCH, KnownSearch, search_in
from pruning.sizes import weight_bytes

HAND = "hand"
# A file's numbers become counts by hand: a server must not read a path that a browser names.
SCHEDULE_NAMES = (*(name for name in SCHEDULES if name != "file"), SEARCH, HAND)
MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
MOST_TEXT = 2000
SIDE_TABLE_COLUMNS = (
    "schedule",
    "kept",
    "fewest",
    "most",
    "layers changed",
    "overlap with uniform",
    "on disk",
)
_LONGEST_NAME, _OWN_DIGITS = 16, 8
_COUNTS = re.compile(r"\d{1,5}(\.\d{1,5})*")


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """What the plan controls say, as in the address.

    Args:
        schedule: one of SCHEDULE_NAMES.
        multiple_of: layers keep a multiple of this many experts.
        protect: layers that lose nothing, as text.
        counts: experts kept by each layer, by hand; used by the schedule `hand`.
        locked: layers that an edit leaves alone, as text.
        searched: name of the search whose schedule it is; used by the schedule `search`.
    """

    schedule: str = "uniform"
    multiple_of: int = 1
    protect: str = ""
    counts: str = ""
    locked: str = ""
    searched: str = ""

    @property
    def row(self) -> str:
        """The schedule in tables of all of them, where each search is one."""
        return f"{SEARCH}:{self.searched}" if self.schedule == SEARCH else self.schedule

    @property
    def by_hand(self) -> bool:
        """Whether the counts decide."""
        return self.schedule == HAND and bool(self.counts.strip())

    def constraints(self) -> Constraints:
        """What every schedule must respect."""
        return Constraints(multiple_of=self.multiple_of, protected=layers_in(self.protect))


def schedule_label(name: str) -> str:
    """A schedule for people; of `search:demo-reap` also which one, of a long name its own end."""
    kind, _, search = name.partition(":")
    if kind == SEARCH:
        short = search if len(search) <= _LONGEST_NAME else search[-_OWN_DIGITS:]
        return f"Searched: {short}" if search else "Searched"
    return "By hand" if name == HAND else SCHEDULES[name].label


def layers_in(text: str) -> frozenset[int]:
    """Layers in text such as "0,5-7"; none in an empty one."""
    return parse_numbers(text, what="layers") if text.strip() else frozenset()


def ranges(numbers: Iterable[int]) -> str:
    """Integers as the command line takes them: 0,5-7."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def counts_text(kept: Mapping[int, int]) -> str:
    """Counts as in the address: 16.16.12, layers in order."""
    return ".".join(str(kept[layer]) for layer in sorted(kept))


def counts_in(text: str, layers: Iterable[MoELayer]) -> dict[int, int]:
    """Layer -> experts kept, from `counts_text`."""
    layers = tuple(layers)
    numbers = text.strip().split(".")
    if not _COUNTS.fullmatch(text.strip()) or len(numbers) != len(layers):
        raise PlanError(
            f"The counts {text[:80]!r} are not one number for each of {len(layers)} sparse layers, "
            "such as 16.16.12."
        )
    kept = {layer.index: int(number) for layer, number in zip(layers, numbers, strict=True)}
    for layer in layers:
        if kept[layer.index] > layer.num_experts:
            raise PlanError(
                f"Layer {layer.index} cannot keep {kept[layer.index]} experts: it has "
                f"{layer.num_experts}."
            )
    return kept


def layer_settings(kept: Mapping[int, int]) -> tuple[str, ...]:
    """Counts as --layer-set takes them, layers with the same number together."""
    numbers = sorted(set(kept.values()), reverse=True)
    return tuple(
        f"{ranges(layer for layer, n in kept.items() if n == number)}={number}"
        for number in numbers
    )


def hand_counts(choice: PlanChoice, spending: Spending) -> dict[int, int]:
    """The counts of a choice by hand, made to spend the budget where it or the rules changed."""
    return fit_counts(spending, counts_in(choice.counts, spending.layers)).counts


def plan_request(
    base: PlanRequest, choice: PlanChoice, kept: Mapping[int, int] | None = None
) -> PlanRequest:
    """The selection that the command line would be given.

    Args:
        base: criterion, texts, sparsity.
        choice: the schedule and what it must respect.
        kept: layer -> experts kept, by hand.
    """
    protected = ranges(layers_in(choice.protect))
    request: PlanRequest = validated(
        PlanRequest,
        {
            **base.model_dump(),
            "schedule": "uniform" if choice.schedule == HAND else choice.schedule,
            "multiple_of": choice.multiple_of,
            "protect": (protected,) if protected else (),
            "layer_set": layer_settings(kept) if kept else (),
        },
    )
    return request


@dataclass(frozen=True, eq=False)
class CurrentPlan:
    """The plan that the Plan and Export pages show.

    Args:
        plan: complete, for the model on screen.
        notes: what a person should know of it.
        selection: how it was asked for; None for a plan from a file.
        file: name of the file that it came from.
    """

    plan: PruningPlan
    notes: tuple[str, ...] = ()
    selection: Selection | None = None
    file: str = ""

    @property
    def kept(self) -> dict[int, int]:
        """Layer -> experts kept."""
        return {layer: len(ids) for layer, ids in self.plan.kept.items()}

    def plan_command(self, model: str) -> str:
        """The command line that makes the plan, or shows the file that holds it."""
        if self.selection is not None:
            return self.selection.request.command()
        return shlex.join(["moeprune", "plans", "show", self.file, "--model", model])


def searched_rows(known: Iterable[KnownSearch], removed: int, order: str) -> pd.DataFrame:
    """Table of SIDE_COLUMNS: what searches on a budget found, made on one order of the experts.

    Args:
        known: searches of the model.
        removed: experts that the budget removes.
        order: see `order_digest`.
    """
    rows = [
        (f"{SEARCH}:{each.search_id}", layer, kept, each.result.experts[layer] - kept)
        for each in known
        if (each.removed, each.order) == (removed, order)
        for layer, kept in each.kept.items()
    ]
    return pd.DataFrame(rows, columns=list(SIDE_COLUMNS))


def schedules_table(
    selection: Selection, spending: Spending, searched: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Every schedule on one budget: the summary, the counts, and why some are not possible.

    `searched` is a table of `searched_rows`, which come last.

    The summary has SIDE_TABLE_COLUMNS: experts kept in all, fewest and most in a layer, layers
    that differ from the uniform schedule, share of the pruned experts that uniform prunes as
    well, bytes of the weights.
    """
    counts, refused = side_by_side(spending, selection.evidence)
    counts = pd.concat([counts, searched], ignore_index=True) if len(searched) else counts
    plans = {
        str(name): _plan(selection, spending, rows)
        for name, rows in counts.groupby("schedule", sort=False)
    }
    uniform = plans.get("uniform")
    rows = []
    for name, plan in plans.items():
        numbers = [len(ids) for ids in plan.kept.values()]
        rows.append(
            (
                name,
                sum(numbers),
                min(numbers),
                max(numbers),
                _changed(plan, uniform),
                pruned_overlap(plan, uniform, selection.model) if uniform else float("nan"),
                weight_bytes(selection.model, plan),
            )
        )
    return pd.DataFrame(rows, columns=list(SIDE_TABLE_COLUMNS)), counts, refused


def _plan(selection: Selection, spending: Spending, rows: pd.DataFrame) -> PruningPlan:
    from_table = dict(zip(rows["layer"].tolist(), rows["kept"].tolist(), strict=True))
    keep = tuple(int(from_table[layer.index]) for layer in spending.layers)
    allocation = Allocation(spending.layers, keep)
    return select_experts(selection.table, allocation, model=model_ref(selection.model))


def _changed(plan: PruningPlan, other: PruningPlan | None) -> int | None:
    if other is None:
        return None
    return sum(len(ids) != len(other.kept[layer]) for layer, ids in plan.kept.items())


def pruned_overlap(plan: PruningPlan, other: PruningPlan, model: MoEModel) -> float:
    """Share of the experts that `plan` prunes which `other` prunes as well; NaN for none."""
    pruned = both = 0
    for layer in model.layers:
        gone = set(range(layer.num_experts)).difference(plan.kept[layer.index])
        pruned += len(gone)
        both += len(gone.difference(other.kept[layer.index]))
    return both / pruned if pruned else float("nan")


def not_here(what: str) -> str:
    """Why a recipe cannot be shown, and what to do instead."""
    return (
        f"The recipe asks for {what}, which this page has no control for; run it with "
        "`moeprune run`, then open its plan here."
    )


def recipe_of(selection: Selection, widths: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe that makes this plan from nothing: corpora, criterion, budget, schedule or scope.

    Args:
        selection: how the plan was asked for.
        widths: of a plan of neurons, how an export stores them, as keys of a recipe.
    """
    request = selection.request
    searched = search_in(request.schedule_file) if request.schedule_file else None
    if searched and searched.recipe:
        own = recipe_from_yaml(searched.recipe.read_text(encoding="utf-8"))
        return own.model_copy(update={"model": request.model})
    limits, share = request.constraints, request.params_share
    only_neurons = {"atom_scope": request.atom_scope, **(widths or {})}
    return Recipe.model_validate(
        {
            "model": request.model,
            "corpora": request.corpora,
            **(sampling_of((selection.tokens or selection.choice).runs) if request.corpora else {}),
            "criterion": request.criterion,
            "granularity": request.granularity,
            **(only_neurons if request.is_atomic else {}),
            "gate": request.gate,
            "budget": {"params_share": share} if share else {"sparsity": request.sparsity},
            "schedule": "uniform" if searched else request.schedule,
            "constraints": {
                "multiple_of": limits.multiple_of,
                "floor": limits.floor,
                "protect": tuple(sorted(limits.protected)),
                "pin": {layer: tuple(sorted(ids)) for layer, ids in sorted(limits.pinned.items())},
                "drop": {
                    layer: tuple(sorted(ids)) for layer, ids in sorted(limits.dropped.items())
                },
                "set": dict(sorted(limits.fixed.items())),
            },
            "search": _search_section(searched) if searched else None,
        }
    )


def _search_section(searched: KnownSearch) -> dict[str, Any]:
    return {
        **searched.settings,
        "corpus": searched.corpus,
        "samples": searched.samples,
        "fitness": searched.fitness,
    }


def sampling_of(runs: Iterable[Run]) -> dict[str, Any]:
    """How the calibrations were made, where all were made alike: their recipe finds them again."""
    made = [
        {
            "tokens": sum(corpus.num_tokens for corpus in run.manifest.corpora),
            **{
                key: value
                for key, value in run.manifest.settings.items()
                if key in ("seq_len", "seed", "dtype")
            },
        }
        for run in runs
        if run.manifest.kind == "routed"
    ]
    return made[0] if made and made.count(made[0]) == len(made) else {}
