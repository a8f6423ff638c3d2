"""A measure against sparsity or memory, one line per criterion."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.criteria.weight_based import RANDOM
from app.charts.chart import Drawing, chart, made_by
from app.charts.context import Context
from app.charts.criterion_looks import looks
from app.charts.evaluations import ALL_CORPORA, evaluations, usual_measure
from app.charts.sizes import byte_unit
from app.charts.theme import Look, apply_theme, muted, plain
from pruning.evaluate.result import MEASURES

# Column of the horizontal axis -> display name, axis title, number format; bytes are drawn in MiB
# or GiB.
AXES: Final[Mapping[str, tuple[str, str, str]]] = {
    "removed": ("Sparsity", "sparsity (expert weights)", ".0%"),
    "bytes": ("Memory", "weights, {unit}", ".3~g"),
    "active_params": ("Active parameters", "parameters used per token", ".3~s"),
    "expert_flops": ("Expert FLOPs", "FLOPs per token in routed experts", ".3~s"),
}


def leading_series(results: pd.DataFrame, measure: str) -> list[str]:
    """Random, and the series that are best at some sparsity, over all corpora if known.

    On fewer samples a candidate may win by chance, so only the usual setup competes.
    """
    rows = results[(results["measure"] == measure) & (results["series"] != "")]
    rows = rows[rows["way"] == ""]
    if not MEASURES[measure].higher_is_better:
        rows = rows.assign(mean=-rows["mean"])
    is_chance = rows["criterion"] == RANDOM.name
    over = rows[(rows["corpus"] == ALL_CORPORA) & ~is_chance]
    best = (rows if over.empty else over).groupby(["corpus", "removed"])["mean"].idxmax()
    return sorted({*rows.loc[best, "series"], *rows.loc[is_chance, "series"]})


@chart("evaluation-curves", "evaluate")
def draw(context: Context) -> Drawing:
    """What pruning costs this model.

    A measure against sparsity or size, one panel per corpus.
    """
    results, choice = evaluations(context), context.results
    usual = usual_measure(results)
    measure = choice.measure or usual
    # A page that has read the table sets which lines are highlighted.
    lit = leading_series(results, measure) if choice.table is None else choice.lit
    rows = results[results["measure"] == measure].reset_index(drop=True)
    known, against = MEASURES[measure], choice.against
    figure = partial(curves_figure, rows, label=known.axis, against=against, lit=lit)
    return Drawing(
        figure,
        rows,
        describe(
            rows[rows["way"] == ""], label=known.label, higher_is_better=known.higher_is_better
        ),
        made_by(context.model.name, f"{len(rows)} evaluations", known.label),
        panels={name: partial(figure, corpora=[name]) for name in rows["corpus"].unique()},
        is_usual=measure == usual and against == "removed",
    )


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
    names = [plain(name) for name in corpora]
    has_legend = list(corpora[:1]) == every_corpus[:1]
    fig = make_subplots(cols=max(1, len(names)), subplot_titles=names, shared_yaxes=False)
    # In the order of the table, without the original model.
    every = list(dict.fromkeys(table.loc[table["series"] != "", "series"]))
    bright = {name: look for name, look in looks(every, dark).items() if lit is None or name in lit}
    traces, places, levels = [], [], []
    # Slicing costs time per column.
    points = table[
        ["corpus", "series", *dict.fromkeys((against, "removed", "mean", "low", "high"))]
    ]
    for column, corpus in enumerate(corpora, 1):
        rows = points[points["corpus"] == corpus].drop(columns="corpus")
        whole, found = rows[rows["series"] == ""].head(1), dict(list(rows.groupby("series")))
        # The points of each series, starting at the original model.
        lines = {
            name: pd.concat([whole, found[name]]).sort_values("removed") if name in found else whole
            for name in every
        }
        for trace in _panel(lines, bright, against, dark):
            traces.append({**trace, "showlegend": trace.get("showlegend", False) and column == 1})
            places.append(column)
        levels += [(column, value) for value in whole["mean"].tolist()]
    # All at once: plotly validates the figure again for each added trace.
    fig.add_traces(traces, rows=[1] * len(traces), cols=places)
    for column, value in levels:
        line = {"color": muted(dark), "dash": "dot", "width": 1}
        fig.add_hline(y=value, line=line, row=1, col=column)
    apply_theme(
        fig,
        dark,
        x={"title": title, "tickformat": form, "showgrid": False},
        # Room for a legend with one line per series, as on a phone.
        height=300 + 20 * len(bright) if has_legend else 240,
        margin={"t": 24},
        showlegend=has_legend,
        legend={"y": 1.12},
    )
    return fig.update_yaxes(title_text=label, col=1)


def _panel(
    lines: Mapping[str, pd.DataFrame], bright: Mapping[str, Look], against: str, dark: bool
) -> Iterator[dict[str, Any]]:
    """The traces of one corpus, grey ones first."""
    dim = [(name, points) for name, points in lines.items() if name not in bright]
    if dim:
        # One trace with gaps: they look alike and may be a hundred.
        gap = pd.DataFrame([{"mean": np.nan}])
        parts = [part for name, points in dim for part in (points.assign(series=name), gap)]
        others = "1 other" if len(dim) == 1 else f"{len(dim)} others"
        yield _line(pd.concat(parts), against, others, "%{text}") | {
            "text": [plain(str(name)) for name in pd.concat(parts)["series"]],
            "mode": "lines",
            "line": {"color": muted(dark), "width": 1},
            "opacity": 0.45,
        }
    for name, look in bright.items():
        points = lines[name]
        known = points.dropna(subset=["low", "high"])
        there, low, high = (known[column].to_numpy() for column in (against, "low", "high"))
        yield {
            "type": "scatter",
            "x": np.concatenate([there, there[::-1]]),
            "y": np.concatenate([high, low[::-1]]),
            "name": plain(name),
            "legendgroup": name,
            "fill": "toself",
            "fillcolor": look.color,
            "opacity": 0.18,
            "mode": "none",
            "hoverinfo": "skip",
        }
        yield _line(points, against, name, plain(name)) | {
            "mode": "lines+markers",
            "line": {"color": look.color, "dash": look.dash, "width": 2},
            "marker": {"symbol": look.symbol, "color": look.color, "size": 8},
        }


def _line(points: pd.DataFrame, against: str, name: str, said: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": points[against].to_numpy(),
        "y": points["mean"].to_numpy(),
        "name": plain(name),
        "legendgroup": name,
        "showlegend": True,
        "customdata": points[["low", "high", "removed"]].to_numpy(),
        "hovertemplate": f"{said} at %{{customdata[2]:.0%}} sparsity: %{{y:.4f}} "
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
        last = rows[rows["removed"] == most].sort_values("mean", ascending=not higher_is_better)
        pairs = zip(last["series"], last["mean"], strict=True)
        ends = [f"{name} {mean:.3g}" for name, mean in pairs]
        best = f"best {ends[0]}, worst {ends[-1]}" if len(ends) > 1 else ends[0]
        parts.append(f"On {corpus}, {most:.0%} sparsity: {best}.")
    return f"{label}. {' '.join(parts)}"
