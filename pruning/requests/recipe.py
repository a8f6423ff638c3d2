"""A recipe as requests: the same that the single commands make of their options."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.criteria import get_criterion
from analysis.stats.groups import groups_for, ordered
from pruning.atoms.widths import WidthMode
from pruning.plan import ATOMIC_GRANULARITY, PruningPlan
from pruning.recipe import Recipe
from pruning.requests.base import CalibrateRequest, ExportRequest, WeightsRequest, validated
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.plan import PlanRequest


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


def machine_of(
    recipe: Recipe,
    stats_dir: Path | None,
    *,
    device: str | None = None,
    batch_size: int | None = None,
    trust_remote_code: bool = False,
) -> Machine:
    """Where a recipe runs: as the command line says, else as the recipe does."""
    own = recipe.calibrate
    return Machine(stats_dir, device or own.device, batch_size or own.batch_size, trust_remote_code)


def is_atomic(recipe: Recipe) -> bool:
    """Whether neurons are removed."""
    return recipe.granularity == ATOMIC_GRANULARITY


def calibrate_requests(recipe: Recipe, machine: Machine) -> list[CalibrateRequest]:
    """One calibration for each corpus; none where nothing reads them."""
    if not recipe.reads_text:
        return []
    own = recipe.calibrate.model_dump(exclude={"groups", "device", "batch_size"})
    read = get_criterion(recipe.criterion).columns(recipe.gate)
    groups = ordered([*groups_for(read), *recipe.calibrate.groups])
    common: dict[str, Any] = {
        **own,
        "model": recipe.model,
        "revision": recipe.revision,
        "tokens": recipe.tokens,
        "seq_len": recipe.seq_len,
        "seed": recipe.seed,
        "dtype": recipe.dtype,
        "groups": ",".join(groups),
        "device": machine.device,
        "batch_size": machine.batch_size,
        "trust_remote_code": machine.trust_remote_code,
        "allow_test_set": recipe.allow_test_set,
        "stats_dir": machine.stats_dir,
    }
    return [
        validated(CalibrateRequest, {**common, "corpus": part.corpus}) for part in recipe.corpora
    ]


def other_texts(recipe: Recipe) -> list[CalibrateRequest]:
    """The texts of search and evaluation as calibrations: to be opened, not to be run."""
    sections = (recipe.search, recipe.evaluate)
    named = dict.fromkeys(section.corpus for section in sections if section is not None)
    allowed = recipe.allow_test_set
    return [
        CalibrateRequest(model=recipe.model, corpus=corpus, allow_test_set=allowed)
        for corpus in named
    ]


def weights_request(recipe: Recipe, machine: Machine) -> WeightsRequest | None:
    """The measurement of the weights; None where the criterion does not read them.

    Norms of neurons are no statistics that are kept: they are measured where they are needed.
    """
    if is_atomic(recipe) or get_criterion(recipe.criterion).source != "weights":
        return None
    return WeightsRequest(model=recipe.model, revision=recipe.revision, stats_dir=machine.stats_dir)


def plan_request(recipe: Recipe, machine: Machine) -> PlanRequest:
    """What `moeprune plan` would be asked."""
    limits = recipe.constraints
    values = {
        "model": recipe.model,
        "revision": recipe.revision,
        "granularity": recipe.granularity,
        "criterion": recipe.criterion,
        "corpora": weighed_corpora(recipe),
        "gate": recipe.gate,
        "stats_dir": machine.stats_dir,
        "multiple_of": limits.multiple_of,
        "floor": limits.floor,
        "protect": tuple(map(str, limits.protect)),
        "pin": by_layer(limits.pin),
        "drop": by_layer(limits.drop),
        **(recipe.budget.model_dump(exclude_none=True) if recipe.budget else {}),
    }
    if is_atomic(recipe):
        values |= {"atom_scope": str(recipe.scope), "kept_atoms": recipe.kept_atoms}
        values |= _widths(recipe)
    else:
        values |= {
            "schedule": recipe.schedule.name,
            "schedule_file": recipe.schedule.file,
            "lock": tuple(map(str, limits.lock)),
            "layer_set": tuple(f"{layer}={keep}" for layer, keep in limits.set.items()),
        }
    request: PlanRequest = validated(PlanRequest, values)
    return request


def weighed_corpora(recipe: Recipe) -> tuple[str, ...]:
    """The corpora of a recipe as the command line takes them: CORPUS, or CORPUS:WEIGHT."""
    return tuple(
        part.corpus if part.weight == 1 else f"{part.corpus}:{part.weight:g}"
        for part in recipe.corpora
    )


def by_layer(experts: Mapping[Any, Iterable[int]]) -> tuple[str, ...]:
    """Experts as the command line takes them: LAYER:EXPERTS."""
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
            **_widths(recipe),
        },
    )
    return request


def _widths(recipe: Recipe) -> dict[str, Any]:
    if not is_atomic(recipe):
        return {}
    mode = recipe.width_mode or str(WidthMode.UNIFORM)
    return {"width_mode": mode, "width_multiple_of": recipe.width_multiple}


def evaluate_request(
    recipe: Recipe, machine: Machine, plan: PruningPlan | None = None
) -> EvaluateRequest | None:
    """The evaluation of a plan; None where the recipe asks for none."""
    asked = recipe.evaluate
    if asked is None:
        return None
    own = recipe.calibrate
    values = {
        "model": recipe.model,
        "revision": recipe.revision,
        "corpora": (asked.corpus,),
        "measures": ",".join(asked.fitness),
        "samples": asked.samples,
        "seq_len": asked.seq_len,
        "seed": asked.seed,
        "dtype": recipe.dtype,
        "device": machine.device,
        "batch_size": machine.batch_size,
        "attention": own.attention,
        "device_map": own.device_map,
        "max_memory": own.max_memory,
        "offload_folder": own.offload_folder,
        "trust_remote_code": machine.trust_remote_code,
        "allow_test_set": recipe.allow_test_set,
        "stats_dir": machine.stats_dir,
        "plans": (plan.to_dict(),) if plan else (),
    }
    given = {name: value for name, value in values.items() if value is not None}
    request: EvaluateRequest = validated(EvaluateRequest, given)
    return request
