"""A loss that a hover rounds to nothing has no minus: d3 would write -0.000."""

import re

import numpy as np
import pandas as pd
import pytest

from app.charts.corpus_losses import losses_figure
from app.charts.loss_bins import loss_bins
from app.charts.predicted_frontier import frontier_figure
from app.charts.same_bytes import SAME_BYTES_COLUMNS, same_bytes
from app.charts.sensitivity import sensitivity_lines, sensitivity_map, sensitivity_table
from app.charts.text_lens import plan_bars, token_bars
from app.charts.traces import signed
from pruning.measures.curves import Curve, Curves, Sensitivity
from pruning.planning.frontier import BEST, FRONTIER_COLUMNS, OTHER, SHOWN, UNIFORM
from pruning.records.bins import BIN_COLUMNS

LITTLE = -0.00004  # 0 in three digits and in four
SIGNED = re.compile(r"%\{(x|y|z|customdata)(?:\[(\d+)\])?:\+\.(\d)f\}")


def losses():
    rows = [("a", "code", LITTLE), ("a", "math", 0.5), ("b", "code", LITTLE), ("b", "math", -0.5)]
    return losses_figure(pd.DataFrame(rows, columns=["calibrated_on", "corpus", "change"]), "a")


def tokens():
    table = pd.DataFrame({"token": [0, 1], "text": ["a", "b"], "change": [LITTLE, 0.5]})
    return token_bars(table.assign(full_loss=1.0, loss=1.0, gone=0.5))


def plans():
    rows = [("a", LITTLE, True), ("b", 0.5, False)]
    return plan_bars(pd.DataFrame(rows, columns=["name", "change", "is_shown"]))


def bins():
    rows = [(0, 3, 1.0, 0.25, LITTLE, -0.1, 0.1, 0.1), (1, 3, 3.0, 0.75, 0.3, 0.1, 0.4, 0.3)]
    table = pd.DataFrame(rows, columns=list(BIN_COLUMNS))
    return loss_bins(table, criterion="heapr", granularity="neuron", order="saliency")


def frontier():
    kinds = (BEST, UNIFORM, OTHER, SHOWN)
    rows = [(kind, 4, 1 << 23, LITTLE, -0.1, 0.1, LITTLE) for kind in kinds]
    rows += [(BEST, 8, 1 << 22, LITTLE, -0.1, 0.1, np.nan)]
    return frontier_figure(pd.DataFrame(rows, columns=list(FRONTIER_COLUMNS)))


def candidates():
    row = ("a", "expert", "REAP", "", 0.4, 100, 2.0, 2.0, LITTLE, 0.5, 0.4, 0.6)
    return same_bytes(pd.DataFrame([row], columns=list(SAME_BYTES_COLUMNS)))


def layers(figure):
    curve = Curve(np.array([0, 4, 8]), np.array([0.0, LITTLE, 0.5]))
    return figure(sensitivity_table(Sensitivity((Curves((curve,), {}),), "nll"), {3: 12}, (4,)))


FIGURES = {
    **{make.__name__: make for make in (losses, tokens, plans, bins, frontier, candidates)},
    "layer lines": lambda: layers(sensitivity_lines),
    "layer map": lambda: layers(sensitivity_map),
}


def shown_with_a_sign(figure):
    """(values, digits) of every number that hovers write with a sign."""
    for trace in figure.data:
        for name, column, digits in SIGNED.findall(trace.hovertemplate or ""):
            values = np.asarray(getattr(trace, name), dtype=object)
            values = values[:, int(column)] if column else values
            yield values.ravel().astype(np.float64), int(digits)


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_what_rounds_to_nothing_has_no_minus(make):
    found = list(shown_with_a_sign(make()))
    assert found
    assert any((values == 0).any() for values, _ in found)
    for values, digits in found:
        written = [f"{value:+.{digits}f}" for value in values if np.isfinite(value)]
        assert f"{-0.0:+.{digits}f}" not in written


def test_signed_values_keep_what_is_shown():
    values = [-0.0005, -0.00049, 0.00049, 0.0005, -1.0, np.nan]
    np.testing.assert_array_equal(signed(values, 3), [-0.0005, 0, 0, 0.0005, -1.0, np.nan])
