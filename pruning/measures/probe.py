"""How fast this machine compares the logits of two models, before its first run."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from analysis.calibration.loading import DTYPES, resolve_device, resolve_dtype
from analysis.calibration.probe import LARGEST, fastest_seconds
from analysis.model.layer_costs import output_weights
from analysis.model.moe_model import MoEModel
from analysis.progress import RATES
from pruning.measures.names import DEFAULT_MEASURES
from pruning.measures.positions import POSITION_FUNCTIONS, Positions, log_probabilities, rows_of
from pruning.measures.result import MEASURES


def compare_rate(model: MoEModel, dtype: str = "auto", device: str = "auto") -> float:
    """Of `compare`: the heads of both models, by a part of their columns, and what is measured.

    Seconds for a unit of cost, as in `analysis.calibration.probe`.
    """
    on, hidden = resolve_device(device), model.hidden_size
    place: dict[str, Any] = {"dtype": DTYPES[resolve_dtype(dtype, model)], "device": on}
    weights = output_weights(model)
    vocabulary = max(1, weights // hidden)
    rows, columns = rows_of(vocabulary), min(vocabulary, LARGEST // hidden)
    hidden_ND, head_VD = (torch.ones(size, hidden, **place) for size in (rows, columns))
    head = fastest_seconds(lambda _: linear(hidden_ND, head_VD), on) / (rows * columns * hidden)
    logits_NV = torch.zeros(rows, vocabulary, **place)
    measuring = fastest_seconds(partial(_measured, logits_NV), on) / (rows * weights)
    return RATES["compare"] * (2 * head + measuring)


def _measured(logits_NV: Tensor, _: int) -> Tensor:
    zeros_N = torch.zeros(len(logits_NV), dtype=torch.int64, device=logits_NV.device)
    full_NV, candidate_NV = log_probabilities(logits_NV), log_probabilities(logits_NV)
    at = Positions(full_NV, candidate_NV, zeros_N, zeros_N.double())
    names = dict.fromkeys(MEASURES[name].sums for name in DEFAULT_MEASURES)
    return torch.stack([POSITION_FUNCTIONS[name](at) for name in names])
