"""What differs between two recordings."""

import difflib
from itertools import islice
from pathlib import Path


def compare(before: Path, after: Path, most: int) -> int:
    """Print a short diff of every file that differs; 1 if any does, else 0."""
    first, second = _texts(before), _texts(after)
    if not first or not second:
        print(f"nothing is recorded in {before if not first else after}")
        return 1
    differing = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    for name in differing:
        _show(name, first.get(name), second.get(name), most)
    print(f"{len({*first, *second})} files, {len(differing)} differ")
    for name in differing:
        print(f"  {name}")
    return int(bool(differing))


def _texts(folder: Path) -> dict[str, str]:
    """The text of every file by its path below the folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def _show(name: str, before: str | None, after: str | None, most: int) -> None:
    if before is None or after is None:
        print(f"== {name}: only in {'AFTER' if before is None else 'BEFORE'}\n")
        return
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=2
    )
    shown = list(islice(lines, most + 1))
    print(f"== {name}")
    print("\n".join(line[:300] for line in shown[:most]))
    print("...\n" if len(shown) > most else "")
