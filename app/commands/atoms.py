"""Plans that remove neurons inside experts: from statistics, from weights, or from a file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.choose import parse_corpus_weight
from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.model import MoEModel
from analysis.neuron_norms import NEURON_NORMS, NeuronScores, neuron_norms
from analysis.neurons import choose_neurons, neuron_saliency
from analysis.sparsity import parse_sparsity
from app.commands.console import follow, out
from app.commands.rank import say_run
from app.commands.widths import show_width_options
from app.settings import stats_store
from pruning.atoms.kept import KeptAtoms, atoms_from_json, count_atoms
from pruning.atoms.selection import AtomScope, parse_scope, select_atoms
from pruning.atoms.widths import DEFAULT_MULTIPLE
from pruning.plan import (
    ATOMIC_GRANULARITY,
    EXPERT_GRANULARITY,
    Provenance,
    PruningPlan,
    fit_plan,
    model_ref,
    save_plan,
    tool_version,
)

# Name of what is asked for -> the option that says so, in plans of whole experts only.
_ONLY_EXPERTS = {
    "schedule_file": "--schedule-file",
    "remove": "--remove",
    "target_gib": "--target-gib",
    "protect": "--protect",
    "pin": "--pin",
    "drop": "--drop",
    "layer_set": "--layer-set",
    "lock": "--lock",
}


@dataclass(frozen=True, slots=True)
class AtomsAsked:
    """What the command line asks of a plan of neurons.

    Args:
        criterion: by which neurons are ranked; with a file, by which they were.
        sparsity: fraction of neurons that goes; None with a file.
        scope: among which neurons the budget is spent.
        multiple_of: experts keep multiples of so many.
        file: JSON with `kept_atoms`, or that object itself; None to rank.
        corpora, runs: whose statistics rank, as `--corpus` and `--run` name them.
        stats_dir: where these are; None: the default.
    """

    criterion: str
    sparsity: str | None
    scope: str
    multiple_of: int
    file: Path | None
    corpora: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    stats_dir: Path | None = None

    @property
    def reads_weights(self) -> bool:
        """Whether the weights alone rank, without a calibration."""
        return self.criterion == NEURON_NORMS


def check_granularity(granularity: str, given: Mapping[str, Any]) -> bool:
    """Whether neurons are asked for.

    Args:
        granularity: as given.
        given: all that was asked for by name; the schedule `uniform` stands for none.

    Raises:
        PlanError: no such granularity, or an option that plans of neurons do not have.
    """
    if granularity not in (EXPERT_GRANULARITY, ATOMIC_GRANULARITY):
        raise PlanError(
            f"There is no granularity {granularity!r}; known: {EXPERT_GRANULARITY}, "
            f"{ATOMIC_GRANULARITY}."
        )
    if granularity == EXPERT_GRANULARITY:
        return False
    unfit = [option for name, option in _ONLY_EXPERTS.items() if given[name]]
    if given["schedule"] != "uniform":
        unfit = ["--schedule", *unfit]
    if unfit:
        raise PlanError(
            f"{unfit[0]} is for plans of whole experts; a plan of neurons takes --sparsity, "
            "--atom-scope and --multiple-of, or --kept-atoms."
        )
    return True


def plan_of_neurons(model: MoEModel, asked: AtomsAsked) -> PruningPlan:
    """The plan that was asked for.

    Raises:
        PlanError: no sparsity and no file, a scope that the criterion cannot serve, a file that
            cannot be read, or neurons that the model lacks.
        UserError: a criterion that scores no neurons, or no statistics that fit.
    """
    corpora: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    if asked.file is not None:
        _check_no_statistics(asked, "a file")
        atoms, how = _from_file(asked.file), {"file": asked.file.name}
    else:
        saliency, corpora, runs = _saliency(model, asked)
        atoms, how = _selected(saliency, asked), {"scope": asked.scope}
    provenance = Provenance(
        criterion=asked.criterion,
        corpora=corpora,
        runs=runs,
        schedule="file" if asked.file else f"neurons by {asked.scope}",
        sparsity=asked.sparsity or "",
        schedule_parameters={**how, "multiple_of": asked.multiple_of},
        tool_version=tool_version(),
    )
    return fit_plan(PruningPlan(model_ref(model), {}, provenance, ATOMIC_GRANULARITY, atoms), model)


def _saliency(
    model: MoEModel, asked: AtomsAsked
) -> tuple[NeuronScores, tuple[str, ...], tuple[str, ...]]:
    """A number for every neuron, and the corpora and runs that it comes from."""
    if asked.sparsity is None:
        raise PlanError("A plan of neurons needs --sparsity, or a file with --kept-atoms.")
    if asked.reads_weights:
        _check_no_statistics(asked, NEURON_NORMS)
        return follow(neuron_norms(model)), (), ()
    criterion = get_criterion(asked.criterion)
    if criterion.within_layers and parse_scope(asked.scope) is AtomScope.GLOBAL:
        raise PlanError(
            f"{criterion.label} does not compare neurons of different layers; use --atom-scope "
            "layer or expert."
        )
    corpora = [parse_corpus_weight(text) for text in asked.corpora]
    chosen = choose_neurons(criterion, stats_store(asked.stats_dir), model, corpora, asked.runs)
    for run in chosen.runs:
        say_run(run)
    for note in chosen.notes:
        out.print(note, markup=False)
    ids = tuple(run.manifest.run_id for run in chosen.runs)
    return neuron_saliency(criterion, chosen.stats), chosen.corpora, ids


def _selected(saliency: NeuronScores, asked: AtomsAsked) -> KeptAtoms:
    sparsity, scope = parse_sparsity(asked.sparsity or ""), parse_scope(asked.scope)
    return select_atoms(saliency, sparsity, scope, asked.multiple_of)


def _check_no_statistics(asked: AtomsAsked, what: str) -> None:
    if asked.corpora or asked.runs:
        raise PlanError(f"Neurons from {what} need no calibration; leave --corpus and --run out.")


def _from_file(path: Path) -> KeptAtoms:
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PlanError(f"{path} is not valid JSON: {error}.") from error
    return atoms_from_json(raw.get("kept_atoms", raw) if isinstance(raw, dict) else raw)


def write_atomic_plan(model: MoEModel, asked: AtomsAsked, path: Path) -> None:
    """Write the plan that was asked for, and print what it saves in each width mode."""
    plan = plan_of_neurons(model, asked)
    save_plan(plan, path)
    kept, of = count_atoms(plan.kept_atoms, plan.kept, model)
    out.print(
        f"{path}: keeps {kept} of {of} neurons ({1 - kept / of:.2%} removed), "
        f"digest {plan.digest[:8]}",
        markup=False,
    )
    show_width_options(model, plan, DEFAULT_MULTIPLE)
