"""Names of benchmarks, read from the files of lm-evaluation-harness, whose import takes seconds."""

import os
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from analysis.demo.tasks import LOCAL_TASKS
from analysis.errors import CorpusError, did_you_mean

# What YAML says after `task:`, `group:` or `tag:`, or as an item of a list, such as one of tags.
_NAMING = re.compile(
    rb"""^[ \t-]*["']?(?:task|group|tag)["']?[ \t]*:[ \t]*(\S+)[ \t]*$"""
    rb"""|^[ \t]*-[ \t]*([^\s:]+)[ \t]*$""",
    re.MULTILINE,
)


def check_tasks(names: Sequence[str]) -> None:
    """Refuse a name that neither a file of the harness nor a local task has."""
    others = [name for name in names if name not in LOCAL_TASKS]
    all_names = set(harness_names()) if others else set()
    for name in others if all_names else ():
        if name not in all_names:
            all_names |= set(LOCAL_TASKS)
            raise CorpusError(
                f"Unknown benchmark {name!r}.{did_you_mean(name, all_names)} `lm_eval ls tasks` "
                "lists those of lm-evaluation-harness."
            )


def harness_names() -> Iterator[str]:
    """Every task, group and tag of the harness, and a few words more; repeats some."""
    spec = find_spec("lm_eval")
    for place in spec.submodule_search_locations or () if spec else ():
        for folder, _, files in os.walk(f"{place}/tasks"):
            # Included files have no ending.
            for name in (file for file in files if file.endswith("yaml") or "." not in file):
                for either in _NAMING.findall(Path(folder, name).read_bytes()):
                    yield b"".join(either).strip(b"\"'").decode(errors="replace")
