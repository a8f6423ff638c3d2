"""Processes of tests, forked from one that has imported the libraries.

Each start of its own would import torch and transformers anew: five seconds of processor time.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers import an_unused_port

TESTS = Path(__file__).parent
# It imports nothing of the project, of which a fork may want a copy, and computes nothing: threads
# would not be in the forks. It reads lists of processes, a line each, and answers with their ends.
PARENT = """
import gc, json, os, runpy, signal, sys
gc.disable()
import datasets, pandas, pytest, scipy.stats, streamlit, torch.distributed
import transformers.modeling_utils

def become(asked):
    signal.alarm(asked["seconds"])  # what hangs ends
    os.chdir(asked["folder"])
    for number, name in enumerate(("out", "err"), 1):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    way, *words = asked["words"]
    if way == "-c":
        sys.argv = ["-c", *words[1:]]
        exec(words[0], {"__name__": "__main__"})
    elif way == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [way, *words]
        sys.path.insert(0, os.path.dirname(way))
        runpy.run_path(way, run_name="__main__")
    sys.exit()

# Walks of forks leave out what was imported.
gc.collect()
gc.freeze()
gc.enable()
for line in sys.stdin:
    children = []
    for asked in json.loads(line):
        child = os.fork()
        if not child:
            become(asked)
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(ends), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class Forks:
    """The process that forks others, and a folder for what they print."""

    process: "subprocess.Popen[str]"
    folder: Path
    count: int = 0

    def run(
        self, *words: object, folder: Path, environment: Mapping[str, str] | None = None
    ) -> Ended:
        """Run what would be `python WORDS`: a script, -m MODULE or -c CODE, with its own words."""
        (ended,) = self._run(words, folder, [os.environ if environment is None else environment])
        return ended

    def ranks(self, *words: object, folder: Path = TESTS, processes: int = 2) -> list[Ended]:
        """Run it in so many processes, with the variables that torchrun gives them."""
        shared = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(an_unused_port()),
        }
        own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
        ended = self._run(words, folder, [shared | rank for rank in own])
        assert not any(rank.code for rank in ended), "\n".join(rank.err[-2000:] for rank in ended)
        return ended

    def _run(
        self, words: Sequence[object], folder: Path, environments: Sequence[Mapping[str, str]]
    ) -> list[Ended]:
        asked = []
        for environment in environments:
            self.count += 1
            asked.append(
                {
                    "words": [*map(str, words)],
                    "folder": str(folder),
                    "environment": {**environment},
                    "seconds": 600,
                    **{name: str(self.folder / f"{self.count}.{name}") for name in ("out", "err")},
                }
            )
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        return [
            Ended(code, *(Path(each[name]).read_text("utf-8") for name in ("out", "err")))
            for code, each in zip(codes, asked, strict=True)
        ]


@contextmanager
def forking(folder: Path) -> Iterator[Forks]:
    """Start the process that forks; one thread, as matrices of tests are tiny."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # -P: the folder it starts in may be the project's. The network is nobody's.
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT],
        env=ours | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Forks(process, folder)
        assert process.stdin
        process.stdin.close()
