"""Transcripts of refusals: a command, and below it the lines that answer it.

Places are names in braces: `{here}` is the working directory, with the files of `wrong_files`;
`{tiny}` and `{other}` are small models; `{red}` and `{blue}` corpora of token ids; `{stats}` has
statistics of them. What stands behind `#` is changed in a recipe for the demo, r.yaml. `...` stands
for any text: the words of a library, or what differs between machines. `[2]` below an answer is
the exit status of a wrong command line; it is 1 without.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROMPT = "$ moeprune "


@dataclass(frozen=True)
class Case:
    """A command of a transcript and its answer, with places in braces."""

    path: Path
    command: str
    answer: tuple[str, ...]

    def fits(self, answer: tuple[str, ...]) -> bool:
        """Whether it is the answer; `...` stands for any text within a line."""
        return len(answer) == len(self.answer) and all(
            re.fullmatch(".*".join(map(re.escape, line.split("..."))), new)
            for line, new in zip(self.answer, answer, strict=True)
        )


def read_cases(path: Path) -> Iterator[Case]:
    """The cases of a transcript, in order; blank lines and comments are left out."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    starts = [number for number, line in enumerate(lines) if line.startswith(PROMPT)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Case(path, lines[start].removeprefix(PROMPT), tuple(lines[start + 1 : end]))


def answer_of(code: int, printed: str, places: Mapping[str, Path]) -> tuple[str, ...]:
    """What a command printed and how it ended, as a transcript has it."""
    for name, place in sorted(places.items(), key=lambda item: -len(str(item[1]))):
        printed = printed.replace(str(place), f"{{{name}}}")
    return (*printed.splitlines(), *([] if code == 1 else [f"[{code}]"]))


def rewrite(case: Case, answer: tuple[str, ...]) -> None:
    """Put an answer in place of the one that the transcript has."""
    lines = case.path.read_text().splitlines()
    start = lines.index(f"{PROMPT}{case.command}") + 1
    rest = range(start, len(lines))
    end = next((number for number in rest if lines[number][:1] in ("$", "#")), len(lines))
    lines[start:end] = answer
    case.path.write_text("".join(f"{line}\n" for line in lines))
