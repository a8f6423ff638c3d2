"""Values that no measurement gives are refused by name, also where the digest is right."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.errors import UserError
from builders import resealed
from pruning.measurements.block import Block, SampleSet
from pruning.measures.points import Point, Points
from pruning.measures.result import SampleSums
from pruning.search.store import result_from_json

SHIPPED = Path(__file__).parents[3] / "cached_stats"
ESAP, LOSS = "esap", "nll"


@pytest.mark.parametrize(
    ("measure", "sums", "counts", "message"),
    [
        (ESAP, [2.0, 3.5], [3, 3], "its esap is 1.16667, which is not in .0, 1."),
        (ESAP, [2.0, -0.5], [3, 3], "its esap is -0.1666"),
        ("kl", [2.0, -1.5], [3, 3], "its kl is -0.5"),
        (LOSS, [-3.0, 1.0], [3, 3], "its nll is -1, which"),
        ("magic", [-3.0, 1.0], [3, 3], "its magic is -1, which"),
        (LOSS, [3.0, 1.0], [3, 0], "a sample has no positions"),
        (LOSS, [3.0, 1.0], [3], "not equally many"),
        (LOSS, [3.0], [3, 3], "not one sum for each measure and sample"),
    ],
)
def test_a_block_that_cannot_be_is_refused(measure, sums, counts, message):
    values = SampleSums(np.array(sums), np.array(counts))
    where = SampleSet("text", "d" * 64, "float32", 42)
    block = Block("m", "p", (4, 4), where, 2, ("a", "b"), {measure: values}, {})
    with pytest.raises(ValueError, match=message):
        Block.from_line(block.to_line())


def test_the_fitness_of_a_loss_is_negative():
    raw = json.loads((SHIPPED / "searches" / "demo-ean.json").read_text())
    raw["search"]["fitness"] = LOSS
    with pytest.raises(UserError, match=r"its nll is 0\.\d+, which is not in .-inf, 0."):
        result_from_json(resealed(raw))
    for candidate in raw["candidates"]:
        candidate[4] *= -1
    raw["best"]["fitness"] *= -1
    assert result_from_json(resealed(raw)).best_entry.fitness < 0


@pytest.mark.parametrize(
    ("point", "values", "message"),
    [
        (Point((0, 0), 1, -1), (0.5, 0.5, 0.5), "removes -1 of 8 in a layer"),
        (Point((0, 0), 1, 9), (0.5, 0.5, 0.5), "removes 9 of 8 in a layer"),
        (Point((0, 0), 1, 2), (float("nan"), 0.5, 0.5), "its esap is nan"),
        (Point((0, 0), 1, 2), (0.5, -0.5, 0.5), "its kl is -0.5"),
        (Point((0, 0), 1, 2), (0.5, 0.5, float("inf")), "its nll is inf"),
    ],
)
def test_a_point_of_a_curve_that_cannot_be_is_refused(point, values, message):
    with pytest.raises(ValueError, match=message):
        Points({0: 8, 3: 8}).add(point, ["a"], [values])
