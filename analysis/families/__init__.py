"""The families, listed once. A new one is a file beside these and a line below."""

from analysis.checkpoint import Config
from analysis.errors import UnsupportedModelError
from analysis.families.base import PROJECTIONS, MoEFamily, MoELayer, Slot, SlotKind
from analysis.families.mixtral import MIXTRAL
from analysis.families.olmoe import OLMOE
from analysis.families.qwen3_moe import QWEN3_MOE

__all__ = ["FAMILIES", "PROJECTIONS", "MoEFamily", "MoELayer", "Slot", "SlotKind", "family_of"]

FAMILIES = {family.model_type: family for family in (OLMOE, QWEN3_MOE, MIXTRAL)}

_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def family_of(config: Config) -> MoEFamily:
    """The family of a configuration.

    Raises:
        UnsupportedModelError: a dense model, or an architecture that is not in the table.
    """
    model_type = str(config.get("model_type", ""))
    if family := FAMILIES.get(model_type):
        return family
    supported = ", ".join(sorted(FAMILIES))
    # Composite models keep their text part in a configuration of its own.
    inner = config.get("text_config") or {}
    if not any(key in config or key in inner for key in _COUNT_KEYS):
        raise UnsupportedModelError(
            f"This {model_type or 'unnamed'} model is dense: its config.json names no experts, "
            f"so there is nothing to prune. Supported MoE model types: {supported}."
        )
    raise UnsupportedModelError(
        f"The model type {model_type!r} is not supported. Supported: {supported}."
    )
