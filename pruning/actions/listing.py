"""All actions: where the list of commands has them, and what each does in a sentence."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from analysis.errors import UserError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pruning.actions.action import Action

# Step of the work -> action -> the first sentence of its help. `pruning.actions.NAME`, of a name
# with hyphens with underscores, is imported when it is asked for.
STEPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Measure experts": {
        "calibrate": "Run the model once over each corpus and cache its expert statistics.",
        "weights": "Measure the expert weights (AIMER, Magnitude, Hoyer), streamed from disk, and "
        "cache them.",
        "sensitivity": "Measure how much quality falls when experts are removed from one layer.",
        "topk": "Measure what fewer experts per token cost in each layer.",
        "bins": "Score against true loss: experts or neurons in bins by saliency, each bin removed "
        "alone.",
        "subsets": "Quality against calibration size: plans by parts of each run's tokens, and "
        "their spread.",
    },
    "Plan": {
        "search": "Search for the best allocation of a budget; interrupt it, and the best so far "
        "is kept.",
        "fit": "Show the best ways to a size: fewer experts, fewer bits, or both, by their loss.",
        "allocate": "Spread experts and bits over the layers within a size, by measured "
        "sensitivities.",
        "compare-checkpoints": "Find which experts a published pruned checkpoint kept, by bytes; "
        "writes a plan.",
        "repair": "Refit what a plan keeps to take over part of what it removes; writes "
        "repaired.json.",
    },
    "Judge": {
        "traffic": "Does a plan still fit? How much of live traffic its experts hold, beside its "
        "calibrations.",
        "evaluate": "Measure how pruned models differ from the original on held-out text.",
        "sweep": "Evaluate every criterion at every sparsity, with one loaded model; writes a tidy "
        "table.",
        "benchmark": "Run lm-evaluation-harness on a model, on what plans leave of it, or on an "
        "export.",
        "ask": "Answers of the original model and of pruned ones to a prompt, or the losses of a "
        "text.",
        "variance": "Variance of hidden states after each layer, original against pruned, on 4096 "
        "tokens.",
    },
    "Ship": {
        "export": "Write the pruned checkpoint; the model is never loaded.",
        "placement": "Choose the experts that stay on a device; nothing is deleted.",
    },
}
SENTENCES: Final = {name: words for actions in STEPS.values() for name, words in actions.items()}


def action(name: str) -> Action[Any, Any]:
    """The action of this name, a key of `SENTENCES`."""
    if name not in SENTENCES:
        raise UserError(unknown_name("action", name, SENTENCES))
    module = name.replace("-", "_")
    found: Action[Any, Any] = import_module(f"pruning.actions.{module}").ACTION
    return found
