"""What a repair would cost: memory and time, without loading the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.memory import estimate
from analysis.calibration.streamed import hidden_bytes
from analysis.corpora.sequences import TokenSequences
from analysis.model.moe_model import MoEModel
from analysis.model.widths import computed_widths
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


def estimate_repair(
    model: MoEModel,
    plan: PruningPlan,
    corpora: Sequence[TokenSequences],
    settings: CalibrationSettings,
) -> RepairEstimate:
    """Expected memory and time; refuses a model that cannot be loaded."""
    streamed = replace(settings, placement=replace(settings.placement, stream_layers=True))
    parts = [estimate(model, corpus, streamed) for corpus in corpora]
    tokens = sum(corpus.num_tokens for corpus in corpora)
    fitting = fitting_bytes(model, tokens, max(len(ids) for ids in plan.kept.values()))
    hidden = sum(hidden_bytes(model, corpus, settings) for corpus in corpora)
    return RepairEstimate(
        tokens,
        max(part.memory_bytes for part in parts) + hidden + fitting,
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
