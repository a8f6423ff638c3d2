"""Plans that remove neurons of the tiny models of all families, and what those must compute."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import torch
from exports import export, keeping_neurons
from transformers import PreTrainedModel

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from analysis.numbers.arrays import NeuronScores
from families.configs import Case
from families.physical import block_of, logits_of
from families.plain import matrices_of
from families.settings import WIDTH
from families.tiny_models import tiny_model
from pruning.plan.budget import sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.kept import KeptNeurons
from pruning.plan.plan import PruningPlan
from pruning.plan.selection import neurons_left
from pruning.plan.units import NeuronScope, Units, neuron_units
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.planning.make import neurons_removed


@dataclass(frozen=True)
class Source:
    """The checkpoint of a case and its model; nobody writes into them."""

    case: Case
    path: Path
    model: PreTrainedModel

    @cached_property
    def described(self) -> MoEModel:
        """What the program understands of the checkpoint."""
        return load_model_index(str(self.path))

    @cached_property
    def plan(self) -> PruningPlan:
        """Different numbers of neurons everywhere: of one expert all stay, of one none."""
        return neuron_plan(self.described, self.case)

    @cached_property
    def logits(self) -> torch.Tensor:
        """What the model computes with the plan's neurons zeroed by hand."""
        return logits_of(zeroed(self.model, self.case, self.plan))


def make_source(case: Case, path: Path) -> Source:
    """Save the tiny model of a case in several shards."""
    model = tiny_model(case)
    model.save_pretrained(path, max_shard_size="40KB")
    return Source(case, path, model)


def random_neurons(number: int, keep: int) -> tuple[int, ...]:
    """Seeded neurons of an expert."""
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(number))
    return tuple(sorted(order[:keep].tolist()))


def neuron_plan(model: MoEModel, case: Case) -> PruningPlan:
    """Seeded: expert 0 keeps nothing, expert 1 the most: 13 in the first layer, 7 in the others."""
    neurons = {}
    for layer in case.sparse:
        most = 13 if layer == case.sparse[0] else 7
        keeps = [0, most, *(1 + (layer + 5 * e) % 6 for e in range(2, case.experts))]
        neurons[layer] = {e: random_neurons(100 * layer + e, keep) for e, keep in enumerate(keeps)}
    return keeping_neurons(model, neurons)


def units_of(scores: NeuronScores, scope: NeuronScope, limits: Constraints | None = None) -> Units:
    """Neurons with these saliencies, under constraints."""
    widths = {layer: [len(expert) for expert in held] for layer, held in scores.items()}
    return neuron_units(widths, limits, scope, scores)


def select_neurons(
    scores: NeuronScores,
    sparsity: Fraction | str,
    scope: NeuronScope,
    limits: Constraints | None = None,
) -> KeptNeurons:
    """The neurons that stay when a sparsity is spent, of every expert that loses some."""
    units = units_of(scores, scope, limits)
    return neurons_left(units, neurons_removed(units, sparsity_budget(units, sparsity)))


def with_fewer_experts(source: Source, kept: Mapping[int, tuple[int, ...]]) -> PruningPlan:
    """A source's plan of neurons that removes whole experts as well."""
    neurons = {
        layer: {expert: ids for expert, ids in experts.items() if expert in kept[layer]}
        for layer, experts in source.plan.kept_neurons.items()
    }
    return keeping_neurons(source.described, neurons, kept)


def zeroed(model: PreTrainedModel, case: Case, plan: PruningPlan) -> PreTrainedModel:
    """A copy in which every weight and bias of the removed neurons is zero."""
    result = copy.deepcopy(model)
    for layer, experts in plan.kept_neurons.items():
        module = block_of(result, case, layer).experts
        for expert, kept in experts.items():
            gone = sorted(set(range(WIDTH)) - set(kept))
            m = matrices_of(case.model_type, module, expert)  # views of the weights
            for matrix in (m.gate, m.up):
                if matrix is not None:
                    matrix[:, gone] = 0
            for bias in (m.gate_bias, m.up_bias):
                if isinstance(bias, torch.Tensor):
                    bias[gone] = 0
            m.down[gone] = 0
    return result


# Something else is built from the width of an expert.
TIED = ("hunyuan_v1_moe", "jamba")


@dataclass(frozen=True)
class Exported:
    """An export of a source's plan; nobody writes into it."""

    source: Source
    path: Path
    mode: str

    @property
    def case(self) -> Case:
        """The family."""
        return self.source.case


def allowed(case: Case, mode: str) -> bool:
    """Whether a family can be written in a width mode; from the facts above, not the program."""
    tied = case.model_type in TIED and mode == "uniform"
    # Of experts that lie stacked on disk each cannot have a width of its own.
    stacked = not case.fused_too and mode == "ragged"
    return not (tied or stacked)


def export_widths(source: Source, path: Path, mode: str) -> Exported:
    """Export the plan of a source with widths stored in a mode."""
    export(source.described, source.plan, path, widths=WidthChoice(WidthMode(mode)))
    return Exported(source, path, mode)
