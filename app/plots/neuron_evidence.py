"""Charts of neurons on Explore: what stays of each expert, saliency, texts, size for size."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Final

import numpy as np
import pandas as pd

from analysis.arrays import BoolArray, IntArray
from app.charts.chart import Drawing
from app.charts.overlap import matrix_drawing
from app.figures import neuron_map, neuron_saliency
from app.figures import same_bytes as bytes_figure
from app.plots.names import criterion_label
from pruning.atoms.cuts import NeuronField, expert_shares, pool_chance, pool_overlap
from pruning.evaluate.record import EvaluationRecord, evaluation_table
from pruning.plan import ATOMIC_GRANULARITY

PAIR_COLUMNS: Final = ("corpus_a", "corpus_b", "overlap", "chance")
BESIDE_COLUMNS: Final = (
    *("layer", "expert", "neurons", "removed", "kept_share", "saliency", "gone", "tenth"),
)
SAME_BYTES_COLUMNS: Final = (
    *("corpus", "granularity", "candidate", "removed", "bytes", "loss", "full", "change"),
    *("esap", "esap_low", "esap_high"),
)
# Sizes that differ by no more are called the same: whole experts take their router rows along.
_SAME: Final = 0.01
_SPREAD: Final = {
    "neurons by global": "all layers",
    "neurons by layer": "each layer",
    "neurons by expert": "each expert",
    "global": "all layers",
    "uniform": "even over layers",
}


def share_chart(shares: pd.DataFrame, marked: tuple[int, int] | None, about: str) -> Drawing:
    """What stays of each expert, of a table of `SHARE_COLUMNS`."""
    return Drawing(
        "neurons-kept",
        lambda dark: neuron_map.kept_share_map(shares, marked=marked, dark=dark),
        shares,
        neuron_map.describe(shares),
        about,
    )


def saliency_chart(histogram: pd.DataFrame, cuts: pd.DataFrame, about: str) -> Drawing:
    """The neurons of each layer by saliency, of tables of `HISTOGRAM_COLUMNS` and `CUT_COLUMNS`."""
    return Drawing(
        "neuron-saliency",
        lambda dark: neuron_saliency.saliency_by_layer(histogram, cuts, dark=dark),
        histogram,
        neuron_saliency.describe_layers(cuts),
        about,
    )


def most_divided(shares: pd.DataFrame) -> tuple[int, int]:
    """Layer and expert whose kept share is nearest to a half; of equal ones the first.

    Args:
        shares: table of `SHARE_COLUMNS`.
    """
    row = int((shares["kept_share"] - 0.5).abs().to_numpy().argmin())
    return int(shares["layer"].iloc[row]), int(shares["expert"].iloc[row])


def neuron_chart(table: pd.DataFrame, about: str, *, name: str = "") -> Drawing:
    """The neurons of one expert, of a table of `NEURON_TABLE_COLUMNS`.

    Args:
        table: of the expert.
        about: what made it.
        name: the chart's, where the expert is not the one most nearly halved.
    """
    return Drawing(
        name or "neurons-of-expert",
        lambda dark: neuron_saliency.neuron_bars(table, dark=dark),
        table,
        neuron_saliency.describe_neurons(table),
        about,
    )


def text_overlaps(
    masks: Mapping[str, BoolArray], pools: IntArray, sparsity: Fraction
) -> pd.DataFrame:
    """Table of PAIR_COLUMNS: how far the pruned neurons of each pair of texts agree.

    Args:
        masks: text -> (neurons,) True where the neuron goes.
        pools: sizes of the groups whose neurons compete.
        sparsity: fraction of neurons that goes.
    """
    chance = pool_chance(pools, sparsity)
    rows = [
        (first, second, pool_overlap(masks[first], masks[second], pools), chance)
        for first, second in combinations(masks, 2)
    ]
    return pd.DataFrame(rows, columns=list(PAIR_COLUMNS))


def text_overlap_chart(pairs: pd.DataFrame, texts: Sequence[str], about: str) -> Drawing:
    """Pruned neurons between the texts, of a table of PAIR_COLUMNS."""
    return matrix_drawing("neuron-overlap", pairs, texts, about)


def beside_experts(
    field: NeuronField, pruned: BoolArray, saliency: pd.DataFrame, gone: BoolArray
) -> pd.DataFrame:
    """Table of BESIDE_COLUMNS: what goes of each expert, beside a choice of whole experts.

    Args:
        field: the neurons.
        pruned: (neurons,) those that go.
        saliency: `layer, expert, saliency` of whole experts.
        gone: (rows of `saliency`,) the experts that go.
    """
    shares = expert_shares(field, pruned)
    table = shares.merge(saliency.assign(gone=gone), on=["layer", "expert"], how="left")
    # By layer, for the choice of whole experts is made in each.
    place = table.groupby("layer")["saliency"].rank(method="first") - 1
    counts = table.groupby("layer")["saliency"].transform("size")
    return table.assign(tenth=(place * 10 // counts).astype("int64"))[list(BESIDE_COLUMNS)]


def experts_chart(table: pd.DataFrame, about: str) -> Drawing:
    """What goes of experts that the criterion of whole experts ranks low and high."""
    return Drawing(
        "neurons-beside-experts",
        lambda dark: neuron_map.removed_by_tenth(table, dark=dark),
        table,
        neuron_map.describe_beside(table),
        about,
    )


def same_bytes_table(records: Sequence[EvaluationRecord]) -> pd.DataFrame:
    """Table of SAME_BYTES_COLUMNS: neurons and whole experts of the same size, size by size.

    Those that were ranked on the text that they were measured on, or on none; of each text the
    sizes that both kinds of plans reach, within 1% of the checkpoint's bytes. Sorted by text and
    change of the loss; `removed` is the share of expert weights that goes, of the plans of neurons.
    """
    table = evaluation_table(records)
    wide = table.pivot_table(index="evaluation", columns="measure", values="mean")
    rows = table[(table["measure"] == "nll") & (table["removed"] > 0)]
    rows = rows[(rows["calibrated_on"] == rows["corpus"]) | (rows["calibrated_on"] == "")]
    esap = table[table["measure"] == "esap"].set_index("evaluation")[["low", "high"]]
    rows = rows.assign(
        candidate=[
            _candidate(*each) for each in zip(*(rows[name] for name in _NAMED), strict=True)
        ],
        loss=rows["mean"],
        change=rows["mean"] - rows["full"],
        esap=rows["evaluation"].map(wide["esap"]) if "esap" in wide else np.nan,
        esap_low=rows["evaluation"].map(esap["low"]),
        esap_high=rows["evaluation"].map(esap["high"]),
    )
    rows = rows.sort_values("created_at").drop_duplicates(
        ["corpus", "candidate", "bytes"], keep="last"
    )
    parts = [
        part.assign(removed=removed)
        for _, block in rows.groupby("corpus")
        for removed, part in _sizes(block)
    ]
    if not parts:
        return pd.DataFrame(columns=list(SAME_BYTES_COLUMNS))
    found = pd.concat(parts)[list(SAME_BYTES_COLUMNS)]
    return found.sort_values(["removed", "corpus", "change"], kind="stable", ignore_index=True)


_NAMED: Final = ("criterion", "schedule", "granularity")


def _candidate(criterion: str, schedule: str, granularity: str) -> str:
    what = "neurons" if granularity == ATOMIC_GRANULARITY else "experts"
    return f"{criterion_label(criterion)}, {what} {_SPREAD.get(schedule, schedule)}"


def _sizes(block: pd.DataFrame) -> list[tuple[float, pd.DataFrame]]:
    """Removed share of each size of plans of neurons, with all candidates of about that size."""
    neurons = block[block["granularity"] == ATOMIC_GRANULARITY]
    found = []
    for removed, nbytes in neurons.groupby("removed")["bytes"].max().items():
        near = block[(block["bytes"] - nbytes).abs() <= _SAME * nbytes]
        if len(set(near["granularity"])) > 1:
            found.append((round(float(str(removed)), 4), near))
    return found


def same_bytes_chart(table: pd.DataFrame, model: str) -> Drawing:
    """What candidates of one size lose, of a table of SAME_BYTES_COLUMNS."""
    return Drawing(
        "same-bytes",
        lambda dark: bytes_figure.same_bytes(table, dark=dark),
        table,
        bytes_figure.describe(table),
        model,
    )
