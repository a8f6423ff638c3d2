"""Small real tasks for the workers that the tests start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from analysis.errors import UserError
from analysis.progress import Progress


def count(request):
    """Count to n; with "trace", leave a line in that file on each start."""
    if "trace" in request:
        with Path(request["trace"]).open("a") as trace:
            trace.write(f"{os.getpid()}\n")
    for number in range(1, request["n"] + 1):
        yield Progress("counting", number, request["n"], "numbers", note=f"at {number}")
        time.sleep(request.get("pause", 0.0))
    return {"counted": request["n"]}


def failing(name, error):
    def task(_request):
        yield Progress("preparing", 0, 1)
        raise error

    task.__name__ = name
    return task


boom = failing("boom", RuntimeError("boom\nin two lines"))
refuse = failing("refuse", UserError("The corpus is empty; choose another one."))
exhaust = failing("exhaust", MemoryError())


def opaque(_request):
    yield Progress("preparing", 0, 1)
    return {"path": Path("not JSON")}


def stubborn(request):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(request["ready"]).touch()
    yield Progress("resisting", 0, 0)
    while True:
        time.sleep(0.05)


def write_partial(request):
    """Write the request's paths, then wait; "tidied" appears when the `finally` block runs."""
    try:
        for path in request["paths"]:
            Path(path).mkdir()
            (Path(path) / "shard").write_text("bytes")
        Path(request["ready"]).touch()
        yield Progress("waiting", 1, 2)
        while not request.get("fail"):
            time.sleep(0.05)
        raise RuntimeError("asked to fail")
    finally:
        Path(request["tidied"]).touch()


def spawn(request):
    """Start a child, leave its number in "ready", and wait."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ready = Path(request["ready"])
    ready.with_suffix(".new").write_text(str(child.pid))
    ready.with_suffix(".new").rename(ready)
    yield Progress("waiting", 0, 0)
    child.wait()
    raise RuntimeError("the child ended")


def silent(request):
    Path(request["ready"]).touch()
    time.sleep(60)
    yield Progress("never reached", 0, 0)
    return {}


def allocate(request):
    block = bytearray(b"x") * request["size"]
    yield Progress("holding", len(block), request["size"], "bytes")
    return {}


def leak(_request):
    """Say a token in every way that a task can."""
    token = os.environ["HF_TOKEN"]
    print("printed", token)
    sys.stderr.write(f"in two parts {token[:9]}")
    sys.stderr.write(f"{token[9:]}\n")
    sys.stdout.write(f"no line end {token}")
    sys.stdout.flush()
    yield Progress(f"phase {token}", 0, 1, token, note=f"note {token}")
    secret = "TEST_SECRET" in os.environ
    return {"answer": f"with {token}", "token_length": len(token), "secret_passed": secret}


def leak_error(_request):
    yield Progress("preparing", 0, 1)
    raise RuntimeError(f"401 for {os.environ['HF_TOKEN']}")


TASKS = (count, boom, refuse, exhaust, opaque, stubborn, write_partial, spawn, silent, allocate)
KINDS = {task.__name__: SimpleNamespace(job=task) for task in (*TASKS, leak, leak_error)}
