"""What a criterion has to read before it can rank (arXiv:2603.18492, Table 1)."""

from dataclasses import dataclass

from analysis.criteria import Criterion
from analysis.stats.tables import GATES


@dataclass(frozen=True, slots=True)
class Needs:
    """What a criterion reads.

    The paper's Table 1 has data, activations and router. Every criterion that needs data also needs
    the router's choices, which tokens go to which expert; `gates` is whether it reads more of the
    router than those.
    """

    data: bool  # a calibration corpus that the model runs on
    activations: bool  # outputs of the experts on it
    gates: bool  # gate weights of the router on it
    weights: bool  # the experts' own weights, which need no run


# Columns of criteria that no gate convention changes, but that read what the router computes.
_READ_GATES = frozenset(("damage", "path_samples"))


def needs_of(criterion: Criterion) -> Needs:
    """What a criterion reads, told from the columns of its table."""
    columns = criterion.columns(GATES[0]) if criterion.source == "routed" else ()
    return Needs(
        data=criterion.source == "routed",
        # More than counts and gate weights: something of the outputs.
        activations=any(n != "num_tokens" and not n.endswith("_f0") for n in columns),
        gates=criterion.uses_gate or not _READ_GATES.isdisjoint(columns),
        weights=criterion.source == "weights",
    )
