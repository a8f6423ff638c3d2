"""The command line under a launcher of several processes: one of them speaks for all."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from analysis.errors import LostProcessError
from analysis.machine.launcher import launched_rank, launched_world
from app.console import err, out

_STOPPED = 143  # what a shell calls a command that was told to end


def speak_for_all() -> None:
    """Let only the first process print; say what it means when the launcher ends this one."""
    if launched_world() > 1:
        out.quiet = err.quiet = launched_rank() > 0
        signal.signal(signal.SIGTERM, _exit_stopped)


def speak_up(error: Exception) -> None:
    """Let any process tell of an error of which the first one may not be able to."""
    if isinstance(error, LostProcessError):
        err.quiet = False
        if launched_world() > 1:
            # The launcher now ends this process too, of which all is said.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_stopped(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    err.print(
        "error: The launcher stopped this run, as it does when one of its processes has ended "
        "(the launcher says which). The same command resumes from what was saved."
    )
    sys.stdout.flush()
    sys.stderr.flush()
    # Not an exception: it would come up in the middle of whatever runs, callbacks of libraries and
    # the wait for other processes included, and each would complain. Locks go with the process.
    os._exit(_STOPPED)
