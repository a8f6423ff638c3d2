"""What people call criteria and models, whatever is ranked and wherever a name comes from."""

from typing import Final

from analysis.criteria import get_criterion
from analysis.errors import CriterionError

FULL: Final = "Original model"


def criterion_label(name: str) -> str:
    """The label of a criterion; of plans made elsewhere, the name that they give."""
    try:
        return get_criterion(name).label
    except CriterionError:
        return name
