"""The reference of compatibility: what engines did with exports of every family."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pruning.serving.engine_results import CUTS, ENGINES, Row, results
from tools.reference.markdown import cell, table

__all__ = ["compatibility", "engine_matrix"]

_LONGEST = 160  # characters of a reason


def compatibility(_root: Path) -> str:
    """One section for each engine: a table of families and cuts, then why some fail."""
    rows = results()
    return "\n\n".join(_engine(name, [r for r in rows if r.engine == name]) for name in ENGINES)


def engine_matrix(_root: Path) -> str:
    """Family by engine, of exports with fewer experts, the same number in every layer."""
    rows = results()
    equal = {(row.case, row.engine): _word(row) for row in rows if row.cut == "experts"}
    cases = sorted({case for case, _ in equal})
    lines = [
        (f"`{case}`", *(equal.get((case, engine), "not tried") for engine in ENGINES))
        for case in cases
    ]
    return table(("family", *ENGINES.values()), lines)


def _word(row: Row) -> str:
    if row.works:
        return "works"
    if row.is_of_cpu:
        return "not tried"
    if row.is_rounded:
        return "rounds"
    return "wrong" if row.differs else "fails"


def _engine(name: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"## {ENGINES[name]}\n\nNot tried."
    unknown = dict.fromkeys(row.case for row in rows if row.no_class)
    known = [row for row in rows if row.case not in unknown]
    able = [row for row in known if "per layer" not in row.cut and not row.is_of_cpu]
    versions = "; ".join(sorted({row.versions for row in known}))
    days = sorted({row.date for row in rows})
    ran = f"{versions}, {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    reasons: dict[str, str] = {}  # without sizes and layers -> the first of them
    for row in known:
        if said := _said(row):
            reasons.setdefault(_alike(said), said)
    lines = []
    for case in dict.fromkeys(row.case for row in known):
        by_cut = {row.cut: row for row in known if row.case == case}
        traits = ", ".join(by_cut["original"].traits)
        lines.append(
            (f"`{case}`", traits or "-", *(_cell(by_cut.get(cut), reasons) for cut in CUTS))
        )
    parts = [
        f"## {ENGINES[name]}",
        f"{ran}: {sum(row.works for row in able)} of {len(able)} rows match; not counted are "
        f"{len(known) - len(able)} of layers that differ, or that cannot be tried on a CPU. "
        f"`python -m tools.engines {name}`, then `python -m pytest -m engines -k {name}` "
        "runs them.",
        table(("family", "traits", *CUTS), lines),
        "\n".join(f"{n}. {cell(text[:_LONGEST])}" for n, text in enumerate(reasons.values(), 1)),
        *_conditions(known),
        _headless(known),
        f"It has no class for {', '.join(f'`{case}`' for case in unknown)}." if unknown else "",
    ]
    return "\n\n".join(filter(None, parts))


def _conditions(rows: Sequence[Row]) -> Iterator[str]:
    """Options without which some rows are wrong, and the families that need them."""
    for condition in sorted({row.condition for row in rows} - {""}):
        cases = dict.fromkeys(row.case for row in rows if row.condition == condition)
        named = ", ".join(f"`{case}`" for case in cases)
        yield f"Only with `{condition}` on a CPU, without which it gives wrong tokens: {named}."


def _headless(rows: Sequence[Row]) -> str:
    cases = dict.fromkeys(f"`{row.case}`" for row in rows if row.no_mtp)
    return f"Converted with `--no-mtp`: {', '.join(cases)}." if cases else ""


def _said(row: Row) -> str:
    """What its note says."""
    return row.cause if row.differs or row.is_of_cpu else row.reason


def _alike(reason: str) -> str:
    return re.sub(r"\d+", "N", reason)[:100]


def _cell(row: Row | None, reasons: Mapping[str, str]) -> str:
    if row is None:
        return "-"
    if row.works:
        return row.distance
    said = _said(row)
    note = f" ({list(reasons).index(_alike(said)) + 1})" if said else ""
    if row.is_of_cpu:
        return f"not on a CPU{note}"
    if row.differs:
        outcome = "rounds" if row.is_rounded else "wrong results"
        return f"{outcome}: {row.equal} of {row.tokens} tokens, {row.distance}{note}"
    return f"fails{note}"
