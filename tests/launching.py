"""Runs of several processes, as a person starts them."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def torchrun(*words: object, **options) -> "subprocess.Popen[str]":
    """Two processes of a script or a module, each with one thread."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    # A port of its own: other runs may be under way on this machine.
    command += ["--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return subprocess.Popen(
        [*command, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
