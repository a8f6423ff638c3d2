"""An export that kills itself, run in processes of their own by `test_export_kill`.

Its text is run with `python -c` and the arguments SOURCE and OUT. It reads numbers from standard
input, one a line. For each it forks a child that exports and kills itself with SIGKILL at that many
calls into the operating system; 0 lets it finish. It answers with the number of calls, and with
the signal that ended the child.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from analysis.drain import drain
from analysis.model.opening import load_model_index
from pruning.plan.plan import PruningPlan, model_ref
from pruning.surgery import writing
from pruning.surgery.export import export_checkpoint

_SYSTEM = ("posix", "_io", "fcntl")  # modules whose functions become calls of the system


class _Moments:
    """Counts calls into the system in all threads, and kills the process at one of them."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.passed = 0

    def __call__(self, _frame, event, function) -> None:
        if event not in ("c_call", "c_return"):
            return
        owner = getattr(function, "__self__", None)
        module = getattr(function, "__module__", None) or type(owner).__module__
        if module in _SYSTEM or getattr(owner, "__name__", "") in _SYSTEM:
            self.passed += 1
            if self.passed == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def _export(source: str, out: str, last: int) -> int:
    """The number of calls that an export makes, unless it does not come so far."""
    writing._BUFFER_BYTES = 1 << 10  # so that writing takes many calls, also of a tiny model
    moments = _Moments(last)
    threading.setprofile(moments)
    sys.setprofile(moments)
    model = load_model_index(source)
    plan = PruningPlan(model_ref(model), dict.fromkeys((0, 1, 2), (1, 3, 6)))
    drain(export_checkpoint(model, plan, Path(out)))
    sys.setprofile(None)
    return moments.passed


def _in_a_child(source: str, out: str, last: int) -> tuple[int, int]:
    """The child's number of calls, and the signal that ended it; 0 for one that came to an end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, str(_export(source, out, last)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        calls = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("the export failed")
    return int(calls or last), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main() -> None:
    source, out = sys.argv[1:]
    for line in sys.stdin:
        print(*_in_a_child(source, out, int(line)), flush=True)


if __name__ == "__main__":
    main()
