"""A measure against sparsity or memory, one line per criterion."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.criteria.weight_based import RANDOM
from analysis.foreign_text import in_html
from analysis.numbers.arrays import FloatArray
from app.charts.chart import Drawing, chart, made_by, model_fact
from app.charts.criterion_looks import looks
from app.charts.evaluations import ALL_CORPORA, evaluations, intervals_of, usual_measure
from app.charts.sizes import byte_unit
from app.charts.theme import OVER_TITLES, Look, muted, themed_panels
from app.charts.traces import padded
from app.choices import result_words, unless
from pruning.measures.result import MEASURES

if TYPE_CHECKING:
    from app.loaded import Loaded

# Column of the horizontal axis -> display name, axis title, number format; bytes are drawn in MiB
# or GiB.
AXES: Final[Mapping[str, tuple[str, str, str]]] = {
    "removed": ("Sparsity", "sparsity (expert weights)", ".0%"),
    "bytes": ("Memory", "weights, {unit}", ".3~g"),
    "active_params": ("Active parameters", "parameters used per token", ".3~s"),
    "expert_flops": ("Expert FLOPs", "FLOPs per token in routed experts", ".3~s"),
}
# Columns of the points of a line.
_AGAINST, _REMOVED, _MEAN, _LOW, _HIGH = _COLUMNS = range(5)


_MOST_SERIES: Final = 60  # lines of a panel


def leading_series(results: pd.DataFrame, measure: str, granularity: str) -> list[str]:
    """Random, and the two series that are best at most sparsities, over all corpora if known.

    Those of a granularity, if it has any. On fewer samples a candidate may win by chance, so only
    the usual setup competes.
    """
    rows = results[(results["measure"] == measure) & (results["series"] != "")]
    rows = rows[(rows["way"] == "") & (rows["bits"] == "") & (rows["removed"] > 0)]
    if (of_kind := rows["granularity"] == granularity).any():
        rows = rows[of_kind]
    if not MEASURES[measure].higher_is_better:
        rows = rows.assign(mean=-rows["mean"])
    is_chance = rows["criterion"] == RANDOM.name
    over = rows[(rows["corpus"] == ALL_CORPORA) & ~is_chance]
    best = (rows if over.empty else over).groupby(["corpus", "removed"])["mean"].idxmax()
    counts = rows.loc[best, "series"].value_counts()
    leaders = sorted(counts.index, key=lambda series: (-counts[series], series))[:2]
    return sorted({*leaders, *rows.loc[is_chance, "series"]})


@chart("evaluation-curves", "evaluate")
def draw(loaded: Loaded) -> Drawing:
    """What pruning costs this model.

    A measure against sparsity or size, one panel per corpus.
    """
    results, choice = evaluations(loaded), loaded.choices.results
    usual = usual_measure(results)
    measure = choice.measure or usual
    # A page that has read the table sets which lines are highlighted.
    lit = choice.lit
    if choice.table is None:
        lit = leading_series(results, measure, loaded.choices.spec.ranking.granularity)
    rows = results[results["measure"] == measure].reset_index(drop=True)
    definition, against = MEASURES[measure], choice.against
    curves = _like_the_plan(rows, loaded, lit or ())
    figure = partial(curves_figure, curves, label=definition.axis, against=against, lit=lit)
    return Drawing(
        figure,
        rows,
        describe(
            rows[rows["way"] == ""],
            label=definition.label,
            higher_is_better=definition.higher_is_better,
        ),
        made_by(
            model_fact(loaded),
            f"{len(rows)} evaluations",
            definition.label,
            f"bands: {intervals_of(rows)}",
        ),
        panels={name: partial(figure, corpora=[name]) for name in rows["corpus"].unique()},
        options=result_words(measure=unless(measure, usual), against=unless(against, "removed")),
    )


def _like_the_plan(rows: pd.DataFrame, loaded: Loaded, lit: Collection[str]) -> pd.DataFrame:
    """Of many series those that can be told apart: highlighted, or calibrated and spread alike."""
    if rows["series"].nunique() <= _MOST_SERIES:
        return rows
    spec = loaded.choices.spec
    is_alike = (
        rows["calibrated_on"].isin(("", "+".join(spec.ranking.corpora)))
        & rows["schedule"].isin(("", "uniform", spec.spread.schedule))
        & (rows["bits"] == "")
    )
    return rows[is_alike | rows["series"].isin([*lit, ""])].reset_index(drop=True)


def curves_figure(  # noqa: PLR0913  (each is a choice of the page)
    table: pd.DataFrame,
    *,
    label: str,
    against: str = "removed",
    lit: Collection[str] | None = None,
    corpora: Sequence[str] | None = None,
    dark: bool = False,
) -> go.Figure:
    """Figure of a table `corpus, series, removed, ..., mean, low, high`: one panel per corpus.

    Rows without a series are the original model: it starts every line and is drawn as a level.
    `against` is a key of AXES. The series in `lit` (None: all) have colours and bands of their
    intervals; the others are thin and grey and share one legend entry. `corpora` limits the panels;
    the first corpus of the table has the legend.
    """
    _, title, form = AXES[against]
    every_corpus = [str(name) for name in table["corpus"].unique()]
    corpora = every_corpus if corpora is None else corpora
    if against == "bytes":
        unit, unit_name = byte_unit(float(table["bytes"].max()))
        table, title = table.assign(bytes=table["bytes"] / unit), title.format(unit=unit_name)
    has_legend = list(corpora[:1]) == every_corpus[:1]
    # In the order of the table, without the original model.
    every = list(dict.fromkeys(table.loc[table["series"] != "", "series"]))
    bright = {name: look for name, look in looks(every, dark).items() if lit is None or name in lit}
    traces: list[dict[str, Any]] = []
    levels: list[dict[str, Any]] = []
    for place, corpus in enumerate(corpora):
        original, lines = _lines(table[table["corpus"] == corpus], every, against)
        traces += [_placed(trace, place) for trace in _panel(lines, bright, dark)]
        levels += [_level(value, place, dark) for value in original[:, _MEAN].tolist()]
    return themed_panels(
        traces,
        [in_html(name) for name in corpora],
        dark,
        x={
            "title": title,
            "tickformat": form,
            "showgrid": False,
            "range": padded(table[against], least=0),
        },
        y={"title": label},
        shapes=levels,
        # Room for a legend with one line per series, as on a phone.
        height=360 + 20 * len(bright) if has_legend else 240,
        margin={"t": 24},
        showlegend=has_legend,
        legend=OVER_TITLES,
    )


def _axes(place: int) -> tuple[str, str]:
    """The axes of a panel, as Plotly numbers them."""
    number = str(place + 1) if place else ""
    return f"x{number}", f"y{number}"


def _placed(trace: dict[str, Any], place: int) -> dict[str, Any]:
    """A trace in its panel; the first one has the legend."""
    x, y = _axes(place)
    is_in_legend = trace.get("showlegend", False) and not place
    return {**trace, "xaxis": x, "yaxis": y, "showlegend": is_in_legend}


def _level(value: float, place: int, dark: bool) -> dict[str, Any]:
    """The original model, as a dotted line across a panel."""
    x, y = _axes(place)
    return {
        **{"type": "line", "xref": f"{x} domain", "x0": 0, "x1": 1, "yref": y},
        **{"y0": value, "y1": value},
        "line": {"color": muted(dark), "dash": "dot", "width": 1},
    }


def _lines(
    rows: pd.DataFrame, every: Sequence[str], against: str
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """The original model and the series of one corpus, as arrays: (points, _COLUMNS).

    Each series starts at the original model. Arrays: slicing a hundred tables takes long.
    """
    numbers = rows[[against, "removed", "mean", "low", "high"]].to_numpy(dtype=np.float64)
    series = rows["series"].to_numpy()
    original = numbers[series == ""][:1]
    lines = {}
    for name in every:
        points = np.concatenate([original, numbers[series == name]])
        lines[name] = points[np.argsort(points[:, _REMOVED], kind="stable")]
    return original, lines


def _panel(
    lines: Mapping[str, FloatArray], bright: Mapping[str, Look], dark: bool
) -> Iterator[dict[str, Any]]:
    """The traces of one corpus, grey ones first."""
    dim = [(name, points) for name, points in lines.items() if name not in bright]
    if dim:
        # One trace with gaps: they look alike and may be a hundred.
        gap = np.full((1, len(_COLUMNS)), np.nan)
        parts = np.concatenate([part for _, points in dim for part in (points, gap)])
        others = "1 other" if len(dim) == 1 else f"{len(dim)} others"
        yield _line(parts, others, "%{text}") | {
            "text": [in_html(name) for name, points in dim for _ in range(len(points) + 1)],
            "mode": "lines",
            "line": {"color": muted(dark), "width": 1},
            "opacity": 0.45,
        }
    for name, look in bright.items():
        points = lines[name]
        band = points[~np.isnan(points[:, [_LOW, _HIGH]]).any(axis=1)]
        positions, low, high = band[:, _AGAINST], band[:, _LOW], band[:, _HIGH]
        yield {
            "type": "scatter",
            "x": np.concatenate([positions, positions[::-1]]),
            "y": np.concatenate([high, low[::-1]]),
            "name": in_html(name),
            "legendgroup": name,
            "fill": "toself",
            "fillcolor": look.color,
            "opacity": 0.18,
            "mode": "none",
            "hoverinfo": "skip",
        }
        yield _line(points, name, in_html(name)) | {
            "mode": "lines+markers",
            "line": {"color": look.color, "dash": look.dash, "width": 2},
            "marker": {"symbol": look.symbol, "color": look.color, "size": 8},
        }


def _line(points: FloatArray, name: str, hover: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": points[:, _AGAINST],
        "y": points[:, _MEAN],
        "cliponaxis": False,  # the original lies on the edge
        "name": in_html(name),
        "legendgroup": name,
        "showlegend": True,
        "customdata": points[:, [_LOW, _HIGH, _REMOVED]],
        "hovertemplate": f"{hover} at %{{customdata[2]:.0%}} sparsity: %{{y:.4f}} "
        "[%{customdata[0]:.4f}, %{customdata[1]:.4f}]<extra></extra>",
    }


def describe(table: pd.DataFrame, *, label: str, higher_is_better: bool) -> str:
    """One sentence per corpus: the best and the worst series at the highest sparsity."""
    pruned = table[table["series"] != ""]
    if pruned.empty:
        return "No pruned model has been evaluated here."
    parts = []
    for corpus, rows in pruned.groupby("corpus", sort=False):
        most = rows["removed"].max()
        last = rows[rows["removed"] == most].sort_values(
            ["mean", "series"], ascending=[not higher_is_better, True]
        )
        pairs = zip(last["series"], last["mean"], strict=True)
        ends = [f"{name} {mean:.3g}" for name, mean in pairs]
        best = f"best {ends[0]}, worst {ends[-1]}" if len(ends) > 1 else ends[0]
        parts.append(f"On {corpus}, {most:.0%} sparsity: {best}.")
    return f"{label}. {' '.join(parts)}"
