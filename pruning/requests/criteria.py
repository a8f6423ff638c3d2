"""What requests ask of a criterion by its name, the norms of neurons among them."""

from analysis.criteria import get_criterion
from analysis.errors import PlanError
from analysis.ranking.norms import NEURON_NORMS
from pruning.plan import ATOMIC_GRANULARITY


def criterion_name(name: str) -> str:
    """The name of a criterion as records have it.

    Raises:
        CriterionError: there is no such criterion.
    """
    return name if name == NEURON_NORMS else get_criterion(name).name


def reads_text(name: str) -> bool:
    """Whether calibration runs rank."""
    return name != NEURON_NORMS and get_criterion(name).source == "routed"


def compares_layers(name: str) -> bool:
    """Whether numbers of different layers can be put in one order."""
    return name == NEURON_NORMS or not get_criterion(name).within_layers


def check_ranks(name: str, granularity: str) -> None:
    """Refuse a criterion of neurons where whole experts are ranked.

    Raises:
        PlanError: it is one.
    """
    if name == NEURON_NORMS and granularity != ATOMIC_GRANULARITY:
        raise PlanError(f"{NEURON_NORMS} ranks neurons; add --granularity {ATOMIC_GRANULARITY}.")
