"""Unlikely URLs and widget values, on every page of the dashboard.

`python -m tools.reliability.pages --inputs 300 --seed 1` prints a table. A page must be drawn
without an exception, within SECONDS, and write nothing below the folders of the server.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from analysis.errors import UserError
from app.pages.listing import PAGES
from pruning.spec.base import flat_fields
from pruning.spec.spec import PlanSpec

ROOT = Path(__file__).parents[2]
SECONDS = 60
_KINDS = ("selectbox", "segmented_control", "select_slider", "slider", "number_input", "text_input")
_KINDS += ("multiselect", "toggle", "checkbox", "text_area", "radio")
_STRANGE = (
    "",
    " ",
    "0",
    "1",
    "2",
    "-1",
    "50",
    "1e3",
    "nan",
    "inf",
    "9" * 40,
    "1.5",
    "true",
    "null",
    "demo",
    "reap",
    "aimer",
    "unified",
    "(blend)",
    "neuron",
    "expert",
    "demo-code",
    "kl",
    "esap",
    "16.16.12",
    "1-5,7",
    "0:1,2",
    "5-1",
    "0..9",
    "1" * 3000,
    "x" * 5000,
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "$\\frac{1}{0}$",
    ":red[x]",
    "[a](javascript:1)",
    "\0",
    "\n",
    "\u202e",
    "\U0001f600",
    "\ud7ff",
    "%00",
    "{}",
    "[]",
    "[[1,2],[3]]",
    '{"a":1}',
    "=1+1",
)


@dataclass
class Tally:
    """What came of one page."""

    inputs: int = 0
    widgets: int = 0
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


def folders_of(root: Path) -> dict[str, str]:
    """Folders of a server below `root`, as its launcher leaves them in the environment."""
    names = {"STATS_DIR": "stats", "MODELS_ROOT": "models", "EXPORT_ROOT": "exports"}
    for name in names.values():
        (root / name).mkdir(exist_ok=True)
    found = {f"MOEPRUNE_{key}": str(root / name) for key, name in names.items()}
    return {**found, "MOEPRUNE_STATE_DIR": str(root / "state")}


def open_page(page: str, address: Mapping[str, str]) -> AppTest:
    """A page as a person sees it who follows a link."""
    test = AppTest.from_file(str(ROOT / "app" / "pages" / "main.py"), default_timeout=SECONDS)
    for key, value in address.items():
        test.query_params[key] = value
    test.run()
    test._page_hash = calc_hash(page)  # AppTest itself can only name pages that are files
    return test.run()


def widgets_of(test: AppTest) -> Iterator[Any]:
    """Every widget that holds a value and has a key."""
    for kind in _KINDS:
        yield from (widget for widget in test.get(kind) if widget.key)


def known_keys() -> dict[str, list[str]]:
    """Page -> names that its address may have: keys of widgets, and fields of a plan."""
    fields = flat_fields(PlanSpec).keys()
    return {
        page: sorted({w.key for w in widgets_of(open_page(page, {}))} | fields) for page in PAGES
    }


def _set(widget: Any, random: Random) -> None:
    """Another value: one of those offered, or any text."""
    kind = widget.type
    if kind in ("text_input", "text_area"):
        widget.set_value(random.choice(_STRANGE))
    elif kind in ("toggle", "checkbox"):
        widget.set_value(not widget.value)
    elif kind == "multiselect":
        widget.set_value(random.sample(widget.options, random.randint(0, len(widget.options))))
    elif kind in ("slider", "number_input"):
        bounds = [bound for bound in (widget.min, widget.max) if bound is not None]
        if bounds:
            widget.set_value(random.choice(bounds))
    elif kind in ("selectbox", "radio") and (offered := _choosable(widget)):
        widget.set_value(random.choice(offered))


def _choosable(widget: Any) -> list[str]:
    """Options that are shown as they are: of others AppTest knows only how they are shown."""
    try:
        return [option for option in widget.options if widget.format_func(option) == option]
    except (KeyError, ValueError, TypeError, AttributeError, UserError):
        return []


def attempt(page: str, keys: list[str], random: Random, tally: Tally) -> None:
    """Open a page at a strange address, then change some widgets of it."""
    names = random.sample(keys, min(len(keys), random.randint(1, 6)))
    address = {name: random.choice(_STRANGE) for name in names}
    tally.inputs += 1
    said = f"{page} at {address}"
    began = time.perf_counter()
    try:
        test = open_page(page, address)
        _look(test, said, tally)
        for _ in range(random.randint(0, 2)):
            widgets = list(widgets_of(test))
            if test.exception or not widgets:
                break
            widget = random.choice(widgets)
            said += f", then {widget.key}"
            _set(widget, random)
            test.run()
            tally.widgets += 1
            _look(test, said, tally)
    except Exception as error:  # noqa: BLE001
        tally.problems.append(f"{said}: {type(error).__name__}: {str(error)[:200]}")
    tally.slowest = max(tally.slowest, time.perf_counter() - began)


def _look(test: AppTest, said: str, tally: Tally) -> None:
    for exception in test.exception:
        tally.problems.append(f"{said}: {exception.message[:300]}")


def fuzz_pages(inputs: int, seed: int) -> dict[str, Tally]:
    """Every page at so many addresses; the same seed gives the same ones."""
    keys = known_keys()
    everywhere = sorted({key for names in keys.values() for key in names})
    tallies = {page: Tally() for page in PAGES}
    for number in range(inputs):
        for page in PAGES:
            random = Random(f"{seed} {page} {number}")  # noqa: S311
            known = keys[page] if random.random() < 0.8 else everywhere
            attempt(page, known, random, tallies[page])
    return tallies


def table_of(tallies: Mapping[str, Tally]) -> pd.DataFrame:
    """Table `page, addresses, widget_changes, problems, slowest_s`."""
    rows = [(page, t.inputs, t.widgets, len(t.problems), t.slowest) for page, t in tallies.items()]
    return pd.DataFrame(
        rows, columns=["page", "addresses", "widget_changes", "problems", "slowest_s"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20, help="addresses of each page")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= folders_of(Path(folder))
        tallies = fuzz_pages(chosen.inputs, chosen.seed)
        written = [str(path) for path in Path(folder).rglob("*") if path.is_file()]
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    problems += [f"written: {path}" for path in written if "/state/" not in path]
    for problem in problems:
        print(problem)
    table = table_of(tallies)
    print(table.round({"slowest_s": 1}).to_string(index=False))
    print(f"{table['addresses'].sum()} addresses, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
