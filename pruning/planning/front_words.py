"""Candidates by size in words: their names, and what the front says."""

from collections.abc import Iterable, Mapping
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from analysis.criteria import criterion_label
from analysis.ranking.leaderboard import pareto_front
from pruning.plan.bits import FORMATS, bits_words
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.plan.sizes import format_bytes
from pruning.plan.variant_words import variant_words
from pruning.planning.choice import corpora_words, schedule_words
from pruning.records.front import Front
from pruning.records.plan_facts import VARIANT_COLUMNS
from pruning.records.quality import PlanLoss, original_in_bits

if TYPE_CHECKING:
    import pandas as pd

ORIGINAL: Final = "original"
_REFERENCES: Final = ("8", "4")  # bits of the original that everybody asks for


def named(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table of a `Front` with `candidate` and `kind`, a key of the marks."""
    rows = table.to_dict("records")
    kinds = [
        ORIGINAL if not (row["bits"] or row["removed"])
        else "fewer bits" if not row["removed"]
        else "pruned, fewer bits" if row["bits"]
        else "pruned"
        for row in rows
    ]  # fmt: skip
    return table.assign(candidate=[candidate_name(row) for row in rows], kind=kinds)


def candidate_name(row: Mapping[Any, Any]) -> str:
    """A row of a `Front` in words: `EAN 50% + repair, 4 bits`."""
    if not row["removed"]:
        return f"{ORIGINAL}{bits_words(row['bits'])}"
    words = [f"{criterion_label(str(row['criterion'])) or 'plan'} {row['removed']:.0%}"]
    if schedule := schedule_words(str(row["schedule"])):
        words.append(schedule)
    elif row["granularity"] == NEURON_GRANULARITY:
        words.append("neurons")
    ranked_on = str(row["calibrated_on"]).split("+")
    if len(ranked_on) == 1 and ranked_on[0]:
        words.append(f"on {corpora_words(ranked_on)}")
    variant = variant_words(*(row.get(name, 0) for name in VARIANT_COLUMNS))
    return ", ".join(words) + variant


def loss_text(increase: float) -> str:
    """A loss increase with three digits; what is nearly nothing has no minus."""
    return f"{increase:+z.3f}"


def range_text(row: Mapping[Any, Any]) -> str:
    """The interval of a row of a `Front`; empty if a corpus of one document leaves it unknown."""
    return "" if isnan(row["low"]) else f"{row['low']:+z.3f} to {row['high']:+z.3f}"


def measured_on(front: Front) -> str:
    """How many samples and documents its losses are of, and what their intervals are."""
    count = front.losses[0].count
    return f"Measured on {count.words} or more of each corpus, {count.interval_words}."


def bits_alone(losses: Iterable[PlanLoss]) -> str:
    """What the bits that everybody asks for cost without pruning; empty if not measured."""
    in_bits = original_in_bits(losses)
    words = [
        f"{FORMATS[bits].label} alone give {format_bytes(in_bits[bits].facts.columns['bytes'])} at "
        f"{loss_text(in_bits[bits].mean)}"
        for bits in _REFERENCES
        if bits in in_bits
    ]
    return " and ".join(words)


def describe(front: Front) -> str:
    """What bits alone cost, from which size on pruning pays, and how good predictions are."""
    table = named(front.table)
    words = [bits_alone(front.losses)]
    measured = table[table["is_measured"]]
    is_best = pareto_front(measured["bytes"], measured["mean"], higher_is_better=False)
    best = measured[is_best].sort_values("bytes", kind="stable")
    pruned = best[(best["removed"] > 0) & (best["bits"] != "")]
    if words[0] and len(pruned):
        top = pruned.iloc[-1]
        words.append(
            f"pruning pays below {format_bytes(_next_size(best, top['bytes']))}: "
            f"{top['candidate']} gives {format_bytes(top['bytes'])} at {loss_text(top['mean'])}"
        )
    if not words[0]:
        words = ["The original was not measured in fewer bits; `moeprune evaluate --bits` does"]
    if front.compared:
        words.append(
            f"predicted losses were off by {front.mean_error:.3f} on average and "
            f"{front.most_error:.3f} at most in {front.compared} cells that are measured"
        )
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}."


def _next_size(best: "pd.DataFrame", nbytes: int) -> int:
    """The next larger size on the front."""
    larger = best[best["bytes"] > nbytes]["bytes"]
    return int(larger.min()) if len(larger) else nbytes
