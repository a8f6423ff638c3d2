"""Frozen values: small text files, a line a value with its name and its digest."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("charts", "commands", "exports", "plans", "records", "scores")
DIGITS = 6
_LEAST = 1e-9
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]\d+)(?![\w.])")
# What no two takes share, by pattern, and what stands in its place.
UNSTABLE: Mapping[str, str] = {
    # Times of records and manifests, how long a command took, and the seal of such a record.
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?": "TIME",
    r'("seconds": )[-+.e\d]+': r"\1SECONDS",
    r'("sha256": )"[0-9a-f]{64}"': r"\1SEAL",
    # The last fact of a provenance line: the day on which it was drawn.
    r"(moe-prune-studio \S+ \| )\d{4}-\d\d-\d\d": r"\1DAY",
    # Versions that a manifest records: the same torch is 2.13.0 or 2.13.0+cpu, by its index.
    r'("libraries": )\{[^{}]*\}': r"\1LIBRARIES",
    # The memory of this machine.
    r"[.\d]+ [KMGT]iB are available": "SIZE are available",
}
_MOST_LETTERS = 300  # of a value that stands in a line itself


@dataclass(frozen=True)
class Value:
    """A frozen value; its line has the head, which people read, and the digest of its text."""

    name: str
    head: str = ""
    text: str | bytes | None = field(default=None, repr=False)  # None: the head says all

    @property
    def line(self) -> str:
        """Its line in a file: name, head, digest."""
        words = [self.name, _one_line(self.head)] if self.head else [self.name]
        return "\t".join(words if self.text is None else [*words, self._digest])

    @property
    def _digest(self) -> str:
        raw = self.text.encode() if isinstance(self.text, str) else self.text or b""
        return hashlib.sha256(raw).hexdigest()[:32]


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    if len(words) <= _MOST_LETTERS:
        return words
    return f"{words[:_MOST_LETTERS]}... {hashlib.sha256(words.encode()).hexdigest()[:8]}"


def rounded(text: str, digits: int = DIGITS) -> str:
    """A text with its fractions rounded to so many digits, and those that are nearly 0 to 0.

    The one place where numbers lose digits: sums differ in the last ones between processors.
    """
    least = _LEAST if digits == DIGITS else 10.0 ** -(digits + 2)

    def short(number: re.Match[str]) -> str:
        value = float(number[0])
        return "0" if abs(value) < least else f"{value:.{digits}g}"

    return _NUMBER.sub(short, text)


def stable(text: str, folders: Mapping[Path, str], digits: int = DIGITS) -> str:
    """A text as every take has it: rounded, without times; folders by their names."""
    for folder, name in folders.items():
        text = text.replace(str(folder), name)
    for pattern, name in UNSTABLE.items():
        text = re.sub(pattern, name, text)
    return rounded(text, digits)


def write(folder: Path, kind: str, values: Iterable[Value], *, in_full: bool = False) -> int:
    """Write the values of a kind, and how many there are; in full, a file a value too."""
    by_name: dict[str, Value] = {}
    for value in values:
        if by_name.setdefault(value.name, value) is not value:
            raise ValueError(f"two frozen values have the name {value.name!r}")
    folder.mkdir(parents=True, exist_ok=True)
    lines = [by_name[name].line for name in sorted(by_name)]
    (folder / f"{kind}.txt").write_text("".join(f"{line}\n" for line in lines))
    if in_full:
        for value in by_name.values():
            _write_in_full(folder / kind, value)
    return len(lines)


def _write_in_full(folder: Path, value: Value) -> None:
    folder.mkdir(exist_ok=True)
    short = re.sub(r"[^\w.=,-]+", "_", value.name)[:150]
    unique = hashlib.sha256(value.name.encode()).hexdigest()[:6]
    text = value.text if isinstance(value.text, bytes) else (value.text or "").encode()
    (folder / f"{short}-{unique}").write_bytes(f"{value.line}\n".encode() + text)


def read(folder: Path, kind: str) -> dict[str, str]:
    """Name -> rest of the line, of the values of a kind; none if there is no file."""
    path = folder / f"{kind}.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name: rest for name, _, rest in (line.partition("\t") for line in lines)}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and kind of every difference: changed, missing, new."""
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield name, "missing"
        elif name not in before:
            yield name, "new"
        elif before[name] != after[name]:
            yield name, f"changed: {before[name]} -> {after[name]}"
