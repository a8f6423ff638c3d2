"""demo and app: the server that they start, as a process."""

import contextlib
import os
import socket

import psutil
import pytest
from servers import an_unused_port, served


@pytest.fixture
def start(here, tmp_path):
    """Start a server without a display, below which nothing of the user's is touched."""
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"}

    def _start(*words):
        return served(words, log=tmp_path / "server.log", environment=environment, cwd=here)

    return _start


@pytest.fixture
def first_port_taken():
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Somebody else's server may hold it, which serves as well.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 8501))
            taken.listen()
        yield


def test_app_takes_its_folders_and_port_from_options(start, models, stats, here):
    port = an_unused_port()
    folders = ("--models-root", models, "--stats-dir", stats, "--export-root", "out")
    with start("app", "--port", port, *folders) as server:
        assert server.port == port
        environment = psutil.Process(server.process.pid).environ()
        assert environment["HOME"] == os.environ["HOME"]
    # Nothing is made before it is needed.
    assert list(here.iterdir()) == []


def test_the_demo_takes_the_next_free_port(start, first_port_taken):
    # What it answers to strangers, tests/app/test_security.py has.
    with start("demo") as server:
        assert f"MoE Prune Studio: {server.url}\n" in server.log.read_text()
        assert 8502 <= server.port <= 8600
