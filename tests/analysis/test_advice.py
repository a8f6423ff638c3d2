"""Which criterion: the recommendation, and when a model's own overlap bears it out."""

import pandas as pd
import pytest

from analysis.criteria import RANKABLE, get_criterion, unified
from analysis.ranking.advice import ADVICE, read_overlaps


def means(**changes):
    """Overlap 0.5 for every variant but those named, by criterion."""
    names = [unified(*exponents).name for exponents in RANKABLE]
    return pd.DataFrame(
        {
            "criterion": names,
            "overlap": [changes.get(name.replace("-", "_"), 0.5) for name in names],
        }
    )


def test_recommended_are_the_papers():
    exponents = {
        purpose: [get_criterion(name).exponents for name in advice.criteria]
        for purpose, advice in ADVICE.items()
    }
    assert exponents == {"agnostic": [(1, 0, 1), (1, 0, 2)], "specific": [(0, 1, 1), (0, 2, 2)]}


def test_agnostic_is_borne_out_where_one_of_them_depends_least():
    reading = read_overlaps("agnostic", means(msan=0.9, man=0.4))
    assert reading.agrees
    assert "MSAN depends on the corpus least, which is the paper's choice" in reading.sentence
    assert reading.table["recommended"].sum() == 2
    assert reading.table.iloc[0][["criterion", "place"]].tolist() == ["msan", 1]


def test_agnostic_disagrees_openly():
    reading = read_overlaps("agnostic", means(frequency=0.9, man=0.8, msan=0.7))
    assert not reading.agrees
    assert "Frequency depends on the corpus least, which is not the paper's" in reading.sentence
    assert "MAN 0.80 (place 2 of 17), MSAN 0.70 (place 3 of 17)" in reading.sentence


@pytest.mark.parametrize(
    ("second", "agrees", "words"), [(0.4, True, "more than"), (0.6, False, "no more than")]
)
def test_specific_needs_both_below_the_median(second, agrees, words):
    reading = read_overlaps("specific", means(gate_ean=0.3, squared_gate_energy=second))
    assert reading.agrees is agrees
    assert f"follows the corpus {words} the median" in reading.sentence
