"""demo and app: the server that they start, as a process."""

import contextlib
import http.client
import os
import socket
import urllib.request
from pathlib import Path

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


def sockets_of(server):
    found = psutil.Process(server.process.pid).net_connections(kind="inet")
    return [(link.laddr.ip, link.laddr.port) for link in found if link.status == psutil.CONN_LISTEN]


def answer_to_socket(port, **headers):
    """Status of an attempt to open the page's web socket."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        connection.request("GET", "/_stcore/stream", headers={**upgrade, **headers})
        return connection.getresponse().status


def test_demo_serves_on_loopback_with_headers_and_without_torch(start, first_port_taken):
    with start("demo") as server:
        assert f"MoE Prune Studio: {server.url}\n" in server.log.read_text()
        # 8501 is taken, so the next free one.
        assert 8502 <= server.port <= 8600
        assert sockets_of(server) == [("127.0.0.1", server.port)]
        with urllib.request.urlopen(server.url) as page:  # noqa: S310  (our own server)
            headers = page.headers
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert answer_to_socket(server.port, Origin="http://evil.example") == 403
        assert answer_to_socket(server.port, Origin=server.url) == 101
        assert not list(loaded_libraries(server.process.pid, "torch", "tokenizers"))


def loaded_libraries(pid, *names):
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        pytest.skip("loaded libraries are read from /proc, which this system lacks")
    for line in maps.read_text().splitlines():
        if any(f"/{name}/" in line or f"lib{name}" in line for name in names):
            yield line


def test_app_takes_its_folders_and_port_from_options(start, models, stats, here):
    port = an_unused_port()
    folders = ("--models-root", models, "--stats-dir", stats, "--export-root", "out")
    with start("app", "--port", port, *folders) as server:
        assert server.port == port
        environment = psutil.Process(server.process.pid).environ()
        assert environment["HOME"] == os.environ["HOME"]
    # Nothing is made before it is needed.
    assert list(here.iterdir()) == []
