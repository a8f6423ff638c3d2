"""FP8 checkpoints whose exports are in BF16: which tensors change, and into what."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.errors import ExportError
from analysis.model.fp8_matrices import Fp8Matrix, fp8_matrix
from analysis.model.moe_model import MoEModel
from pruning.plan.widths import WidthPlan

BF16 = "BF16"
FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class Dequantisation:
    """The matrices that become BF16, and the scales that go."""

    matrices: Mapping[str, Fp8Matrix] = field(default_factory=dict)  # by name

    @property
    def scales(self) -> frozenset[str]:
        """Names of the scales."""
        return frozenset(matrix.grid.name for matrix in self.matrices.values())


def plan_dequantisation(
    model: MoEModel,
    widths: WidthPlan | None = None,
    *,
    is_asked_for: bool,
    is_repaired: bool = False,
) -> Dequantisation | None:
    """All FP8 matrices of a model, None if it is not asked for; refuses what cannot be BF16.

    A repair of FP8 is in BF16, and engines read one type of experts, so its export has to be.
    """
    if not is_asked_for:
        if is_repaired and model.quantisation:
            raise ExportError(
                f"The repair of {model.name} is in bfloat16, so the whole export has to be: add "
                "--dequantise (in a recipe, `dequantise: true` below `export`)."
            )
        return None
    if model.quantisation != FP8:
        has = (
            f"is quantised with {model.quantisation}" if model.quantisation else "is not quantised"
        )
        raise ExportError(
            f"{model.name} {has}; --dequantise is for checkpoints in FP8, so leave it out."
        )
    if widths:
        raise ExportError(
            "A plan that removes neurons cuts FP8 as it is; export without --dequantise, then "
            "export the result again with --dequantise and a plan that keeps all."
        )
    matrices, tensors = {}, model.checkpoint.tensors
    for entry in tensors.values():
        if matrix := fp8_matrix(model, entry):
            matrices[entry.name] = matrix
        elif entry.dtype.startswith("F8_"):
            raise ExportError(
                f"{entry.name} ({entry.dtype}) has no scales for blocks of a matrix, so what it "
                "stands for is not known; export without --dequantise."
            )
    return Dequantisation(matrices)
