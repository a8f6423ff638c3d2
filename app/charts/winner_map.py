"""Winner map: settings x benchmarks, one winner per cell."""

import textwrap
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.foreign_text import in_html
from analysis.ranking.leaderboard import WINNER_COLUMNS, winners
from app.charts.chart import Drawing
from app.charts.criterion_looks import looks
from app.charts.theme import SMALL_SIZE, muted, text_on, themed
from app.charts.traces import annotation

_NOBODY = "#e9eef1"
_ROOMY = 16  # letters that fit a cell at the default font size
# At the least width (see `page.css`), at the default and the small font size; longer are cut.
_LETTERS_OF_A_ROW, _NARROW_LETTERS_OF_A_ROW = 78, 160


def winner_drawing(scores: Mapping[str, pd.DataFrame], about: str, name: str) -> Drawing:
    """The winner map of settings, each with a `score_table`: candidates x benchmarks."""
    blocks = [winners(table).assign(setting=setting) for setting, table in scores.items()]
    rows = pd.concat(blocks, ignore_index=True)[["setting", *WINNER_COLUMNS]]
    return Drawing(partial(winner_map, rows), rows, describe(rows), about, name)


def winner_map(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Figure of a table of `setting` and the leaderboard's WINNER_COLUMNS, a row per cell.

    A cell without a winner says why; `+n` after a name counts ties for first place.
    """
    counts = table.groupby("setting")["candidates"].transform("max").astype(int).map(_counted)
    table = table.assign(setting=table["setting"].astype(str).map(in_html) + "<br>" + counts)
    settings = list(dict.fromkeys(table["setting"]))
    benchmarks = list(dict.fromkeys(table["benchmark"]))
    names = list(dict.fromkeys(name for name in table["winner"] if name))
    colors = {name: look.color for name, look in looks(names, dark).items()}
    codes = {name: place + 1 for place, name in enumerate(names)} | {"": 0}
    every = pd.MultiIndex.from_product([settings, benchmarks])
    cells = table.set_index(["setting", "benchmark"]).reindex(every)
    shape = (len(settings), len(benchmarks))
    steps = [_NOBODY, *colors.values()]
    last = max(len(steps) - 1, 1)
    heatmap = go.Heatmap(
        x=[in_html(name) for name in benchmarks],
        y=settings,
        z=cells["winner"].map(codes).to_numpy(dtype="float32").reshape(shape),
        zmin=0,
        zmax=last,
        # From colour to colour, halfway between the codes.
        colorscale=[
            [min(max((place + side) / last, 0.0), 1.0), color]
            for place, color in enumerate(steps)
            for side in (-0.5, 0.5)
        ],
        showscale=False,
        xgap=2,
        ygap=2,
        hoverongaps=False,
        customdata=np.reshape([_hover(row) for row in cells.to_dict("records")], shape),
        hovertemplate="%{y}, %{x}<br>%{customdata}<extra></extra>",
    )
    records = table[table["winner"].notna()].to_dict("records")
    # Letters that fit a cell, at the default font size or, if few, at the small one.
    room = _LETTERS_OF_A_ROW // len(benchmarks)
    if room < _ROOMY:
        room = min(_ROOMY - 1, _NARROW_LETTERS_OF_A_ROW // len(benchmarks))
    axis = {"type": "category", "showgrid": False, "fixedrange": True}
    return themed(
        [heatmap],
        dark,
        # None: plotly turns the names only if they would overlap.
        x=axis | {"side": "top", "tickangle": None if room >= _ROOMY else -50},
        y=axis | {"autorange": "reversed"},
        annotations=[_cell_text(row, colors, room) for row in records],
        height=70 + 38 * len(settings),
    )


def _counted(count: int) -> str:
    return f"{count} candidate{'' if count == 1 else 's'}"


def _hover(row: Mapping[Hashable, Any]) -> str:
    if pd.isna(row["winner"]):
        return ""  # a missing cell
    if not row["winner"]:
        return f"{_nobody(row)}: no winner"
    return f"{in_html(row['winner'])}: {row['score']:.3f}, {row['margin']:.3f} before the next"


def _nobody(row: Mapping[Hashable, Any]) -> str:
    """Why a cell has no winner."""
    return "all 0" if row["candidates"] > 1 else _counted(int(row["candidates"]))


def _cell_text(row: Mapping[Hashable, Any], colors: dict[str, str], room: int) -> dict[str, object]:
    winner, tied = str(row["winner"]), int(str(row["tied"]))
    # Ties on their own line: cells are narrow.
    shared = f"<br>+{tied - 1}" if tied > 1 else ""
    lines = _lines(winner, room, most=1 if shared else 2)
    return annotation(
        in_html(str(row["benchmark"])),
        row["setting"],
        "<br>".join(map(in_html, lines or [_nobody(row)])) + shared,
        font={
            "size": SMALL_SIZE if room >= _ROOMY else 10,
            "color": text_on(colors[winner]) if winner else muted(False),
        },
    )


def _lines(name: str, room: int, *, most: int) -> list[str]:
    """A name on at most `most` lines of `room` letters; a cut one ends in a dot."""
    lines = textwrap.wrap(name, room, break_on_hyphens=False)
    rest = " ".join(lines[most - 1 :]) if most > 1 else name
    last = rest if len(rest) <= room else f"{rest[: room - 2].rstrip(' ,')}."
    return [*lines[: most - 1], last] if len(lines) >= most else lines


def describe(table: pd.DataFrame) -> str:
    """One sentence: the number of cells won per candidate."""
    won = table[table["winner"].fillna("") != ""]
    if won.empty:
        return "No benchmark has a winner."
    counts = won["winner"].value_counts()
    most_first = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
    parts = [f"{name} {count}" for name, count in most_first]
    shared = int((won["tied"] > 1).sum())
    tied = f"; {shared} of them shared (the first is named)" if shared else ""
    return f"Of {len(won)} cells with a winner: {', '.join(parts)}{tied}."
