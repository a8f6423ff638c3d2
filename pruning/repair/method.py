"""What decides the weights of a repair besides what was asked: how they are gathered and solved.

It is part of a request's digest, so a repair by another method is not taken for the same request.
"""

from collections.abc import Mapping
from typing import Any

import torch

from analysis.drain import drain
from pruning.repair.expert_store import ExpertStore
from pruning.repair.solver import Rows, fit_layer, joined

# Of what surrounds the solver: raised when the same request would give other weights. A test pins
# what it gives.
GATHERING = 1
_DIGITS = 6  # of a number; machines differ in the last of 16
_TOKENS, _EXPERTS, _NEURONS, _WIDTH = 60, 3, 5, 24


def method() -> Mapping[str, Any]:
    """The method as JSON: what the solver computes on an example, in a few milliseconds."""
    return {
        "gathering": GATHERING,
        "solver": [f"{number:.{_DIGITS}g}" for number in solved_example()],
    }


def solved_example() -> list[float]:
    """Damping, errors of all dampings, and each expert's share of a layer that was fitted."""
    fit = drain(fit_layer(joined(_rows(0), _rows(1)), ExpertStore()))
    if fit.changes is None or fit.damping is None:
        return [0.0, *fit.held_out.values()]
    weights_DM = _waves(_NEURONS, _WIDTH, 2.7).T
    sums = [float((change_DM * weights_DM).sum()) for change_DM in fit.changes]
    return [fit.damping, *fit.held_out.values(), *sums]


def _rows(part: int) -> Rows:
    """Experts that see two thirds of the tokens each, and lack a linear map of what they do."""
    tokens_T = torch.arange(_TOKENS)
    tokens = tuple(tokens_T[(tokens_T + index) % _EXPERTS > 0] for index in range(_EXPERTS))
    scaled = tuple(
        _waves(len(token_R), _NEURONS, 1.3 + expert + 5 * part)
        for expert, token_R in enumerate(tokens)
    )
    lacking_TD = 0.3 * _waves(_TOKENS, _WIDTH, 0.7 + part)  # what no expert can give
    for expert, (token_R, scaled_RM) in enumerate(zip(tokens, scaled, strict=True)):
        lacking_TD.index_add_(0, token_R, scaled_RM @ _waves(_NEURONS, _WIDTH, 0.9 + expert))
    return Rows(lacking_TD, scaled, tokens)


def _waves(rows: int, columns: int, seed: float) -> torch.Tensor:
    """(rows, columns) numbers without a pattern, the same on every machine, float64."""
    numbers = torch.arange(1, rows * columns + 1, dtype=torch.float64)
    return torch.sin(seed * numbers * numbers).reshape(rows, columns)
