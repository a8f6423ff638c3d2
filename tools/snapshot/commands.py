"""Command lines of every command: what works, every help, what is refused, recipes."""

from collections.abc import Iterator
from pathlib import Path

from snapshot.lines import HELP, RECIPES, REFUSED, WORKING
from snapshot.running import run_line

_FILES = {"broken.json": '{"schema_version": 1, "kept": ', "broken.csv": "layer;none\na;b\n"}


def texts() -> Iterator[tuple[str, str]]:
    """File and text of every command line; the groups are numbered apart."""
    for name, text in _FILES.items():
        Path(name).write_text(text)
    for name, recipe in RECIPES.items():
        Path(f"{name}.yaml").write_text(recipe)
    for first, lines in ((100, WORKING), (200, REFUSED), (400, HELP)):
        for number, line in enumerate(lines, first):
            yield f"{number}.txt", run_line(line).text
    for name, recipe in RECIPES.items():
        again = "\n".join(run_line(f"run {name}.yaml --stats-dir mine").text for _ in range(2))
        yield f"recipe-{name}.txt", f"{recipe}\n{again}"
