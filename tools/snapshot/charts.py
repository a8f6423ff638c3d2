"""The numbers behind every view of `moeprune plot`."""

from collections.abc import Iterator
from pathlib import Path

from snapshot.running import Outcome, run_line

_EXPERTS = "--criterion reap --corpus demo-code --sparsity 50%"
_NEURONS = "--criterion heapr --corpus demo-code --sparsity 50%"
_BLEND = "--corpus demo-code:2 --corpus demo-math:1"
# Views that follow the recipe are drawn for all of these.
_RECIPES = (
    _EXPERTS,
    f"--criterion 1,1,2 {_BLEND} --sparsity 25% --gate renormalized",
    "--criterion 0,0,2 --corpus demo-math --sparsity 25% --with-criterion heapr",
    "--criterion aimer --sparsity 25% --with-criterion magnitude",
    "--criterion frequency --corpus demo-prose --sparsity 50% --with-criterion reap "
    "--with-corpus demo-math --with-sparsity 25%",
)
_RECIPES_OF_NEURONS = (
    _NEURONS,
    "--criterion camera-p --corpus demo-math --sparsity 25%",
    f"--criterion heapr {_BLEND} --sparsity 25%",
    "--criterion random --sparsity 25%",
)
# Views that take other options, or none of the recipe's.
_OWN: dict[str, tuple[str, ...]] = {
    "paths": (
        "",
        "--top-m 20 --weights importance",
        "--top-m 50 --transitions measured --clusters 4 --weights transition",
    ),
    "overlap-map": (_EXPERTS, "--criterion man --sparsity 25% --gate renormalized"),
    "component-effects": (_EXPERTS, "--gate renormalized"),
}
_SHOWS_RECORDS = ("evaluate",)
_PAPERS = ("capability", "winner-map")
_TABLES = ("unified-table-5", "evoesap-table-1", "evoesap-table-9", "unified-table-1")


def texts() -> Iterator[tuple[str, str]]:
    """File and text of every chart."""
    listed = run_line("plot --list")
    yield "views.txt", listed.text
    for view, page in _views(listed):
        for number, words in enumerate(_choices(view, page), 1):
            yield f"{view}-{number}.csv", _numbers(f"plot {view} {words}".strip())


def _views(listed: Outcome) -> list[tuple[str, str]]:
    """Names and pages of the views, as the list says them."""
    rows = [line.split("│") for line in listed.out.splitlines()]
    return [(row[0].strip(), row[1].strip()) for row in rows if len(row) > 2]


def _choices(view: str, page: str) -> tuple[str, ...]:
    """Model or table, and options, for each chart of a view."""
    if view in _PAPERS:
        return _TABLES
    if view in _OWN:
        return tuple(f"demo {words}".strip() for words in _OWN[view])
    if page in _SHOWS_RECORDS or view.startswith("search"):
        return (f"demo {_EXPERTS}",)
    is_about_neurons = view.startswith("neuron") or view == "same-bytes"
    return tuple(
        f"demo {words}" for words in (_RECIPES_OF_NEURONS if is_about_neurons else _RECIPES)
    )


def _numbers(line: str) -> str:
    """What the command said, and below it the table."""
    out = Path("chart.csv")
    out.unlink(missing_ok=True)
    outcome = run_line(f"{line} -o {out}")
    table = out.read_text("utf-8") if out.exists() else "no table\n"
    said = outcome.text.rsplit("--- files", 1)[0]
    return "".join(f"# {row}\n" for row in said.splitlines()) + table
