"""The charts over a model's own evaluations: curves, what a sparsity costs, winner map."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final

import pandas as pd

from analysis.ranking.leaderboard import WINNER_COLUMNS, score_table, winners
from app.charts.chart import Drawing, made_by
from app.figures import sweep, winner_map
from app.plots.names import criterion_label
from pruning.evaluate.record import EvaluationRecord, evaluation_table
from pruning.evaluate.result import MEASURES
from pruning.plan import ATOMIC_GRANULARITY

# What the curves may have below, in the order offered.
AGAINST: Final = {
    "removed": "Share removed",
    "bytes": "Memory",
    "active_params": "Active parameters",
    "expert_flops": "Expert FLOPs",
}
_SAME_SHARE: Final = 5e-5
LOSS_COLUMNS: Final = (
    "candidate",
    "mean",
    "low",
    "high",
    "full",
    "change",
    "bytes",
    "memory_saved",
)


def results_of(records: Sequence[EvaluationRecord]) -> pd.DataFrame:
    """`evaluation_table` with the column `series`: criterion and what ranked; empty: unpruned.

    Sorted by text and series: a candidate's colour must not depend on the names of files. What
    was measured in another way than most, which no line may join, says so in its series and in
    the column `way`, which is empty for the others; of the unpruned model it comes last.
    """
    table = evaluation_table(records)
    ways = {record.record_id: _way(record) for record in records}
    usual = next((way for way, _ in Counter(ways.values()).most_common(1)), "")
    unusual = {name: "" if way == usual else way for name, way in ways.items()}
    odd = table["evaluation"].map(unusual).astype(str)
    rows = zip(table.to_dict("records"), odd, strict=True)
    table = table.assign(
        series=[series_name(row, way) if row["removed"] else "" for row, way in rows], way=odd
    )
    table["series"] = _told_apart(table)
    return table.sort_values(["corpus", "series", "way", "removed"], ignore_index=True)


def _told_apart(table: pd.DataFrame) -> list[str]:
    """The series, where plans of one name and share differ (by hand, say) with the plan's digest.

    The one that was measured first keeps its plain name.
    """
    first: dict[tuple[str, float], str] = {}
    for _, row in table.sort_values("created_at", kind="stable").iterrows():
        first.setdefault((row["series"], round(row["removed"], 4)), row["plan"])
    rows = zip(table["series"], table["removed"], table["plan"], strict=True)
    return [
        name if not name or first[name, round(share, 4)] == plan else f"{name}, plan {plan[:8]}"
        for name, share, plan in rows
    ]


def _way(record: EvaluationRecord) -> str:
    """How precisely a record was measured: on how much text, with which numbers."""
    return f"{record.num_samples} samples, {record.settings['dtype']}"


def series_name(row: Mapping[Hashable, object], way: str = "") -> str:
    """What a person calls a series of plans: criterion, what ranked, schedule, units, `way`."""
    name = str(row["criterion"])
    words = [criterion_label(name) if name else f"plan {str(row['plan'])[:8]}"]
    if row["calibrated_on"]:
        words.append(f"on {row['calibrated_on']}")
    if row["schedule"] not in ("", "uniform"):
        words.append(str(row["schedule"]))
    # Schedules of neurons say so themselves.
    if row["granularity"] == ATOMIC_GRANULARITY and "neurons" not in str(row["schedule"]):
        words.append("neurons")
    if way:
        words.append(way)
    return ", ".join(words)


def measures_of(results: pd.DataFrame) -> list[str]:
    """The measures that were taken, in the order of MEASURES."""
    return [name for name in MEASURES if name in set(results["measure"])]


def usual_measure(results: pd.DataFrame) -> str:
    """What is shown at first: the loss, which everybody knows, where it was taken."""
    taken = measures_of(results)
    return "nll" if "nll" in taken else taken[0]


def is_share(removed: "pd.Series[float]", share: float) -> "pd.Series[bool]":
    """Where this share was removed, up to the rounding of `shares_of`."""
    return (removed - share).abs() < _SAME_SHARE


def shares_of(results: pd.DataFrame) -> list[str]:
    """Shares of the expert weights that were removed, as percentages, smallest first."""
    removed = sorted({round(share, 4) for share in results["removed"] if share > 0})
    return [f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%" for share in removed]


def leading_series(results: pd.DataFrame, measure: str) -> list[str]:
    """The series that are best at some share on some text, and the random baseline; sorted."""
    rows = results[(results["measure"] == measure) & (results["series"] != "")]
    if not MEASURES[measure].higher_is_better:
        rows = rows.assign(mean=-rows["mean"])
    best = rows.groupby(["corpus", "removed"])["mean"].idxmax()
    chance = rows.loc[(rows["criterion"] == "random") & (rows["way"] == ""), "series"]
    return sorted({*rows.loc[best, "series"], *chance})


def curves_chart(
    results: pd.DataFrame,
    measure: str,
    against: str,
    model: str,
    lit: Collection[str] | None = None,
) -> Drawing:
    """A measure against what is removed or left, a panel for each text; see `sweep_lines`."""
    rows = results[results["measure"] == measure]
    known = MEASURES[measure]
    text = sweep.describe(rows, label=known.label, higher_is_better=known.higher_is_better)
    return Drawing(
        "evaluation-curves",
        lambda dark: sweep.sweep_lines(rows, label=known.axis, against=against, lit=lit, dark=dark),
        rows.reset_index(drop=True),
        text,
        made_by(model, f"{len(rows)} evaluations", known.label),
    )


def of_plan(results: pd.DataFrame, measure: str, plan: str) -> pd.DataFrame:
    """What one plan gets, a row for each text; as most were measured where it was, else newest.

    Args:
        results: a table of `results_of`.
        measure: one of MEASURES.
        plan: digest of the plan, see `PruningPlan.digest`.
    """
    rows = results[(results["measure"] == measure) & (results["plan"] == plan)]
    rows = rows.assign(usual=rows["way"] == "").sort_values(["usual", "created_at"])
    rows = rows.drop_duplicates("corpus", keep="last").drop(columns="usual")
    return rows.sort_values("corpus", ignore_index=True)


def worst_elsewhere(
    results: pd.DataFrame, measure: str, share: float, corpus: str, candidate: str
) -> pd.Series | None:
    """Of the other texts the row where a candidate loses most; None where it has no others.

    What is lost is the distance to the full model, where the measure has one.

    Args:
        results: a table of `results_of`.
        measure: one of MEASURES.
        share: of the weights of experts that is removed.
        corpus: the text that it was picked on.
        candidate: its series.
    """
    rows = results[(results["measure"] == measure) & (results["series"] == candidate)]
    rows = rows[is_share(rows["removed"], share) & (rows["corpus"] != corpus)]
    if rows.empty:
        return None
    lost = rows["mean"] - rows["full"].fillna(0)
    worst = lost.argmin() if MEASURES[measure].higher_is_better else lost.argmax()
    return rows.iloc[int(worst)]


def at_share(results: pd.DataFrame, measure: str, share: float, corpus: str) -> pd.DataFrame:
    """What each candidate gets at one share removed, best first.

    Returns:
        LOSS_COLUMNS: ``full`` is what the unpruned model gets, NaN where the measure is of the
        difference between both, ``change`` the distance to it, ``memory_saved`` the share of all
        weights that need not be loaded.
    """
    rows = results[(results["measure"] == measure) & (results["corpus"] == corpus)]
    whole = rows[rows["removed"] == 0]
    bytes_before = float(whole["bytes"].iloc[0]) if len(whole) else float("nan")
    rows = rows[is_share(rows["removed"], share)]
    rows = rows.sort_values("mean", ascending=not MEASURES[measure].higher_is_better, kind="stable")
    return (
        rows.rename(columns={"series": "candidate"})
        .assign(
            change=rows["mean"] - rows["full"],
            memory_saved=1 - rows["bytes"] / bytes_before,
        )[list(LOSS_COLUMNS)]
        .reset_index(drop=True)
    )


def own_winner_chart(results: pd.DataFrame, model: str) -> Drawing | None:
    """The candidate with the highest ESAP for each share and text; None where none was measured.

    Only what was measured as most are competes: on fewer samples a candidate may win by chance.
    """
    esap = results[(results["measure"] == "esap") & (results["way"] == "")]
    rows = esap[esap["removed"] > 0]
    if rows.empty:
        return None
    blocks = []
    for share, block in rows.groupby("removed"):
        # The newest, where a candidate was evaluated on a text more than once.
        block = block.sort_values("created_at").drop_duplicates(["series", "corpus"], keep="last")
        scores = score_table(
            block.rename(columns={"corpus": "benchmark", "mean": "score"}), by="series"
        )
        blocks.append(winners(scores).assign(setting=f"{share:.0%} removed"))
    table = pd.concat(blocks, ignore_index=True)
    table = table[["setting", *WINNER_COLUMNS]]
    return Drawing(
        "own-winner-map",
        lambda dark: winner_map.winner_map(table, dark=dark),
        table,
        winner_map.describe(table),
        made_by(model, "highest ESAP on held-out text"),
    )
