"""The dashboard's server as a process of its own: start, wait until it answers, stop."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Only reached when something is broken; the machine may be busy.
PATIENCE_SECONDS = 60.0
_PRINTED = re.compile(r"http://127\.0\.0\.1:(\d+)")


def an_unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Server:
    """A server that answers; `seconds` is how long it took from the start of its process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    seconds: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        self.process.wait(timeout=20)


def start_server(
    words: Sequence[object],
    *,
    log: Path,
    environment: Mapping[str, str],
    cwd: Path,
    python: Sequence[str] = (sys.executable,),
    program: str = "app.cli",
) -> Server:
    """Run `moeprune WORDS`, or `program`, until its URL is printed and its health page answers."""
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*python, "-m", program, *map(str, words)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        while (match := _PRINTED.search(log.read_text())) is None:
            _still(process, began, log)
        while not _is_healthy(int(match[1])):
            _still(process, began, log)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return Server(process, int(match[1]), log, time.monotonic() - began)


@contextlib.contextmanager
def served(words: Sequence[object], **options: object) -> Iterator[Server]:
    server = start_server(words, **options)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop()


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _still(process: subprocess.Popen[bytes], began: float, log: Path) -> None:
    assert process.poll() is None, f"the server ended: {log.read_text()}"
    assert time.monotonic() - began < PATIENCE_SECONDS, f"no answer: {log.read_text()}"
    time.sleep(0.05)
