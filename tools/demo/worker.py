"""Makes one step in a process whose working directory is the tree of a work folder.

`python -m tools.demo.worker WORK STEP DIGEST [KEYS]`: KEYS is a file of the records asked for.
"""

import json
import sys
import time
from pathlib import Path

from analysis.errors import UserError
from analysis.progress import Progress
from tools.demo.building import ERROR
from tools.demo.making import make
from tools.demo.orders import Key, narrowed
from tools.demo.steps import STEPS
from tools.demo.work import Work


def main(folder: str, name: str, digest: str, keys: str = "") -> None:
    """Make the step unless it is done; lines of progress go to the output, as error messages do."""
    work, steps = Work(Path(folder)), STEPS
    if keys:
        steps = narrowed(STEPS, {Key(*fields) for fields in json.loads(Path(keys).read_bytes())})
    step = next(step for step in steps if step.name == name)
    # The step of a tool that was killed may still be at it.
    with work.lock(step):
        if work.is_done(step, digest):
            return
        started = time.monotonic()
        make(step, work, _tell)
        work.finish(step, digest, time.monotonic() - started)


def _tell(step: Progress) -> None:
    sys.stdout.write(f"{step.fraction:.1%} {step.phase}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.stdout.write(f"{ERROR}{error}\n")
        raise SystemExit(1) from error
