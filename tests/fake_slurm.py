"""SLURM on one machine: `sbatch`, `srun`, `sacct` and `scancel` that run jobs as processes here.

One file for all, told apart by the name that it is called by. States lie in files beside it:
NUMBER holds what `sacct` says, NUMBER.pid the leader of the job's session. While a file `hold`
exists, jobs wait. Of the environment a job gets what `--export` names, as with SLURM.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
STATES = HERE / "states"


def sbatch(script):
    number = max((int(path.stem) for path in STATES.glob("*")), default=os.getpid()) + 1
    (STATES / str(number)).write_text("PENDING")
    subprocess.Popen(
        [sys.executable, __file__, "batch", str(number), script],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"Submitted batch job {number}")


def batch(number, script):
    state = STATES / number
    while (HERE / "hold").exists():
        time.sleep(0.02)
    if state.read_text() != "PENDING":
        return
    state.write_text("RUNNING")
    names = re.search(r"#SBATCH --export='?([^'\n]*)", Path(script).read_text())[1].split(",")
    own = {"SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
    own |= {f"SLURM_{name}": "0" for name in ("NODEID", "PROCID", "LOCALID")}
    passed = {name: os.environ[name] for name in names if name in os.environ}
    job = subprocess.Popen(["bash", script], env=passed | own, start_new_session=True)
    (STATES / f"{number}.pid").write_text(str(job.pid))
    code = job.wait()
    if state.read_text() == "RUNNING":
        state.write_text("FAILED" if code else "COMPLETED")


def srun(*words):
    options = list(words)
    output = None
    while options and options[0].startswith("--"):
        option = options.pop(0)
        if option in ("--output", "--error"):
            name = options.pop(0)
            output = output or name
    number = os.environ["SLURM_JOB_ID"]
    path = Path(output.replace("%j", number).replace("%t", "0"))
    with path.open("ab") as log:
        sys.exit(subprocess.call(options, stdout=log, stderr=log))


def sacct(*words):
    wanted = {word for flag, word in pairwise(words) if flag == "-j"}
    print("JobID|State|NodeList")
    for number in sorted(wanted):
        with contextlib.suppress(FileNotFoundError):
            print(f"{number}|{(STATES / number).read_text()}|node1")


def end(number, state):
    """End a job as SLURM does: at once, with everything that it started."""
    (STATES / number).write_text(state)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.killpg(int((STATES / f"{number}.pid").read_text()), signal.SIGKILL)


def scancel(number):
    with (HERE / "canceled").open("a") as log:
        log.write(f"{number}\n")
    end(number, "CANCELLED by 0")


def install(folder):
    """Put the four programs into `folder`, which goes first on the PATH."""
    (folder / "states").mkdir(parents=True)
    for name in ("sbatch", "srun", "sacct", "scancel"):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
        program.chmod(0o755)


if __name__ == "__main__":
    called = Path(sys.argv[0]).name
    name, given = (
        (called, sys.argv[1:])
        if called in ("srun", "sacct", "scancel")
        else (("sbatch", sys.argv[1:]) if sys.argv[1] != "batch" else ("batch", sys.argv[2:]))
    )
    {"sbatch": sbatch, "batch": batch, "srun": srun, "sacct": sacct, "scancel": scancel}[name](
        *given
    )
