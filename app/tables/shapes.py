"""The shape of a model in words."""

from collections.abc import Sequence

from analysis.families import MoELayer


def experts_text(layers: Sequence[MoELayer]) -> str:
    """Experts of a layer, such as 64; where layers differ the fewest and the most, as 8-64."""
    counts = [layer.num_experts for layer in layers]
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))
