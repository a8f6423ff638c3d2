"""Which criterion for which purpose: the literature's advice, checked on a model's overlaps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pandas as pd

from analysis.criteria import get_criterion

Purpose = Literal["agnostic", "specific"]


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation of a paper."""

    criteria: tuple[str, ...]  # names, best first
    corpus: str  # the calibration corpus to use with them
    why: str  # the paper's reason
    source: str


_SOURCE: Final = "arXiv:2606.15716, sections 4.3 and 5"
ADVICE: Final[Mapping[Purpose, Advice]] = {
    "agnostic": Advice(
        criteria=("man", "msan"),
        corpus="a general corpus, such as C4",
        why="How often and how strongly an expert is chosen depends on the calibration corpus. "
        "Averaging over the routed tokens removes the first, leaving out the gate weight the "
        "second. What remains, the strength of the activation, depends on the corpus least.",
        source=_SOURCE,
    ),
    "specific": Advice(
        criteria=("gate-ean", "squared-gate-energy"),
        corpus="a corpus of that task",
        why="On a corpus of the task, how often and how strongly the router chooses an expert "
        "shows how much the task needs it: keep routing frequency and gate weights.",
        source=_SOURCE,
    ),
}


@dataclass(frozen=True, slots=True)
class OverlapReading:
    """What a model's own overlaps say about a recommendation."""

    # `criterion, label, overlap, place, recommended`, most overlap first; place 1 is the variant
    # that depends on the corpus least.
    table: pd.DataFrame
    agrees: bool  # whether it supports the paper's reason
    sentence: str  # the same in words


def read_overlaps(purpose: Purpose, means: pd.DataFrame) -> OverlapReading:
    """Compare the recommendation with the overlaps of the variants on this model.

    Task-agnostic advice is supported if no variant depends on the corpus less than the better of
    the recommended ones; task-specific advice if each recommended variant follows the corpus more
    than the median. Overlap is not a benchmark: it shows what the choice depends on, not the
    quality of the pruned model. `means` is the result of `mean_overlaps`.
    """
    advised = ADVICE[purpose].criteria
    table = means[["criterion", "overlap"]].sort_values("overlap", ascending=False, kind="stable")
    table = table.assign(
        label=[get_criterion(name).label for name in table["criterion"]],
        place=table["overlap"].rank(ascending=False, method="min").astype(int),
        recommended=table["criterion"].isin(advised),
    ).reset_index(drop=True)
    table = table[["criterion", "label", "overlap", "place", "recommended"]]
    chosen = table[table["recommended"]]
    ranks = ", ".join(
        f"{row['label']} {row['overlap']:.2f} (place {row['place']} of {len(table)})"
        for _, row in chosen.iterrows()
    )
    best, median = table.iloc[0], table["overlap"].median()
    if purpose == "agnostic":
        agrees = bool((chosen["place"] == 1).any())
        verdict = "which is the paper's choice" if agrees else "which is not the paper's choice"
        sentence = (
            f"On this model {best['label']} depends on the corpus least, {verdict}: overlap "
            f"{best['overlap']:.2f}. The paper's: {ranks}."
        )
    else:
        agrees = bool((chosen["overlap"] < median).all())
        verdict = "more than" if agrees else "no more than"
        sentence = (
            f"On this model the paper's choice follows the corpus {verdict} the median variant "
            f"(overlap {median:.2f}): {ranks}. Less overlap means that the corpus decides more."
        )
    return OverlapReading(table, agrees, sentence)
