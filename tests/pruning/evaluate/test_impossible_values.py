"""Values that no measurement gives are refused by name, also where the digest is right."""

import json
from pathlib import Path

import numpy as np
import pytest
from shipped import shipped_lines

from analysis.errors import UserError
from builders import put, resealed
from pruning.benchmarks.record import BenchmarkRecord
from pruning.measurements.block import Block, SampleSet
from pruning.measures.points import Point, Points
from pruning.measures.result import SampleSums
from pruning.records.bins import BinsRecord
from pruning.records.evaluation import EvaluationRecord
from pruning.records.kept_answers import AnswerRecord
from pruning.records.lens import LensRecord
from pruning.records.variances import VarianceRecord
from pruning.search.store import result_from_json

SHIPPED = Path(__file__).parents[3] / "cached_stats"
ESAP, LOSS = "esap", "nll"


IMPOSSIBLE = [
    (EvaluationRecord, put("measures", to=["magic"]), "measure 'magic'"),
    (EvaluationRecord, put("measures", to=["nll"]), "answers without right"),
    (EvaluationRecord, put("plan", "removed", to=1.5), r"plan\.removed: "),
    (AnswerRecord, put("answers", 0, "agreed", to=10**6), "1000000 of .* tokens cannot agree"),
    (VarianceRecord, put("variances", 0, to=-1e-3), "its variance is -0.001"),
    (BinsRecord, put("bins", 0, "share", to=0.9), "shares of saliency sum to"),
    (BinsRecord, put("bins", 1, "bin", to=0), "has bins .0, 0, 2"),
    (BinsRecord, put("bins", 0, "removed", to=-4), "removed: "),
    (BenchmarkRecord, put("scores", 0, "value", to=1.5), "1.5, but a share of questions"),
    (BenchmarkRecord, put("scores", 0, "stderr", to=-0.1), "standard error"),
    (LensRecord, put("losses", to=[1.0]), "it has 1 losses of 66 tokens"),
    (LensRecord, put("losses", 0, to=-1.0), "its nll is -1, which"),
    (LensRecord, put("tokens", to=["a"]), "67 ids, 1 tokens"),
    (LensRecord, put("scored_from", to=67), "67 tokens and 0 losses"),
    (LensRecord, put("layers", 0, "gates", to=[0.5]), "layer 0 has another number of gates"),
    (LensRecord, put("layers", 0, "experts", 0, to=32), "token of layer 0 uses expert 32"),
    (LensRecord, put("layers", 0, "top_k", to=3), "layer 0 has 268 choices of 67 tokens"),
    (LensRecord, put("plans", 0, "removed", 0, 0, to=2), "token of layer 0 uses expert 2, which"),
    (LensRecord, put("plans", 0, "removed", to=[[1]]), "a plan has other layers"),
    (LensRecord, put("plans", 0, "losses", to=[]), "it has 0 losses of 66 tokens"),
    (LensRecord, put("tokens", 0, to="x" * 201), "at most 200 characters"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    IMPOSSIBLE,
    ids=[f"{kind.folder}: {message}" for kind, _, message in IMPOSSIBLE],
)
def test_a_record_that_cannot_be_is_refused(kind, change, message):
    name, text = next(iter(shipped_lines(kind.folder).items()))
    raw = json.loads(text)
    kind.from_json(resealed(raw), name)
    change(raw)
    with pytest.raises(UserError, match=message) as refusal:
        kind.from_json(resealed(raw), name)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("candidates", 0, 4, to=7.0), "its esap is 7, which is not in .0, 1."),
        (put("candidates", 0, 4, to=-0.5), "its esap is -0.5"),
        (put("cost", "seconds", to=-1.0), "its cost is -1, which"),
        (put("candidates", 0, 6, 0, to=99), "removes what layers do not have"),
    ],
)
def test_a_search_that_cannot_be_is_refused(change, message):
    raw = json.loads((SHIPPED / "searches" / "demo-ean.json").read_text())
    change(raw)
    with pytest.raises(UserError, match=message):
        result_from_json(resealed(raw))


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
