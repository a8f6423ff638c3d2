"""Processor time of commands from process start to exit, in turns with an empty Python.

`python tools/benchmarks/start.py`
"""

import resource
import subprocess
import sys
from functools import partial
from tempfile import TemporaryDirectory

from timing import in_turns, report

REAP = ("--criterion", "reap", "--calibrated-on", "demo-code")
COMMANDS = (
    ("--help",),
    ("--version",),
    ("calibrate", "--sparsty"),  # a usage error
    ("inspect", "missing"),
    ("inspect", "demo"),
    ("jobs", "list"),
    ("runs", "list"),
    ("score", "demo", *REAP),
    ("plan", "demo", *REAP, "--sparsity", "50%", "-o", "plan.json"),
)


def main() -> None:
    def processor_time() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    with TemporaryDirectory() as folder:
        run = partial(subprocess.run, cwd=folder, capture_output=True, check=False)
        python = [sys.executable]
        actions = {"python -c pass": partial(run, [*python, "-c", "pass"])} | {
            f"moeprune {' '.join(words)}": partial(run, [*python, "-m", "app.cli", *words])
            for words in COMMANDS
        }
        report("start", in_turns(actions, rounds=5, clock=processor_time), "python -c pass")


if __name__ == "__main__":
    main()
