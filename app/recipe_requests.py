"""A recipe as requests: the same that the single commands make of their options."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.groups import groups_for
from app.task_requests import (
    CalibrateRequest,
    ExportRequest,
    SelectRequest,
    WeightsRequest,
    validated,
)
from pruning.plan import PruningPlan
from pruning.recipe import FREQUENCY, ConstraintSection, Recipe


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a recipe runs; no part of it, because it does not change what is decided.

    Args:
        stats_dir: where statistics are read and written; None for the default.
        device: auto, cpu, cuda ...
        batch_size: sequences in one forward.
        trust_remote_code: run code that comes with the checkpoint.
    """

    stats_dir: Path | None = None
    device: str = "auto"
    batch_size: int = 8
    trust_remote_code: bool = False


def check_supported(recipe: Recipe) -> None:
    """Refuse, before any work, what this version cannot do.

    Raises:
        PlanError: names the key, and what to do instead.
    """
    if recipe.granularity != "expert":
        raise PlanError(
            f"The recipe asks for granularity {recipe.granularity!r}; this version removes whole "
            "experts only (granularity: expert)."
        )
    for key, section in (("evaluate", recipe.evaluate),):
        if section is not None:
            raise PlanError(
                f"The recipe asks for {key}, which this version does not have yet; leave the key "
                f"{key} out."
            )


def counts_tokens(recipe: Recipe) -> bool:
    """Whether anything in the recipe reads calibration text."""
    routed = get_criterion(recipe.criterion).source == "routed"
    return routed or recipe.schedule.name == FREQUENCY


def calibrate_requests(recipe: Recipe, machine: Machine) -> list[CalibrateRequest]:
    """One calibration for each corpus; none where nothing reads them."""
    if not counts_tokens(recipe):
        return []
    groups = ",".join(groups_for(get_criterion(recipe.criterion).columns(recipe.gate)))
    common: dict[str, Any] = {
        "model": recipe.model,
        "revision": recipe.revision,
        "tokens": recipe.tokens,
        "seq_len": recipe.seq_len,
        "seed": recipe.seed,
        "dtype": recipe.dtype,
        "groups": groups,
        "device": machine.device,
        "batch_size": machine.batch_size,
        "trust_remote_code": machine.trust_remote_code,
        "stats_dir": machine.stats_dir,
    }
    return [
        validated(CalibrateRequest, {**common, "corpus": part.corpus}) for part in recipe.corpora
    ]


def weights_request(recipe: Recipe, machine: Machine) -> WeightsRequest | None:
    """The measurement of the weights; None where the criterion does not read them."""
    if get_criterion(recipe.criterion).source != "weights":
        return None
    return WeightsRequest(model=recipe.model, revision=recipe.revision, stats_dir=machine.stats_dir)


def select_request(recipe: Recipe, machine: Machine) -> SelectRequest:
    """What `moeprune plan` would be asked."""
    budget = recipe.budget.model_dump(exclude_none=True) if recipe.budget else {}
    request: SelectRequest = validated(
        SelectRequest,
        {
            "model": recipe.model,
            "revision": recipe.revision,
            "criterion": recipe.criterion,
            "gate": recipe.gate,
            "corpora": tuple(
                part.corpus if part.weight == 1 else f"{part.corpus}:{part.weight:g}"
                for part in recipe.corpora
            ),
            "schedule": recipe.schedule.name,
            "schedule_file": recipe.schedule.file,
            "stats_dir": machine.stats_dir,
            **budget,
            **_constraints(recipe.constraints),
        },
    )
    return request


def _constraints(section: ConstraintSection) -> dict[str, Any]:
    """As the options of the command line write them."""
    return {
        "multiple_of": section.multiple_of,
        "protect": _texts(section.protect),
        "lock": _texts(section.lock),
        "pin": _by_layer(section.pin),
        "drop": _by_layer(section.drop),
        "layer_set": tuple(f"{layer}={keep}" for layer, keep in section.set.items()),
    }


def _texts(numbers: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(map(str, numbers))


def _by_layer(experts: Mapping[int, tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(f"{layer}:{','.join(map(str, ids))}" for layer, ids in experts.items() if ids)


def export_request(recipe: Recipe, text: str, plan: PruningPlan) -> ExportRequest | None:
    """The export, with the recipe's own text; None where the recipe asks for none."""
    if recipe.export is None:
        return None
    request: ExportRequest = validated(
        ExportRequest,
        {
            "model": recipe.model,
            "revision": recipe.revision,
            "plan": plan.to_dict(),
            "recipe": text,
            **recipe.export.model_dump(),
        },
    )
    return request
