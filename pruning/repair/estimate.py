"""What a repair would cost: memory and time, without loading the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.calibration.blocks import FreeMemory, free_for, layer_sizes
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.memory import estimate, run_sizes
from analysis.calibration.streamed import hidden_bytes, is_on_disk
from analysis.corpora.sequences import TokenSequences
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
from pruning.engine.repaired_weights import cannot
from pruning.plan.plan import PruningPlan
from pruning.plan.repair_reference import FORWARDS
from pruning.repair.solver import MOST_ELEMENTS

_ARRAYS = 8  # of unknowns in float64, while a block of columns is fitted


@dataclass(frozen=True, slots=True)
class RepairEstimate:
    """Expected cost of a repair."""

    tokens: int
    memory_bytes: int  # in addition to the Python process
    seconds: float  # without loading the model


@dataclass(frozen=True, slots=True)
class RepairMemory:
    """Bytes that a repair takes in addition to the Python process."""

    device: int  # a layer, which is never run in blocks, its activations and its fit
    states: int  # hidden states of both models, in the memory of the CPU; 0 if on disk

    @property
    def total(self) -> int:
        """All bytes."""
        return self.device + self.states

    def fits(self, free: FreeMemory) -> bool:
        """Whether it fits."""
        return free.holds(self.device, self.states)


def repair_memory(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
    world: int = 1,
) -> RepairMemory:
    """What one of `world` processes takes, which share the tokens; loads no model."""
    tokens = sum(corpus.num_tokens for corpus in corpora) // world
    fitting = fitting_bytes(model, tokens, max(len(ids) for ids in plan.kept.values()))
    running = max(run_sizes(model, corpus, settings).running for corpus in corpora)
    layer = layer_sizes(model, settings).whole + running
    states = 2 * sum(hidden_bytes(model, corpus, settings) for corpus in corpora)
    states = 0 if is_on_disk(states, settings) else states // world
    return RepairMemory(layer + fitting, states)


def check_memory(model: MoEModel, memory: RepairMemory, settings: CalibrationSettings) -> None:
    """Refuse a repair that does not fit: it has all kept experts of a layer at once."""
    free = free_for(settings)
    if memory.fits(free):
        return
    room = free.device + (free.host or 0)
    needed, there = (f"{size / 2**30:.1f} GiB" for size in (memory.total, room))
    raise cannot(
        model,
        f"a repair loads a whole layer and fits all its experts, which takes {needed}, and {there} "
        "is free",
    )


def estimate_repair(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
) -> RepairEstimate:
    """Expected memory and time; refuses a model that cannot be loaded."""
    streamed = replace(settings, placement=replace(settings.placement, stream_layers=True))
    parts = [estimate(model, corpus, streamed) for corpus in corpora]
    return RepairEstimate(
        sum(corpus.num_tokens for corpus in corpora),
        repair_memory(model, plan, corpora, settings).total,
        FORWARDS * sum(part.seconds for part in parts),
    )


def fitting_bytes(model: MoEModel, tokens: int, kept: int) -> int:
    """Bytes of the least squares of a layer that keeps so many experts, on so many tokens."""
    width = max(max(widths) for widths in computed_widths(model).values())
    top_k = max(layer.top_k for layer in model.layers)
    # Of all tokens of a layer: scaled activations and what the output lacks, in float32.
    rows = tokens * 4 * (top_k * width + model.expert_output_size)
    grams = 2 * kept * width * width * 8  # with their factors
    unknowns = _ARRAYS * 8 * min(MOST_ELEMENTS, kept * width * model.expert_output_size)
    return rows + grams + unknowns
